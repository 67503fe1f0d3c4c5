"""States of a snapshot that the program requests under another name, late, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dataflow.errors import GraphError
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import KeyedBackend
from tests.snapshot.state.backends import ENGINE_IDS, ENGINES, GROUPS, as_rows, contents

#: Where the entries of a snapshot are, and the key groups that are restored from it.
PLACES = [
    ("inline", range(GROUPS)),
    ("blocks", range(GROUPS)),
    ("rows", range(GROUPS)),
    ("inline", range(8)),
    ("blocks", range(8)),
    ("rows", range(8)),
]


@pytest.fixture(params=ENGINES, ids=ENGINE_IDS)
def engine(request: pytest.FixtureRequest) -> Any:
    """Each kind of database, for all tests of this module."""
    return request.param


def snapshot(make: Any, place: str) -> KeyedHandle:
    backend = make(inline_threshold=65536 if place == "inline" else 0)
    for number in range(200):
        backend.table("kept").put(number, number)
        backend.table("gone").put(number, -number)
        backend.composite_table("lists", StateKind.MAP).put((number, 1), number)
    if place == "rows":
        as_rows(backend)
    return make.snapshot(backend, 1)


def names(tables: Any) -> list[str]:
    return [table.name for table in tables]


@pytest.mark.parametrize(("place", "groups"), PLACES)
def test_dropped_states_are_in_no_later_snapshot(make: Any, place: str, groups: range) -> None:
    restored = make.restored(snapshot(make, place), groups=groups, inline_threshold=0)
    kept = contents(restored, "kept")
    restored.table("kept")
    gone, new = restored.end_opening()
    assert (names(gone), names(new)) == (["gone", "lists"], [])
    for table in gone:
        restored.drop(table.name)
    assert contents(restored, "gone") == contents(restored, "lists") == {}
    assert contents(restored, "kept") == kept and len(kept) > 50
    again = make.restored(make.snapshot(restored, 2), groups=groups)
    assert contents(again, "gone") == contents(again, "lists") == {}
    assert contents(again, "kept") == kept
    again.table("kept")
    assert again.end_opening() == ([], [])
    # The names are free for states of the same kind.
    again.table("gone").put(3, "new")
    assert contents(again, "gone") == {3: "new"}


@pytest.mark.parametrize(("place", "groups"), PLACES)
def test_a_renamed_state_has_its_entries(make: Any, place: str, groups: range) -> None:
    restored = make.restored(snapshot(make, place), groups=groups, inline_threshold=0)
    before = contents(restored, "gone")
    table = restored.table("renamed", aliases=["never", "gone"])
    lists = restored.composite_table("maps", StateKind.MAP, ["lists"])
    restored.table("kept")
    assert restored.end_opening() == ([], [])
    key = next(iter(before))
    assert (table.get(key), lists.get((key, 1))) == (-key, key)
    table.put(key, "changed")
    again = make.restored(make.snapshot(restored, 2), groups=groups)
    assert contents(again, "renamed") == {**before, key: "changed"}
    assert set(again.tables.names) == {"kept", "renamed", "maps"}


def halves(make: Any, names: tuple[str, str], keys: range = range(100)) -> list[KeyedHandle]:
    """Return the handles of two subtasks, whose state has different names."""
    handles = []
    for groups, name in zip((range(8), range(8, GROUPS)), names, strict=True):
        backend = make(groups, inline_threshold=65536)
        for key in keys:
            if backend.storage.row_keys.group(key, is_composite=False) in groups:
                backend.table(name).put(key, [key])
        handles.append(make.snapshot(backend, 1))
    return handles


def test_a_state_that_only_some_subtasks_renamed_is_put_together(make: Any) -> None:
    restored = make.restored(*halves(make, ("old", "new")))
    restored.end_opening()
    restored.table("new", aliases=["old"])
    assert contents(restored, "new") == {key: [key] for key in range(100)}
    assert contents(restored, "old") == {}


def test_states_with_entries_of_the_same_keys_are_not_put_together(make: Any) -> None:
    restored = make.restored(snapshot(make, "inline"))
    with pytest.raises(GraphError, match="has both a state 'kept' and a state 'gone'"):
        restored.table("kept", aliases=["gone"])


def test_the_alias_of_a_state_that_is_requested_is_left_alone(make: Any) -> None:
    restored = make.restored(snapshot(make, "inline"))
    restored.table("gone")
    assert contents(restored, "gone")
    restored.table("other", aliases=["gone"])
    assert contents(restored, "other") == {}


def late_states(make: Any, backend: KeyedBackend, number: int) -> set[str]:
    handle = make.snapshot(backend, number)
    assert handle == KeyedHandle.from_wire(handle.to_wire())
    return {handle.states[state_id] for state_id in handle.late}


def test_a_snapshot_says_which_states_were_requested_late(make: Any) -> None:
    backend = make()
    backend.expect("expected")
    backend.table("early").put(1, 1)
    backend.end_opening()
    for name in ("late", "expected"):
        backend.table(name).put(1, 1)
    assert late_states(make, backend, 1) == {"late"}
    restored = make.restored(make.snapshot(backend, 2))
    restored.table("early")
    gone, _ = restored.end_opening()
    assert names(gone) == ["expected"]
    assert late_states(make, restored, 3) == {"late"}
    again = make.restored(make.snapshot(backend, 4))
    again.table("late")
    again.end_opening()
    assert late_states(make, again, 5) == set()


def test_a_late_state_that_may_have_been_renamed_is_reported(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    backend = make()
    backend.end_opening()
    backend.table("stat").put(1, 1)
    restored = make.restored(make.snapshot(backend, 1))
    restored.end_opening()
    restored.composite_table("lists", StateKind.LIST)
    assert not caplog.messages
    for _ in range(2):
        restored.table("stats")
    (message,) = caplog.messages
    assert "state 'stats' is new" in message and "aliases=['stat']" in message
    restored.table("stat")
    restored.table("other")
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("late", [(), (1,)])
def test_late_states_are_written_for_ever_behind_the_rest_of_a_handle(late: tuple[int]) -> None:
    kinds = StateKind.VALUE, StateKind.LIST
    handle = KeyedHandle(0, 128, ("s", "t"), b"", kinds=kinds, expiring=(0,), late=late)
    wire = [0, 128, ["s", "t"], b"", None, [], ["value", "list"], [0]]
    # A handle without late states is as it was before there were any.
    assert handle.to_wire() == [*wire, *map(list, filter(None, [late]))]
    assert KeyedHandle.from_wire(handle.to_wire()) == handle


@pytest.mark.parametrize(
    ("before", "after", "warned"),
    [
        ("a", "b", False),
        (1, 2.5, False),
        ("a", 1, True),
        (("a", 1), ("b", 2), False),
        (("a", 1), "a", True),
        (("a", 1), ("a", "b"), True),
        (None, "a", True),
    ],
)
def test_keys_of_another_kind_are_reported_at_the_first_snapshot(
    make: Any, caplog: pytest.LogCaptureFixture, before: Any, after: Any, warned: bool
) -> None:
    backend = make()
    backend.table("s").put(before, 1)
    backend.composite_table("m", StateKind.MAP).put((before, 1), 1)
    restored = make.restored(make.snapshot(backend, 1))
    restored.table("s")
    restored.end_opening()
    make.snapshot(restored, 2)  # no record yet
    restored.table("s").put(after, 1)
    make.snapshot(restored, 3)
    restored.table("s").put(5, 1)
    make.snapshot(restored, 4)
    assert [f"keys such as {after!r}" in message for message in caplog.messages] == [True] * warned
