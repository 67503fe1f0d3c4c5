"""Operator state: what is captured is restored, at any parallelism, as Flink redistributes it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.dataflow.errors import GraphError, StoreError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.handles import OperatorStateHandle, SnapshotBytes, StateMode
from penstock.snapshot.state.operator_state import (
    OperatorStateBackend,
    OperatorStateSnapshot,
    PackedState,
    read_operator_state,
    redistribute,
)

SPLIT, UNION, BROADCAST = StateMode.SPLIT, StateMode.UNION, StateMode.BROADCAST


def backend() -> OperatorStateBackend:
    return OperatorStateBackend("op", Codec(TypeRegistry([])))


def written(
    snapshot: OperatorStateSnapshot | None, path: Path, inline_threshold: int = 1 << 16
) -> tuple[OperatorStateHandle, SnapshotBytes]:
    assert snapshot is not None
    steps, answer = snapshot.write(path, inline_threshold), None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            handle, size = stop.value
            return handle, size
        assert step is not None
        answer = step()


def filled() -> OperatorStateBackend:
    state = backend()
    state.list_state("pending", SPLIT).replace([1, "two", (3, [4])])
    state.list_state("offsets", UNION).replace([])
    state.broadcast_state("rules").to_change().update({"a": 1, ("b", 2): [None]})
    return state


@pytest.mark.parametrize("inline_threshold", [0, 1 << 16])
def test_what_is_captured_is_restored(tmp_path: Path, inline_threshold: int) -> None:
    handle, size = written(filled().capture(), tmp_path / "op.state", inline_threshold)
    assert len(handle.files) == (0 if inline_threshold else 1)
    handle = OperatorStateHandle.from_wire(handle.to_wire())
    again = backend()
    again.restore(read_operator_state(handle, tmp_path))
    assert again.modes == {"pending": SPLIT, "offsets": UNION, "rules": BROADCAST}
    assert again.list_state("pending", SPLIT).values == [1, "two", (3, [4])]
    assert again.list_state("offsets", UNION).values == []
    assert again.broadcast_state("rules").entries == {"a": 1, ("b", 2): [None]}
    assert written(again.capture(), tmp_path / "two") == (
        written(filled().capture(), tmp_path / "three")[0],
        size,
    )


def test_a_subtask_without_operator_state_writes_nothing() -> None:
    assert backend().capture() is None


def test_later_changes_are_not_in_a_captured_snapshot() -> None:
    state = filled()
    values = state.list_state("pending", SPLIT).values
    rules = state.broadcast_state("rules")
    before = state.capture()
    values.append("later")
    rules.to_change()["c"] = 3
    after = state.capture()
    assert before is not None
    assert after is not None
    assert [len(part.elements) for part in before.states] == [3, 0, 2]
    assert [len(part.elements) for part in after.states] == [4, 0, 3]


def test_restored_state_that_nobody_asks_for_is_kept() -> None:
    before = filled().capture()
    assert before is not None
    state = backend()
    state.restore(before.states)
    assert state.capture() == before
    state.list_state("pending", SPLIT).replace([7])
    after = state.capture()
    assert after is not None
    assert [len(part.elements) for part in after.states] == [1, 0, 2]


def test_one_name_with_two_kinds_of_state_is_refused() -> None:
    state = filled()
    with pytest.raises(GraphError, match=r"union list state 'pending', and before .* a list state"):
        state.list_state("pending", UNION)
    again = backend()
    packed = state.capture()
    assert packed is not None
    again.restore(packed.states)
    with pytest.raises(GraphError, match="'op' asked for a broadcast state 'offsets', and in the"):
        again.broadcast_state("offsets")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    handle, _ = written(filled().capture(), tmp_path / "op.state", 0)
    path = tmp_path / "op.state"
    data = path.read_bytes()
    for damaged, words in (
        (data[:-1], "cut off"),
        (data + b"\0", "within the length"),
        (data + b"\0\0\0\0", "it has 6 elements"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="another checksum"):
            read_operator_state(handle, tmp_path)
        with pytest.raises(StoreError, match=words):
            read_operator_state(replace(handle, inline=damaged, files=()), tmp_path)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreError, match="another checksum"):
        read_operator_state(handle, tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match="cannot read operator state"):
        read_operator_state(handle, tmp_path)


def states(*lists: str, mode: StateMode = SPLIT) -> dict[int, list[PackedState]]:
    return {
        index: [PackedState("s", mode, [bytes([byte]) for byte in elements.encode()])]
        for index, elements in enumerate(lists)
    }


def shares(before: dict[int, list[PackedState]], old: int, new: int) -> list[str]:
    parts = [redistribute(before, i, new, rescaled=old != new) for i in range(new)]
    return [b"".join(part[0].elements).decode() for part in parts]


def test_a_list_stays_where_it_is_at_the_same_parallelism() -> None:
    assert shares(states("abc", "", "d"), 3, 3) == ["abc", "", "d"]


def test_a_list_is_divided_evenly_at_another_parallelism() -> None:
    assert shares(states("abc", "", "d"), 3, 2) == ["ab", "cd"]
    assert shares(states("abc", "de"), 2, 3) == ["ab", "cd", "e"]
    assert shares(states("a", ""), 2, 4) == ["a", "", "", ""]
    assert shares(states("abc", "de"), 2, 1) == ["abcde"]


def test_each_subtask_gets_all_of_a_union_list() -> None:
    assert shares(states("ab", "c", mode=UNION), 2, 2) == ["abc"] * 2
    assert shares(states("ab", "c", mode=UNION), 2, 3) == ["abc"] * 3


def test_each_subtask_gets_one_broadcast_state() -> None:
    # The states are equal in a real job. Here they differ, so that it shows which one is taken.
    assert shares(states("a", "b", mode=BROADCAST), 2, 2) == ["a", "b"]
    assert shares(states("a", "b", mode=BROADCAST), 2, 3) == ["a", "b", "a"]
    assert shares(states("a", "b", "c", mode=BROADCAST), 3, 2) == ["a", "b"]
    assert shares({1: states("", "b", mode=BROADCAST)[1]}, 3, 3) == ["b", "b", "b"]


def test_no_element_is_lost_or_doubled_by_rescaling_again_and_again() -> None:
    rng = random.Random(7)
    elements = [bytes([byte]) for byte in range(200)]
    parallelism = 3
    parts = [elements[:100], [], elements[100:]]
    for _ in range(50):
        before = {i: [PackedState("s", SPLIT, part)] for i, part in enumerate(parts) if part}
        new = rng.randint(1, 9)
        rescaled = new != parallelism
        after = [redistribute(before, i, new, rescaled=rescaled) for i in range(new)]
        parts = [list(states[0].elements) for states in after]
        assert [element for part in parts for element in part] == elements
        if rescaled:
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        parallelism = new
