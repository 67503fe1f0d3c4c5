"""What a task needs where barriers may overtake records: what they overtake is logged.

A record is then in flight in one of four places: in a channel (`RecordedChannel`), in the hands of
the task, or in an output, both of which are here; or it comes later, behind the barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from penstock.runtime.network.channel_log import BatchLog, EdgeIdentity, Encode, InFlightLog
from penstock.runtime.network.elements import Barrier
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.serialization.record_batch import RecordBatch

__all__ = ["REPLAY_BYTES", "BarrierRelay", "InFlightRecorder"]

#: A cut waits for the end of the replay if there was more than this to replay, since what is left
#: of it has to be held in memory to be logged again.
REPLAY_BYTES = 32 << 20


class BarrierRelay:
    """Has the tasks of a process hear of barriers one after the other.

    A barrier that overtakes is at the next task in the process at once, and at the one behind it
    as soon as that one has made its cut. If each told the next from within, a long job would be as
    deep a stack; if each waited for its turn to work, the barrier would wait for slow functions.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def __call__(self, hear: Callable[[], None]) -> None:
        """Call it now, or after those that came before it."""
        self._waiting.append(hear)
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._running = False


class InFlightRecorder:
    """Logs what one task has in hand and in its outputs.

    Arguments:
        relay: of all tasks of the process.
        subtask: of the task.
        timeout: seconds for which a snapshot is aligned before it is not.
        own_edge: what a source logs as its own: what it has read and not processed.
        encode: makes bytes of records.
        keep: whether the records are wanted, and not only their number.
    """

    def __init__(
        self,
        relay: BarrierRelay,
        subtask: int,
        timeout: float,
        own_edge: EdgeIdentity,
        encode: Encode,
        keep: bool,
    ) -> None:
        self.relay, self.timeout = relay, timeout
        self._subtask, self._own_edge = subtask, own_edge
        self._encode, self._keep = encode, keep

    def overtake(self, outputs: Sequence[OutputChannel], barrier: Barrier) -> list[InFlightLog]:
        """Send the barrier ahead of all that waits in the outputs; returns what that is."""
        logs: list[InFlightLog] = []
        for output in outputs:
            batches = output.overtake(barrier)
            if batches:
                assert output.edge is not None
                logs.append(self._log(output.edge, self._subtask, output.target, batches))
        return logs

    def in_hand(
        self, batches: Iterable[tuple[InputChannel | None, RecordBatch]]
    ) -> list[InFlightLog]:
        """Logs of what the task has taken and not processed, with the channels it came from.

        In this order: the rest of a batch, and what is left of the logs that are replayed.
        """
        logs: list[InFlightLog] = []
        for channel, group in groupby(batches, key=itemgetter(0)):
            records = [batch for _, batch in group if batch]
            if channel is None:
                logs.append(self._log(self._own_edge, self._subtask, self._subtask, records))
            else:
                assert isinstance(channel, RecordedChannel)
                source = channel.id.source
                logs.append(self._log(channel.edge, source, self._subtask, records))
        return [log for log in logs if log.records]

    def _log(
        self, edge: EdgeIdentity, source: int, target: int, batches: Sequence[RecordBatch]
    ) -> BatchLog:
        return BatchLog(edge, source, target, batches, self._encode, self._keep)
