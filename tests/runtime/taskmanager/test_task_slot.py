"""The JobManager's messages reach the tasks that they are for."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.control import messages as m
from penstock.runtime.system.processor import WholeProcessor
from penstock.runtime.taskmanager.task_slot import TaskSlot
from penstock.snapshot.protocols.events import SnapshotKind


class Recorder:
    """Stands for a task and its runner; records the calls of both."""

    def __init__(self, chain: int, is_source: bool, calls: list[tuple[Any, ...]]) -> None:
        self.is_source = is_source
        self.last_snapshot = 0
        names = ("inject", "end_input", "snapshot_aborted")
        self.task = self._recording((chain, 0), calls, names)
        self.wake = lambda: calls.append((chain, "wake"))
        self.expect_barrier = lambda number: calls.append((chain, "expect_barrier", number))
        self.snapshot_over = lambda number: calls.append((chain, "snapshot_over", number))

    @staticmethod
    def _recording(id: tuple[int, int], calls: list[Any], names: tuple[str, ...]) -> Any:
        def method(name: str) -> Any:
            return lambda *arguments: calls.append((id[0], name, *arguments))

        return SimpleNamespace(id=id, **{name: method(name) for name in names})


def slot(calls: list[tuple[Any, ...]]) -> TaskSlot:
    """Return a slot with a source, chain 0, and chain 1, which is in loop 0."""
    plan: Any = SimpleNamespace(loop_of=lambda chain: 0 if chain == 1 else None)
    tasks: list[Any] = [Recorder(0, True, calls), Recorder(1, False, calls)]
    made = TaskSlot(lambda: 0.0, WholeProcessor(lambda: 0.0))
    made.deploy(plan, tasks, 0.0)
    return made


def test_barriers_are_injected_into_sources_and_expected_by_other_tasks() -> None:
    calls: list[tuple[Any, ...]] = []
    slot(calls).execute(m.Inject(3, "checkpoint"))
    assert calls == [
        (0, "inject", 3, SnapshotKind.CHECKPOINT),
        (0, "wake"),
        (1, "expect_barrier", 3),
    ]


def test_an_aborted_snapshot_reaches_all_tasks_and_wakes_them() -> None:
    calls: list[tuple[Any, ...]] = []
    slot(calls).execute(m.Abort(3))
    names = ("snapshot_aborted", 3), ("snapshot_over", 3), ("wake",)
    assert calls == [(chain, *name) for chain in (0, 1) for name in names]


def test_the_end_of_a_loop_reaches_the_tasks_of_that_loop() -> None:
    calls: list[tuple[Any, ...]] = []
    slot(calls).execute(m.EndInput(0, 2))
    assert calls == [(1, "end_input", 2), (1, "wake")]


def test_a_message_that_is_no_command_for_tasks_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a worker received a Ready"):
        TaskSlot(lambda: 0.0, WholeProcessor(lambda: 0.0)).execute(m.Ready(0))
