"""Log the records that a barrier overtakes inside a task.

With unaligned snapshots, a barrier overtakes records in three places. Records in an input channel
are logged by the channel (`RecordedChannel`). Records in the current batch of the task and in its
output channels are logged by this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from penstock.runtime.network.channel_log import BatchLog, EdgeIdentity, Encode, InFlightLog
from penstock.runtime.network.elements import Barrier, TimeElement
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.serialization.record_batch import RecordBatch

#: The maximum size of replayed logs for which a snapshot may be taken during the replay, in bytes.
#: Such a snapshot logs the rest again and holds it in memory. With larger logs, snapshots wait for
#: the end of the replay.
REPLAY_BYTES = 32 << 20


class BarrierRelay:
    """Notifies the tasks of a worker of barriers, one task after the other.

    A barrier that overtakes records arrives at the next task of the worker at once. That task
    captures its state and sends the barrier to the task behind it. If each task notified the next
    one directly, a long job would overflow the stack. If each task handled the barrier in its next
    step, the barrier would wait for slow functions.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def __call__(self, notify: Callable[[], None]) -> None:
        """Call a function now, or after the function that this relay is calling."""
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
    """Logs the current batch and the output channels of one task.

    Arguments:
        relay: the relay that all tasks of the worker share.
        subtask: the index of the subtask.
        timeout: the alignment time after which barriers overtake records, in seconds.
        own_edge: the edge that identifies logs of records that a source has read but not processed.
        encode: a function that returns the bytes of a batch.
        keep: whether the logs store the records, and not only their number.
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
        """Send a barrier ahead of all records in the outputs, and return logs of these records."""
        logs: list[InFlightLog] = []
        for output in outputs:
            batches = output.overtake(barrier)
            if batches:
                assert output.edge is not None
                logs.append(self._log(output.edge, self._subtask, output.target, batches))
        return logs

    def in_hand(
        self, batches: Iterable[tuple[InputChannel | None, RecordBatch | TimeElement]]
    ) -> list[InFlightLog]:
        """Return logs of the batches that the task has taken but not processed.

        Arguments:
            batches: each batch with its channel, which is None if the task's source read the
                batch. The rest of the current batch comes before batches that are being replayed.
        """
        logs: list[InFlightLog] = []
        for channel, group in groupby(batches, key=itemgetter(0)):
            records = [batch for _, batch in group if not isinstance(batch, RecordBatch) or batch]
            if channel is None:
                logs.append(self._log(self._own_edge, self._subtask, self._subtask, records))
            else:
                assert isinstance(channel, RecordedChannel)
                source = channel.id.source
                logs.append(self._log(channel.edge, source, self._subtask, records))
        return [log for log in logs if not log.empty]

    def _log(
        self,
        edge: EdgeIdentity,
        source: int,
        target: int,
        batches: Sequence[RecordBatch | TimeElement],
    ) -> BatchLog:
        return BatchLog(edge, source, target, batches, self._encode, self._keep)
