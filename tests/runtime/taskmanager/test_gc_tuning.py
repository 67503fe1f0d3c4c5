"""Python's cyclic collector is kept away from state, and cycles are collected all the same."""

import gc
import weakref

import pytest

from penstock.runtime.taskmanager.gc_tuning import GROWTH_BYTES, NEW_OBJECTS, GcTuning


class Node:
    """Refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_left_by_others():
    """Collect the cycles that other tests of this process have left.

    Objects that `conftest.py` has frozen must not count either: the tuning unfreezes them at its
    end.
    """
    gc.unfreeze()
    gc.collect()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def passes():
    """Record the number of objects that each collection visits."""
    seen = []

    def began(phase, info):
        if phase == "start":
            # The callback of the tuning has run before this one.
            seen.append(len(gc.get_objects(generation=0)))

    # Registered last, so that it is called last.
    yield lambda: gc.callbacks.append(began) or seen
    if began in gc.callbacks:
        gc.callbacks.remove(began)


def allocate(count):
    return [(i, i) for i in range(count)]


def test_new_objects_are_frozen_and_not_visited(passes):
    with GcTuning():
        seen = passes()
        frozen = gc.get_freeze_count()
        held = allocate(3 * NEW_OBJECTS)
        assert len(seen) >= 2
        assert max(seen) < 100
        assert gc.get_freeze_count() - frozen > 2 * NEW_OBJECTS - 100
        del held


def test_cycles_are_collected_when_memory_has_grown():
    with GcTuning() as tuning:
        cycle = weakref.ref(Node())
        held = allocate(2 * NEW_OBJECTS)
        tuning.collect_if_grown(100)
        tuning.collect_if_grown(100 + GROWTH_BYTES)
        assert cycle() is not None
        tuning.collect_if_grown(1000 + 2 * GROWTH_BYTES)
        assert cycle() is None
        # They were few.
        assert tuning.freezing
        del held


def test_cycles_are_not_collected_again_before_memory_has_grown_again():
    with GcTuning(lambda: (3 * GROWTH_BYTES, 0)) as tuning:
        tuning.collect_if_grown(100)
        tuning.collect_if_grown(3 * GROWTH_BYTES)
        cycle = weakref.ref(Node())
        tuning.collect_if_grown(3 * GROWTH_BYTES)
        tuning.collect_if_grown(5 * GROWTH_BYTES)
        assert cycle() is not None
        tuning.collect_if_grown(6 * GROWTH_BYTES)
        assert cycle() is None


def test_with_many_cycles_the_collector_works_as_usual():
    with GcTuning() as tuning:
        tuning.collect_if_grown(100)
        for _ in range(NEW_OBJECTS):
            Node()
        tuning.collect_if_grown(1000 + 2 * GROWTH_BYTES)
        assert not tuning.freezing
        nodes = []
        for _ in range(100_000):
            nodes.append(weakref.ref(Node()))
        assert sum(node() is not None for node in nodes) < 50_000


def test_an_explicit_collection_finds_what_was_frozen():
    with GcTuning():
        cycle = weakref.ref(Node())
        held = allocate(2 * NEW_OBJECTS)
        assert cycle() is not None
        gc.collect()
        assert cycle() is None
        del held


def test_a_function_that_removes_all_callbacks_does_no_harm(monkeypatch):
    monkeypatch.setattr(gc, "callbacks", [])
    with GcTuning() as tuning:
        tuning.collect_if_grown(100)
        gc.callbacks.clear()
        for _ in range(NEW_OBJECTS):
            Node()
        tuning.collect_if_grown(1000 + 2 * GROWTH_BYTES)


@pytest.mark.parametrize("many", [False, True])
def test_the_process_is_as_it_was_afterwards(many):
    # Python 3.12 starts with frozen objects of its own, and unfreezes them with the others.
    before, frozen = (gc.get_threshold(), list(gc.callbacks)), gc.get_freeze_count()
    with GcTuning() as tuning:
        if many:
            tuning.collect_if_grown(100)
            for _ in range(NEW_OBJECTS):
                Node()
            tuning.collect_if_grown(1000 + 2 * GROWTH_BYTES)
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() <= frozen
