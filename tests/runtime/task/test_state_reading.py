"""Queries of the keyed state of a task: what they read, and that they change nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.runtime.control import messages as m
from penstock.runtime.control.state_queries import REFUSED, UNKNOWN
from penstock.runtime.task import state_reading
from penstock.runtime.task.state_reading import StateReading
from penstock.snapshot.metadata.state_kind import StateKind
from tests.snapshot.state.backends import Maker, as_rows


class Clock:
    """A clock that goes on at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def make(tmp_path):
    maker = Maker(tmp_path)
    yield maker
    for backend in maker.made:
        backend.close()


class Asked:
    """An activity that answers queries of one backend, and a client of it."""

    def __init__(self, backend: Any, step: float = 0.0, in_tables: bool = True) -> None:
        operator: Any = SimpleNamespace(name="Count", keeps_state_in_tables=in_tables)
        self.backend, self.clock = backend, Clock(step)
        self.queries = StateReading({"count": operator}, {"count": backend}, self.clock, self.clock)
        self.steps = 0

    def ask(self, state: str = "s", **more: Any) -> m.StateRead:
        """Return the answer to a query, after as many steps as it takes."""
        keys = [self.backend.codec.encode_value(key) for key in more.pop("keys", [])]
        fields = {"prefix": None, "top": 0, "by": "value", "limit": 100, **more}
        answers: list[m.StateRead] = []
        query = m.ReadState(1, 2, "q", fields.pop("operator", "count"), state, keys, **fields)
        self.queries.ask(query, answers.append)
        while not answers:
            if self.queries.ready():
                self.queries.step()
                self.steps += 1
            else:
                until = self.queries.wake_at()
                assert until is not None
                self.clock.now = max(self.clock.now, until)
        assert self.queries.wake_at() is None and not self.queries.ready()
        assert (answers[0].chain, answers[0].subtask, answers[0].id) == (1, 2, "q")
        return answers[0]

    def entries(self, state: str = "s", **more: Any) -> list[tuple[Any, Any]]:
        found = self.ask(state, **more)
        assert not found.problem, found.reason
        decode = self.backend.codec.decode_value
        return [(decode(key), decode(value)) for key, value in found.entries]


def levels(make: Maker) -> Any:
    """Return a backend whose entries are in all levels: a is clean, b captured, c and d dirty."""
    backend = make()
    table = backend.table("s")
    for key in "abe":
        table.put(key, [key])
    make.snapshot(backend, 1)
    table.put("b", ["b", 2])
    backend.capture(2)
    table.put("c", ["c"])
    table.delete("e")
    table.put("d", ["d"])
    return backend


def test_the_newest_entry_of_each_level_is_read(make):
    asked = Asked(levels(make))
    assert sorted(asked.entries()) == [
        ("a", ["a"]),
        ("b", ["b", 2]),
        ("c", ["c"]),
        ("d", ["d"]),
    ]
    for key, value in [("a", ["a"]), ("b", ["b", 2]), ("c", ["c"])]:
        assert asked.entries(keys=[key]) == [(key, value)]
    assert asked.entries(keys=["e"]) == []
    assert asked.backend.codec.decode_value(asked.ask(keys=["e"]).sample) in ("a", "b", "c", "d")


def test_a_read_moves_no_entry_and_marks_none_as_changed(make):
    backend = levels(make)
    table = backend.tables.named("s")

    def shape() -> Any:
        return [list(one) for one in (table.dirty, *table.captured, table.clean)]

    before = shape()
    asked = Asked(backend)
    asked.entries()
    for key in "abcde":
        asked.entries(keys=[key])
    assert shape() == before


def test_rows_in_the_database_are_read_once(make):
    backend = make(inline_threshold=0, memory_budget=1)
    table = backend.table("s")
    for number in range(1000):
        table.put(f"k{number:04}", number)
    as_rows(backend)
    table.put("k0007", 70)
    table.delete("k0008")
    asked = Asked(backend)
    expected = {f"k{n:04}": n for n in range(1000) if n != 8} | {"k0007": 70}
    found = asked.entries(limit=10_000)
    assert len(found) == len(expected) and dict(found) == expected
    assert asked.entries(keys=["k0999"]) == [("k0999", 999)]
    assert asked.entries(prefix="k099", limit=5) != []
    assert [value for _, value in asked.entries(top=3)] == [999, 998, 997]


