"""Deliver snapshot events, fire processing-time timers, and emit results of requests."""

from __future__ import annotations

from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.operators.requests import Held, OperatorRequests
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.activities.activity import Activity
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.processing_time import ProcessingTime
from penstock.runtime.task.snapshots.snapshot_driver import SnapshotDriver
from penstock.runtime.task.task_end import TaskEnd
from penstock.runtime.task.task_outputs import TaskOutputs


class SnapshotEvents(Activity):
    """Delivers events to the snapshot protocol that have come while the task was busy.

    Arguments:
        snapshots: runs the snapshot protocol of the task.
    """

    needs_credits = False

    def __init__(self, snapshots: SnapshotDriver) -> None:
        self._snapshots = snapshots

    def ready(self) -> bool:
        """Return whether there is an event, or the alignment of a snapshot has timed out."""
        snapshots = self._snapshots
        if snapshots.timer is not None and snapshots.timed_out():
            return True
        return bool(snapshots.events) and not snapshots.busy

    def step(self) -> bool:
        """Deliver the events."""
        self._snapshots.check_timer()
        self._snapshots.notify()
        return True

    def wake_at(self) -> float | None:
        """Return when the alignment of a snapshot times out."""
        timer = self._snapshots.timer
        return None if timer is None else timer[0]


class ProcessingTimeWork(Activity):
    """Fires timers by processing time, and emits periodic watermarks.

    In a source task, it waits for the end of a replay: the source may know a watermark already that
    belongs behind records of its log. Elsewhere, the replay may wait for a timer: the repetition of
    a request.

    Arguments:
        work: the processing-time work of the operators.
        own_log: the input gate if it replays the log of a source; None for other tasks.
        snapshots: the snapshots of the task. After the final barrier, nothing is emitted.
        end: returns whether the task has ended.
        outputs: the output channels of the task.
    """

    def __init__(
        self,
        work: ProcessingTime,
        own_log: InputGate | None,
        snapshots: SnapshotDriver,
        end: TaskEnd,
        outputs: TaskOutputs,
    ) -> None:
        self._work, self._own_log, self._snapshots = work, own_log, snapshots
        self._end, self._outputs = end, outputs

    def _may_emit(self) -> bool:
        if self._own_log is not None and self._own_log.replaying:
            return False
        return not self._end.ended and self._snapshots.may_emit

    def ready(self) -> bool:
        """Return whether a timer is due."""
        return self._may_emit() and self._work.is_due()

    def step(self) -> bool:
        """Do one piece of the work that is due."""
        self._work.step()
        self._outputs.send_full()
        return True

    def wake_at(self) -> float | None:
        """Return when the next timer is due."""
        return self._work.wake_at() if self._may_emit() else None


class RequestResults(Activity):
    """Emits the results of requests, and handles the elements that have waited for them.

    Arguments:
        requests: the requests of the first operator.
        chain: the operators of the task.
        snapshots: the snapshots of the task. After the final barrier, nothing is emitted.
        end: handles the elements that have waited.
        outputs: the output channels of the task.
    """

    def __init__(
        self,
        requests: OperatorRequests,
        chain: ChainRunner,
        snapshots: SnapshotDriver,
        end: TaskEnd,
        outputs: TaskOutputs,
    ) -> None:
        self._requests, self._chain, self._snapshots = requests, chain, snapshots
        self._end, self._outputs = end, outputs

    def ready(self) -> bool:
        """Return whether requests have ended, or an element has waited long enough."""
        return self._requests.ready and not self._end.ended and self._snapshots.may_emit

    def step(self) -> bool:
        """Emit the next results, or handle the next element."""
        output = self._requests.next_output()
        if isinstance(output, Held):
            self._release(output)
        else:
            self._emit(output)
        return True

    def _release(self, held: Held) -> None:
        self._end.receive_marker(held.channel, held.element)

    def _emit(self, results: RecordBatch) -> None:
        self._chain.emit_from(self._chain.root.operator, results)
        self._outputs.send_full()
