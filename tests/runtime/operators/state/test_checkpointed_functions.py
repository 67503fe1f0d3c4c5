"""Functions with operator state: what they hold at a barrier is theirs again after a restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CheckpointedFunction,
    FlatMapFunction,
    GraphError,
    JobError,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ProcessWindowFunction,
    RestartStrategies,
    SinkFunction,
    StreamExecutionEnvironment,
)
from penstock.dataflow.program import RunOptions, run_options
from tests.processes.parts import PartedSource, let_all_go


def environment(folder: Path, parallelism: int = 1) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism).enable_checkpointing(10).set_in_process(True)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder / "job"))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 0))
    return env


class Pairs(FlatMapFunction, CheckpointedFunction):
    """Emits records in pairs, and holds an odd one back; fails once after a snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor("waiting"))
        self.waiting = list(self.saved.get())
        self.restored = context.is_restored()
        assert (context.get_restored_checkpoint_id() is not None) == self.restored
        self.snapshots = 0
        self.opened = False

    def open(self, runtime_context: Any) -> None:
        assert self.snapshots == 0
        self.opened = True

    def snapshot_state(self, context: Any) -> None:
        assert self.opened
        assert context.get_checkpoint_id() > 0
        assert context.get_checkpoint_timestamp() > 1_600_000_000_000
        if self.snapshots > 2 and not self.restored and len(self.waiting) == 1:
            let_all_go(self.folder)
            raise ValueError("once")
        self.saved.update(self.waiting)
        self.snapshots += 1

    def flat_map(self, value: int) -> Any:
        self.waiting.append(value)
        if len(self.waiting) == 2:
            yield tuple(self.waiting)
            self.waiting.clear()


def test_a_restart_gives_a_function_its_list_back(tmp_path: Path) -> None:
    env = environment(tmp_path)
    # An odd number of records before the failure, so that one waits whenever a snapshot is taken.
    source = PartedSource(tmp_path / "gate", 2, lambda i: i, 1_202, 20_000)
    pairs = env.from_source(source, None, "numbers").flat_map(Pairs(tmp_path / "gate"))
    found = [n for pair in pairs.execute_and_collect() for n in pair]
    assert sorted(found) == list(range(1_202))


class Wrong(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        store.get_list_state(ListStateDescriptor("one"))
        assert store.get_registered_state_names() == {"one"}
        store.get_broadcast_state(MapStateDescriptor("two"))
        assert store.get_registered_broadcast_state_names() == {"two"}
        store.get_union_list_state(ListStateDescriptor("one"))

    def snapshot_state(self, context: Any) -> None:
        raise AssertionError

    def map(self, value: int) -> int:
        return value


def test_one_name_for_two_kinds_of_state_is_an_error_of_the_operator(tmp_path: Path) -> None:
    env = environment(tmp_path)
    stream = env.from_sequence(1, 3).map(Wrong()).name("wrong")
    with pytest.raises(JobError, match="'wrong' asked for a union list state 'one', and before"):
        list(stream.execute_and_collect())


class Failing(ProcessFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        assert not context.is_restored()

    def snapshot_state(self, context: Any) -> None:
        raise ValueError("no state today")

    def process_element(self, value: int, ctx: Any) -> Any:
        yield value


def test_an_error_in_snapshot_state_names_the_operator(tmp_path: Path) -> None:
    env = environment(tmp_path)
    env.set_restart_strategy(RestartStrategies.no_restart())
    stream = env.from_sequence(1, 3).process(Failing()).name("failing")
    with pytest.raises(JobError, match=r"no state today\nValueError in operator 'failing'"):
        list(stream.execute_and_collect())


class Buffering(SinkFunction, CheckpointedFunction):
    """Writes lines when it has ten; what it holds at a barrier is in its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor("lines"))
        self.lines = list(self.saved.get())
        self.restored = context.is_restored()
        self.snapshots = 0

    def open(self, runtime_context: Any) -> None:
        self.file = (self.folder / "lines").open("a")

    def snapshot_state(self, context: Any) -> None:
        if self.snapshots > 2 and not self.restored and self.lines:
            let_all_go(self.folder / "gate")
            raise ValueError("once")
        self.saved.update(self.lines)
        self.snapshots += 1

    def close(self) -> None:
        self.file.close()

    def invoke(self, value: int) -> None:
        self.lines.append(value)
        if len(self.lines) == 10:
            self.file.write("".join(f"{line}\n" for line in self.lines))
            self.file.flush()
            self.lines.clear()


def test_a_sink_function_has_operator_state(tmp_path: Path) -> None:
    env = environment(tmp_path)
    source = PartedSource(tmp_path / "gate", 2, lambda i: i, 2_010, 20_000)
    env.from_source(source, None, "numbers").add_sink(Buffering(tmp_path))
    env.execute("buffering")
    lines = Counter(int(line) for line in (tmp_path / "lines").read_text().split())
    # The function writes at once, so lines may come twice, but none is lost.
    assert sorted(lines) == list(range(2_010))


class SumOfWindows(ProcessWindowFunction, CheckpointedFunction):
    """Sums up the records of a window; the number of windows so far is operator state."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor("windows"))
        self.windows = sum(self.saved.get())
        self.restored = context.is_restored()
        self.snapshots = 0

    def snapshot_state(self, context: Any) -> None:
        if self.snapshots > 2 and not self.restored and self.windows:
            let_all_go(Path(GATE[0]))
            raise ValueError("once")
        self.saved.update([self.windows])
        self.snapshots += 1

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        self.windows += 1
        yield self.windows, sum(elements)


GATE: list[str] = []


def test_a_window_function_has_operator_state(tmp_path: Path) -> None:
    GATE[:] = [str(tmp_path / "gate")]
    env = environment(tmp_path)
    source = PartedSource(tmp_path / "gate", 2, lambda i: i, 1_000, 20_000)
    windows = env.from_source(source, None, "numbers").key_by(lambda i: i % 3).count_window(4)
    found = list(windows.process(SumOfWindows()).execute_and_collect())
    assert sorted(number for number, _ in found) == list(range(1, 250))
    # Each of the three keys has 83 whole windows. The last records fill none.
    assert sum(total for _, total in found) == sum(range(996))


def held(env: StreamExecutionEnvironment, uid: str | None) -> Any:
    stream = env.from_sequence(1, 9).uid("numbers").flat_map(Pairs(Path())).name("hold")
    return stream if uid is None else stream.uid(uid)


def test_a_resumed_program_must_have_the_operators_with_operator_state(tmp_path: Path) -> None:
    with run_options(RunOptions()):
        env = environment(tmp_path)
        held(env, "hold").print()
        env.execute("holding")
    for build, words in (
        (lambda env: held(env, "other").print(), "'other' now, give that its former uid 'hold'"),
        (lambda env: env.from_sequence(1, 9).uid("numbers").print(), "its state would be lost"),
        (
            lambda env: env.from_sequence(1, 9).uid("numbers").map(str).uid("hold").print(),
            "it was a flat_map and is a map",
        ),
    ):
        env = environment(tmp_path)
        build(env)
        with run_options(RunOptions(resume="newest")), pytest.raises(GraphError, match=words):
            env.execute("holding")
    env = environment(tmp_path)
    held(env, "hold").print()
    with run_options(RunOptions(resume="newest")):
        env.execute("holding")
