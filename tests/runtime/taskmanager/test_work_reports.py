"""What a worker reports about the work of its tasks, and when it looks at keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.key_sampler import KeySampler
from penstock.runtime.taskmanager.work_reports import MOST_SPLITS, WorkReports

LINK = 0


class Worker:
    """A worker with one task, whose figures a test sets."""

    def __init__(self, splits: list[str] | None = None, process: Any = None) -> None:
        self.now = 100.0
        self.keys = KeySampler({LINK: abs})
        self.slices = SimpleNamespace(busy_seconds=0.0)
        self.outputs = SimpleNamespace(blocked_seconds=0.0)
        operator = SimpleNamespace(records_in=0)
        source = None
        if splits is not None:
            source = SimpleNamespace(open_splits=splits, reading_seconds=1.5)
        task = SimpleNamespace(
            id=(4, 1),
            slices=self.slices,
            outputs=self.outputs,
            keys=self.keys,
            ended=False,
            source_input=source,
            chain=SimpleNamespace(root=SimpleNamespace(operator=operator)),
        )
        self.runner: Any = SimpleNamespace(task=task)
        self.reports = WorkReports(lambda: self.now, process)

    def report(self, busy: float, blocked: float = 0.0) -> list[Any]:
        """Report after half a second in which the task was busy and blocked for so long."""
        self.now += 0.5
        self.slices.busy_seconds += busy
        self.outputs.blocked_seconds += blocked
        clock, [row], _ = self.reports.fields([self.runner])
        assert clock == self.now
        return row


def test_a_task_reports_its_figures():
    worker = Worker([f"s{n}" for n in range(9)], lambda: [1.0, 2.0])
    assert worker.report(0.1) == [4, 1, 0, 1.5, False, ["s0", "s1", "s2", "s3", "s4"], 0, []]
    assert MOST_SPLITS == 5
    assert worker.reports.fields([])[2] == [1.0, 2.0]


def test_a_task_without_a_source_or_a_process_of_its_own_reports_less():
    worker = Worker()
    assert worker.report(0.1) == [4, 1, 0, 0.0, False, [], 0, []]
    assert worker.reports.fields([])[2] == []


def test_keys_are_looked_at_only_if_the_task_was_at_work_for_most_of_the_time():
    worker = Worker()
    worker.report(0.5)
    assert not worker.keys.wanted, "the first report has nothing to compare with"
    worker.report(0.2)
    assert not worker.keys.wanted
    worker.report(0.1, 0.3)
    assert worker.keys.wanted
    worker.keys.sample(LINK, RecordBatch([-7, 7, 3]))
    assert worker.report(0.0)[-2:] == [3, [["7", 2], ["3", 1]]]
    assert not worker.keys.wanted
