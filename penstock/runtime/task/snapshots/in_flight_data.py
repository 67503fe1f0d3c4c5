"""Log the records that a barrier overtakes inside a task.

With unaligned snapshots a record is in flight in one of four places. It is in an input channel,
which logs it (`RecordedChannel`). It is in the batch in processing, or in an output channel, and is
logged here. Or it comes later, behind the barrier.
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

#: A snapshot during the replay of larger logs waits for the end of the replay. The unreplayed rest
#: is logged again, and must be held in memory for that.
REPLAY_BYTES = 32 << 20


class BarrierRelay:
    """Notifies the tasks of a worker of barriers, one task after the other.

    A barrier that overtakes is at the next task of the worker at once, and at the task behind it
    when that task has captured its state. If each task notified the next one directly, the stack
    would become as deep as the job is long. If each waited for its turn to work, the barrier would
    wait for slow functions.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def __call__(self, notify: Callable[[], None]) -> None:
        """Call a function now, or after the calls that are running."""
        self._waiting.append(notify)
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._running = False


class InFlightRecorder:
    """Logs the batch in processing and the output channels of one task.

    Arguments:
        relay: of all tasks of the worker.
        subtask: index of the subtask.
        timeout: after this alignment time barriers overtake records, in seconds.
        own_edge: under which a source logs the records that it has read and not processed.
        encode: encodes a batch.
        keep: whether the logs hold the records, and not only their number.
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
        """Send a barrier ahead of everything that waits in the outputs; return logs of that."""
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
        """Return logs of the batches that the task has taken and not processed.

        Arguments:
            batches: each with the channel that it came from; None if the task's source read it.
                The rest of the current batch comes first, then batches that are being replayed.
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
