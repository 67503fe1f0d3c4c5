"""Restored states whose values are all replaced before the first record."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.snapshot.state import MISSING
from tests.snapshot.state.backends import ENGINE_IDS, ENGINES, contents
from tests.snapshot.state.test_requested_states import PLACES, snapshot


@pytest.fixture(params=ENGINES, ids=ENGINE_IDS)
def engine(request: pytest.FixtureRequest) -> Any:
    """Each kind of database, for all tests of this module."""
    return request.param


@pytest.mark.parametrize(("place", "groups"), PLACES)
@pytest.mark.parametrize("memory", [None, 4096], ids=["in memory", "beyond memory"])
def test_each_value_is_converted_once(
    make: Any, place: str, groups: range, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.snapshot.state.backend._REWRITTEN_ROWS", 16)
    options = {} if memory is None else {"memory_budget": memory}
    restored = make.restored(snapshot(make, place), groups=groups, inline_threshold=0, **options)
    before, other = contents(restored, "kept"), contents(restored, "gone")
    assert len(before) > 50
    converted: list[Any] = []

    def convert(key: Any, value: Any) -> Any:
        converted.append(key)
        return MISSING if key % 10 == 3 else [value, "new"]

    restored.rewrite(restored.table("kept"), convert)
    expected = {key: [value, "new"] for key, value in before.items() if key % 10 != 3}
    assert sorted(converted) == sorted(before), "each of them once"
    assert contents(restored, "kept") == expected
    again = make.restored(make.snapshot(restored, 2), groups=groups)
    assert contents(again, "kept") == expected and contents(again, "gone") == other


@pytest.mark.parametrize(("place", "groups"), PLACES)
def test_the_version_of_a_state_is_in_its_snapshots(make: Any, place: str, groups: range) -> None:
    first = make.restored(snapshot(make, place), groups=groups)
    assert {table.version for table in first.tables} == {1}
    first.table("kept").version = 3
    handle = make.snapshot(first, 2)
    assert type(handle).from_wire(handle.to_wire()) == handle
    again = make.restored(handle, groups=groups)
    assert {table.name: table.version for table in again.tables} == {
        "kept": 3,
        "gone": 1,
        "lists": 1,
    }