@pytest.mark.parametrize("rows", [False, True])
def test_all_entries_of_a_key_of_a_map_are_read_and_no_others(make, rows):
    backend = make(inline_threshold=0, memory_budget=1) if rows else make()
    table = backend.composite_table("m", StateKind.MAP)
    for key in "ab":
        for part in range(10):
            table.put((key, part), part)
    if rows:
        as_rows(backend)
    table.put(("a", 3), 33)
    table.put(("a", 11), 11)
    table.delete(("a", 4))
    asked = Asked(backend)
    expected = {("a", p): p for p in range(10) if p != 4} | {("a", 3): 33, ("a", 11): 11}
    found = asked.entries("m", keys=["a"])
    assert dict(found) == expected and len(found) == len(expected)
    few = asked.ask("m", keys=["a"], limit=4)
    assert len(few.entries) == 4 and few.more
    assert asked.ask("m", keys=["a"]).kind == "map"


def test_the_bounds_of_a_list_are_no_entry(make):
    backend = make()
    table = backend.composite_table("l", StateKind.LIST)
    table.put(("a", 0), "x")
    table.put(("a", None), (0, 1))
    asked = Asked(backend)
    assert asked.entries("l") == asked.entries("l", keys=["a"]) == [(("a", 0), "x")]


def test_the_limit_the_prefix_and_the_largest_values(make):
    backend = make()
    table = backend.table("s")
    for number in range(500):
        table.put(f"k{number:03}", (number % 7, number))
    table.put(5, (100, -1))
    asked = Asked(backend)
    few = asked.ask(limit=10)
    assert len(few.entries) == 10 and few.more
    assert len(asked.entries(prefix="k49")) == 10
    best = asked.entries(top=2, by="value.1")
    assert [value for _, value in best] == [(499 % 7, 499), (498 % 7, 498)]
    assert [key for key, _ in asked.entries(top=1, by="value.0")] == [5]


def test_values_that_cannot_be_compared_are_refused(make):
    backend = make()
    backend.table("s").put("a", 1)
    backend.tables.named("s").put("b", "two")
    found = Asked(backend).ask(top=1)
    assert found.problem == REFUSED and "cannot be compared" in found.reason


def test_unknown_names_and_operators_without_readable_state_are_refused(make):
    backend = make()
    backend.table("s").put("a", 1)
    asked = Asked(backend)
    unknown = asked.ask("t")
    assert (unknown.problem, unknown.reason) == (UNKNOWN, "s")
    assert "no keyed state" in asked.ask(operator="other").reason
    arrays = Asked(backend, in_tables=False).ask()
    assert arrays.problem == REFUSED and "in arrays" in arrays.reason


def test_the_state_of_a_window_is_found_by_the_first_part_of_its_name(make):
    backend = make()
    backend.table("window-panes (size 5)").put("a", 1)
    asked = Asked(backend)
    assert asked.entries("window-panes") == [("a", 1)]
    backend.table("window-panes (size 6)").put("a", 2)
    assert asked.ask("window-panes").problem == UNKNOWN
    assert asked.entries("window-panes (size 6)") == [("a", 2)]


def test_a_scan_is_done_in_steps_with_pauses(make):
    backend = make()
    table = backend.table("s")
    for number in range(10_000):
        table.put(number, number)
    # Each look at the clock takes a millisecond, so each step reads one page.
    asked = Asked(backend, step=0.001)
    asked.queries.ask(
        m.ReadState(0, 0, "a", "count", "s", [], None, 1, "value", 1), lambda answer: None
    )
    assert asked.queries.ready() and asked.queries.step()
    assert not asked.queries.ready()
    until = asked.queries.wake_at()
    assert until is not None and until - asked.clock.now >= 3 * 0.001
    asked.clock.now = until
    # Entries may change between two steps.
    assert asked.queries.ready()
    for number in range(5_000, 15_000):
        table.put(number, -1)
    while asked.queries.wake_at() is not None:
        asked.clock.now += 1
        asked.queries.step()
    asked.steps = 0
    assert asked.entries(top=1) == [(4999, 4999)]
    assert asked.steps >= 15_000 // 256


def test_a_state_that_is_too_large_is_not_scanned(make, monkeypatch):
    monkeypatch.setattr(state_reading, "MAX_READ", 1000)
    backend = make()
    table = backend.table("s")
    for number in range(1500):
        table.put(number, number)
    asked = Asked(backend)
    found = asked.ask(top=1)
    assert found.problem == REFUSED and "more than 1,000 entries" in found.reason
    assert len(asked.entries(limit=10)) == 10
    assert asked.entries(keys=[1400]) == [(1400, 1400)]
