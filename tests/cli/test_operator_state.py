"""Operator state and broadcast state in `penstock snapshots`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from penstock import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
)
from penstock.cli import main

RULES = MapStateDescriptor("rules")


class Both(BroadcastProcessFunction, CheckpointedFunction):
    """Has broadcast state, a list and a union list."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.numbers = store.get_list_state(ListStateDescriptor("numbers"))
        store.get_union_list_state(ListStateDescriptor("names")).add(("a", None))

    def snapshot_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.numbers.add(value)
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)


def shown(*args: Any) -> str:
    result = CliRunner().invoke(main, ["snapshots", *map(str, args)])
    assert result.exit_code == 0, result.output
    return result.output


def test_operator_state_is_shown_with_its_elements(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True).enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    rules = env.from_collection([("x", 1), ("y", [2])]).set_parallelism(1).broadcast(RULES)
    both = env.from_sequence(1, 5).connect(rules).process(Both()).uid("both")
    assert sorted(both.execute_and_collect()) == [1, 2, 3, 4, 5]
    text = shown("show", tmp_path)
    for state in (
        "names (union list, 2 entries)",
        "numbers (operator list, 5 entries)",
        "rules (broadcast, 2 entries)",
    ):
        assert state in text
    details = json.loads(shown("show", tmp_path, "--json"))
    (operator,) = [found for found in details["operators"] if found["uid"] == "both"]
    assert operator["operator_states"] == [
        {"name": "names", "kind": "union list", "elements": 2},
        {"name": "numbers", "kind": "operator list", "elements": 5},
        {"name": "rules", "kind": "broadcast", "elements": 2},
    ]
    assert operator["inline_bytes"] > 0
    lines = shown("state", tmp_path, "--json", "--state", "rules").splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(e["part"], e["value"], e["subtask"]) for e in entries] == [
        (part, value, subtask) for subtask in (0, 1) for part, value in (("x", 1), ("y", [2]))
    ]
    assert all(e["kind"] == "broadcast" and e["key"] is e["key_group"] is None for e in entries)
    numbers = [json.loads(line) for line in shown("state", tmp_path, "--json").splitlines()]
    found = sorted(e["value"] for e in numbers if e["state"] == "numbers")
    assert found == [1, 2, 3, 4, 5]


class Draw(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.random = runtime_context.get_random()

    def map(self, value: int) -> int:
        return self.random.getrandbits(8)


def test_random_numbers_are_a_list_of_the_operator_that_draws(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True).enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    drawn = env.from_sequence(1, 5).map(Draw()).uid("draw").map(str).uid("text")
    assert len(list(drawn.execute_and_collect())) == 5
    assert "penstock.random_numbers (operator list, 2 entries)" in shown("show", tmp_path)
    lines = shown("state", tmp_path, "--json", "--operator", "draw").splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(entry["subtask"], entry["value"][:2]) for entry in entries] == [
        (0, [0, 2]),
        (1, [1, 2]),
    ]
