"""Python's collector of cycles is kept away from state, and cycles are found all the same."""

import gc
import weakref

import pytest

from penstock.runtime.taskmanager import gc_tuning as garbage
from penstock.runtime.taskmanager.gc_tuning import GROWTH_BYTES, NEW_OBJECTS, Collector


class Node:
    """Refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_left_by_others():
    """What other tests of this process left in cycles must not count as found here.

    Nor what was set aside before (`conftest.py`), which the engine's collector puts back at its
    end.
    """
    gc.unfreeze()
    gc.collect()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def passes():
    """The number of objects that each pass of Python's collector went through."""
    seen = []

    def began(phase, info):
        if phase == "start":
            # After the collector of the engine has been told.
            seen.append(len(gc.get_objects(generation=0)))

    # Registered last, so that it is called last.
    yield lambda: gc.callbacks.append(began) or seen
    if began in gc.callbacks:
        gc.callbacks.remove(began)


def allocate(count):
    return [(i, i) for i in range(count)]


def test_new_objects_are_set_aside_and_not_gone_through(passes):
    with Collector():
        seen = passes()
        frozen = gc.get_freeze_count()
        held = allocate(3 * NEW_OBJECTS)
        assert len(seen) >= 2
        assert max(seen) < 100
        assert gc.get_freeze_count() - frozen > 2 * NEW_OBJECTS - 100
        del held


def test_cycles_are_found_when_memory_has_grown():
    with Collector() as collector:
        cycle = weakref.ref(Node())
        held = allocate(2 * NEW_OBJECTS)
        collector.look(100)
        collector.look(100 + GROWTH_BYTES)
        assert cycle() is not None
        collector.look(1000 + 2 * GROWTH_BYTES)
        assert cycle() is None
        # They were few.
        assert collector.setting_aside
        del held


def test_it_does_not_look_again_before_memory_has_grown_again(monkeypatch):
    monkeypatch.setattr(garbage, "memory", lambda: (3 * GROWTH_BYTES, 0))
    with Collector() as collector:
        collector.look(100)
        collector.look(3 * GROWTH_BYTES)
        cycle = weakref.ref(Node())
        collector.look(3 * GROWTH_BYTES)
        collector.look(5 * GROWTH_BYTES)
        assert cycle() is not None
        collector.look(6 * GROWTH_BYTES)
        assert cycle() is None


def test_whoever_makes_many_cycles_gets_pythons_collector():
    with Collector() as collector:
        collector.look(100)
        for _ in range(NEW_OBJECTS):
            Node()
        collector.look(1000 + 2 * GROWTH_BYTES)
        assert not collector.setting_aside
        nodes = []
        for _ in range(100_000):
            nodes.append(weakref.ref(Node()))
        assert sum(node() is not None for node in nodes) < 50_000


def test_somebody_who_collects_finds_what_was_set_aside():
    with Collector():
        cycle = weakref.ref(Node())
        held = allocate(2 * NEW_OBJECTS)
        assert cycle() is not None
        gc.collect()
        assert cycle() is None
        del held


def test_a_function_that_removes_all_callbacks_does_no_harm(monkeypatch):
    monkeypatch.setattr(gc, "callbacks", [])
    with Collector() as collector:
        collector.look(100)
        gc.callbacks.clear()
        for _ in range(NEW_OBJECTS):
            Node()
        collector.look(1000 + 2 * GROWTH_BYTES)


@pytest.mark.parametrize("many", [False, True])
def test_the_process_is_as_it_was_afterwards(many):
    before = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    with Collector() as collector:
        if many:
            collector.look(100)
            for _ in range(NEW_OBJECTS):
                Node()
            collector.look(1000 + 2 * GROWTH_BYTES)
    assert (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()) == before
