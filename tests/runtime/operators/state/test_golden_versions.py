"""A snapshot of the first release with versions of states is read and converted by each later one.

The folder was written by `write`, with this module's program at version 2.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    open_snapshot,
)
from penstock.dataflow.program import RunOptions, run_options

GOLDEN = Path(__file__).parents[3] / "golden" / "versions"


class Versioned(KeyedProcessFunction, CheckpointedFunction):
    """Counts records in states of each kind with a version."""

    def __init__(self, version: int) -> None:
        migrate = None if version == 2 else lambda value, older: value + 100 * older
        self.options = {"version": version, "migrate": migrate}

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.all = store.get_list_state(ListStateDescriptor("all", **self.options))

    def snapshot_state(self, context: Any) -> None:
        pass

    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", **self.options))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", **self.options))
        # Without a version in the descriptor, the values are of version 1.
        self.plain = runtime_context.get_state(ValueStateDescriptor("plain"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.sum.update((self.sum.value() or 0) + value)
        self.seen.put("x", (self.seen.get("x") or 0) + 1)
        self.plain.update(value)
        self.all.add(value)
        yield ctx.get_current_key(), self.sum.value(), self.seen.get("x"), list(self.all.get())


def run(folder: Path, version: int, records: list[int], resume: Path | None = None) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True).enable_checkpointing(1_000_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder))
    stream = env.from_collection(records).uid(f"records of {version}")
    options = RunOptions(
        resume=None if resume is None else str(resume), fork=resume is not None, allow_dropped=True
    )
    with run_options(options):
        keyed = stream.key_by(lambda value: value % 2).process(Versioned(version)).uid("states")
        return list(keyed.execute_and_collect())


def write() -> None:
    """Write the golden folder."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    run(GOLDEN, 2, [1, 2, 3])


def test_states_of_the_golden_snapshot_are_converted_by_a_newer_program(tmp_path: Path) -> None:
    assert run(tmp_path / "job", 3, [5], GOLDEN) == [(1, 4 + 200 + 5, 203, [201, 202, 203, 5])]


def test_the_golden_snapshot_has_the_versions() -> None:
    with open_snapshot(GOLDEN) as snapshot:
        [handle] = [one for one in snapshot.manifest.handles if one.uid == "states"]
        assert snapshot.get("states", "sum", 1) == 4
    keyed, lists = handle.keyed, handle.operator_state
    assert keyed is not None and lists is not None
    assert {name: keyed.version(index) for index, name in enumerate(keyed.states)} == {
        "sum": 2,
        "seen": 2,
        "plain": 1,
    }
    assert [(state.name, state.version) for state in lists.states] == [("all", 2)]
