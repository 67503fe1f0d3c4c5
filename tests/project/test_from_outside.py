"""A window assigner and a protocol that are written outside of the package.

`processes/own_operator.py` is an operator from outside, and the page on own connectors has the
source and the sink. The cookbook has a recipe for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    JsonLines,
    MapFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    TimeWindow,
    WatermarkStrategy,
    WindowAssigner,
)
from penstock.dataflow.windows import EventTimeTrigger
from penstock.runtime.taskmanager import task_factory
from penstock.snapshot.protocols.base import Phase, SnapshotProtocol
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    Event,
    SnapshotAborted,
    UnblockChannels,
)
from tests.processes.harness import committed
from tests.processes.parts import PartedSource, has_let_all_go, let_all_go

# ---- a window assigner


class Semesters(WindowAssigner):
    """Divides time into windows that begin at the numbers of a list."""

    def __init__(self, *starts: int) -> None:
        self.starts = starts

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        pairs = zip(self.starts, self.starts[1:], strict=False)
        return [TimeWindow(start, end) for start, end in pairs if start <= timestamp < end]

    def get_default_trigger(self, env: Any = None) -> EventTimeTrigger:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


def test_a_window_assigner_from_outside() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda number, _: number
    )
    numbers = env.from_collection([1, 4, 5, 11, 40]).assign_timestamps_and_watermarks(strategy)
    sums = numbers.key_by(lambda _: "all").window(Semesters(0, 5, 20)).reduce(lambda a, b: a + b)
    assert list(sums.execute_and_collect(in_process=True)) == [5, 16]


# ---- a protocol


class Waiting(SnapshotProtocol):
    """Blocks each input whose barrier has arrived, and takes the snapshot at the last barrier."""

    def __init__(self, inputs: Any) -> None:
        super().__init__(inputs)
        self.phase = Phase.IDLE
        self.blocked: set[Hashable] = set()

    def handle(self, event: Event) -> list[Command]:
        match event:
            case BarrierArrived(channel=channel, number=number):
                commands = self._supersede(number)
                if commands is None:
                    return []
                if channel is None:
                    return commands + self._taken(number)
                self.number, self.phase = number, Phase.ALIGNING
                self.blocked.add(channel)
                if self.blocked < set(self.inputs):
                    return [*commands, BlockChannel(channel)]
                unblock = [UnblockChannels(tuple(self.blocked - {channel}))]
                self._give_up()
                return commands + self._taken(number) + unblock
            case SnapshotAborted(number):
                return self._abort(number)
        return []

    def _taken(self, number: int) -> list[Command]:
        self.settled = number
        TAKEN.append(number)
        if len(set(TAKEN)) > 3:
            let_all_go(GATE[0])
        return [CopyState(number), Broadcast(number)]

    def _give_up(self) -> list[Command]:
        blocked, self.blocked = tuple(self.blocked), set()
        self.number, self.phase = None, Phase.IDLE
        return [UnblockChannels(blocked)] if blocked else []

    def validate(self) -> None:
        assert (self.number is None) == (not self.blocked)

    def _describe(self) -> str:
        return f"blocked {self.blocked}"


TAKEN: list[int] = []
FAILED: list[int] = []
GATE: list[Path] = []


class FailsOnce(MapFunction):
    """Raises an error at the first record that comes after some snapshots."""

    def map(self, value: int) -> int:
        if has_let_all_go(GATE[0]) and not FAILED:
            FAILED.append(value)
            raise ValueError("the fault of this test")
        return value


def _below(number: int) -> int:
    return -1 - number


def test_a_protocol_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own_protocol(config: Any, gate: Any) -> Waiting:
        return Waiting(gate.channels)

    monkeypatch.setattr(task_factory, "snapshot_protocol", own_protocol)
    TAKEN.clear()
    FAILED.clear()
    GATE[:] = [tmp_path / "gate"]
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).enable_checkpointing(10)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    first = env.from_source(PartedSource(GATE[0], 2, int, 1500, 2000), None, "first")
    second = env.from_source(PartedSource(GATE[0], 2, _below, 1500, 2000), None, "second")
    numbers = first.union(second).key_by(lambda number: number % 7).map(FailsOnce())
    numbers.sink_to(FileSink(tmp_path / "output", JsonLines()))
    env.execute(in_process=True)
    assert FAILED, "the job has not failed"
    assert Counter(committed(tmp_path / "output")) == Counter(range(-1500, 1500))
