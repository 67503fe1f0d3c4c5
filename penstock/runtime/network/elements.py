"""Elements of a channel: batches of records, and markers between them.

Barriers overtake records only in unaligned snapshots. The overtaken records are then logged.
After `EndOfInput` no batches follow, but barriers may still follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.loop_probe import LoopProbe, ProbeRequest
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.protocols.events import SnapshotKind


class EncodedBatch:
    """A batch, received from a socket or read from disk, that is not decoded yet.

    Arguments:
        payload: the records, encoded by the codec of the channel.
        count: the number of records that the task processes.
        begin: the number of encoded records before them, which the task has processed before.
    """

    __slots__ = ("begin", "count", "payload")

    def __init__(self, payload: bytes | memoryview, count: int, begin: int = 0) -> None:
        self.payload = payload
        self.count = count
        self.begin = begin


@dataclass(frozen=True)
class Barrier:
    """Separates the records of snapshot `number` from the records behind it.

    An `urgent` barrier has overtaken records. The receiving task starts the snapshot at once, and
    does not try to align first.

    Examples:
        >>> sink = CollectingSink()
        >>> _ = env.from_source(TestSource(["a", Barrier, "b"])).sink_to(sink)
        >>> [snapshot["kind"] for snapshot in env.execute("letters").snapshots]
        ['checkpoint', 'savepoint', 'final']
    """

    number: int
    kind: SnapshotKind = SnapshotKind.CHECKPOINT
    urgent: bool = False


@dataclass(frozen=True)
class EndOfInput:
    """Marks the end of the data: no more batches follow.

    Examples:
        >>> sink = CollectingSink()
        >>> _ = env.from_source(TestSource(["a", EndOfInput])).sink_to(sink)
        >>> _ = env.execute("letters")
        >>> sink.values
        ['a']
    """


@dataclass(frozen=True)
class WatermarkStatus:
    """States whether watermarks come on this channel.

    The receiving task does not wait for watermarks of an idle channel. (Flink: `WatermarkStatus`.)
    """

    idle: bool


TimeElement = Watermark | WatermarkStatus
LoopElement = LoopProbe | ProbeRequest
Element = (
    RecordBatch
    | EncodedBatch
    | Barrier
    | EndOfInput
    | Watermark
    | WatermarkStatus
    | LoopProbe
    | ProbeRequest
)


def count_of(batch: RecordBatch | EncodedBatch) -> int:
    """Return the number of records in a batch."""
    return len(batch) if isinstance(batch, RecordBatch) else batch.count
