"""Handle the JobManager's messages to a task.

The task handles them between two slices of work. (Flink: the mailbox model of a `StreamTask`.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.source import Split
from penstock.runtime.network.elements import Barrier
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.task.activities.activity import Activity
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.slice_runner import SliceRunner
from penstock.runtime.task.snapshots.snapshot_driver import SnapshotDriver
from penstock.runtime.task.task_end import TaskEnd
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.runtime.task.watermark_tracker import WatermarkTracker


@dataclass(frozen=True)
class BarrierMail:
    """Requests that a source task begins a snapshot with this barrier."""

    barrier: Barrier


@dataclass(frozen=True)
class SplitMail:
    """Assigns a split to a source task, which reads it from its start."""

    split: Split


@dataclass(frozen=True)
class NoMoreSplitsMail:
    """Notifies a source task that it gets no more splits."""


@dataclass(frozen=True)
class EndOfInputMail:
    """Requests a round of end-of-input hooks: the task's loop has no records left."""

    round: int


@dataclass(frozen=True)
class LoopClosedMail:
    """Notifies a task that its loop has ended. The task then ends."""


Mail = BarrierMail | SplitMail | NoMoreSplitsMail | EndOfInputMail | LoopClosedMail


class Mailbox(Activity):
    """Handles the messages that have come for a task, in the order of their arrival.

    Messages are handled even without credits: a barrier can wait in the output channels, behind the
    records.

    Arguments:
        slices: processes batches. All records that the task has taken come before a message.
        event_time: the event time of the task.
        snapshots: handles barriers.
        end_of_input: the end-of-input hooks.
        end: ends the task.
        outputs: the output channels of the task.
        source_input: the splits of the task; None if it reads no source.
    """

    needs_credits = False

    def __init__(
        self,
        slices: SliceRunner,
        event_time: WatermarkTracker,
        snapshots: SnapshotDriver,
        end_of_input: EndOfInputTracker,
        end: TaskEnd,
        outputs: TaskOutputs,
        source_input: SourceInput | None,
    ) -> None:
        self._messages: deque[Mail] = deque()
        self._slices, self._event_time, self._snapshots = slices, event_time, snapshots
        self._end_of_input, self._end = end_of_input, end
        self._outputs, self._source_input = outputs, source_input

    def append(self, mail: Mail) -> None:
        """Add a message."""
        self._messages.append(mail)

    def ready(self) -> bool:
        """Return whether the first message can be handled."""
        if not self._messages or self._slices.batch is not None or self._snapshots.busy:
            return False
        if self._snapshots.halted and isinstance(
            self._messages[0], EndOfInputMail | LoopClosedMail
        ):
            return False  # It would make the task emit elements.
        # Elements that the source has read come before the barrier of a snapshot.
        unsent = self._source_input is not None and self._event_time.running
        return not (unsent and self._outputs.blocked)

    def step(self) -> bool:
        """Handle the first message."""
        self._handle(self._messages.popleft())
        return True

    def handle_all(self) -> None:
        """Handle all messages, even if they would have to wait."""
        while self._messages:
            self._handle(self._messages.popleft())

    def _handle(self, mail: Mail) -> None:
        match mail:
            case BarrierMail(barrier):
                self._snapshots.inject(barrier)
            case EndOfInputMail(round):
                self._event_time.fire_last()
                if round:
                    self._end_of_input.begin(round)
            case LoopClosedMail():
                if not self._end.ended:
                    self._end.end()
            case _ if self._source_input is None:
                raise ProtocolError(f"{mail} for a task that reads no source")
            case SplitMail(split):
                self._source_input.assign(split)
            case NoMoreSplitsMail():
                self._source_input.no_more()
                if self._source_input.ended and not self._end.ended and self._snapshots.may_emit:
                    # The end comes before a barrier that was requested later. Otherwise this task
                    # would hold the watermark in that snapshot.
                    self._end.input_over()
