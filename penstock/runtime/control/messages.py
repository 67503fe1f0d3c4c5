"""The messages between the JobManager and its TaskManagers, as frozen dataclasses.

A message is sent as a msgpack list: the number of its class, and then its fields. The receiver
finds the class by that number, and never by a name from the connection. A message identifies a task
by the index of its chain and of its subtask.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.control.packing import build, pack, unpack


@dataclass(frozen=True)
class Hello:
    """Reports that a worker has connected.

    Other workers open their data connections to `address`.
    """

    worker: int
    attempt: int
    pid: int
    address: str


@dataclass(frozen=True)
class Deploy:
    """Orders a worker to deploy its tasks.

    Arguments:
        attempt: the number of the execution attempt. No earlier attempt of the job had it.
        ordinal: the number of restarts of this run.
        code: the job's functions, pickled; see `job_code.py`.
        plan: the execution graph, pickled. The JobManager has compiled it; it has no user code.
        types: the schema of each record class as `RecordSchema.to_wire` returns it, in the order
            in which snapshots number the classes.
        addresses: the address of each worker, for data connections.
        handles: a list of [folder, handle, rescaled, producers] for each task "chain:subtask". The
            task restores each operator handle from the snapshot in that folder. `rescaled` is
            whether the parallelism of the operator has changed, and `producers` are the uids of the
            producers of its logs whose parallelism has changed.
        lineage: the id of the lineage to which the snapshots of this run belong.
        root: the path of the job's folder.
        keep: whether snapshots contain the state of operators.
        restored: the number of the snapshot that the tasks restore; None if there is none.
        allow_dropped: whether tasks drop restored states that the program no longer has.
    """

    attempt: int
    ordinal: int
    code: bytes
    plan: bytes
    types: list[Any]
    addresses: list[str]
    handles: dict[str, list[Any]]
    lineage: str
    root: str
    keep: bool
    restored: int | None = None
    allow_dropped: bool = False
    python_files: bytes = b""


@dataclass(frozen=True)
class Ready:
    """Reports that all tasks of a worker are open, and that all its channels are connected."""

    worker: int


@dataclass(frozen=True)
class Start:
    """Orders a worker to start its tasks. The JobManager sends it when all workers are ready."""


@dataclass(frozen=True)
class SplitWanted:
    """Requests a split for a source task."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class SplitAssigned:
    """Assigns a split to a source task, which reads it from its start."""

    chain: int
    subtask: int
    id: str
    payload: Any


@dataclass(frozen=True)
class NoMoreSplits:
    """Notifies a source task that it will get no more splits."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class Prepare:
    """Orders the tasks to prepare for snapshot `number`, which is due in `seconds`."""

    number: int
    seconds: float


@dataclass(frozen=True)
class Inject:
    """Orders all sources of a worker to emit the barrier of snapshot `number`."""

    number: int
    kind: str


@dataclass(frozen=True)
class Abort:
    """Notifies the tasks that snapshot `number` was aborted."""

    number: int


@dataclass(frozen=True)
class Complete:
    """Notifies the tasks that snapshot `number` is complete."""

    number: int


@dataclass(frozen=True)
class Acknowledge:
    """Reports that a task's part of snapshot `number` is durable.

    Arguments:
        handles: the handle of each operator, as `OperatorHandle.to_wire` returns it.
        committables: (lineage, uid, subtask, snapshot, attempt, payload) of each committable.
        new, linked: the bytes that were newly written, and the bytes linked from earlier
            snapshots.
        aligned_seconds, write_seconds: the duration of the alignment and of the writing.
        blocked_seconds: for each input channel, the time for which it was blocked.
        log_records, log_bytes: the size of the task's in-flight logs.
        loop: the fields of the task's `LoopStatus`; None if the task is not in a loop.
        types: the indices of the record classes whose instances the worker has encoded.
    """

    chain: int
    subtask: int
    number: int
    handles: list[Any]
    committables: list[Any]
    new: int
    linked: int
    aligned_seconds: float
    blocked_seconds: list[float]
    write_seconds: float
    log_records: int
    log_bytes: int
    loop: list[Any] | None
    types: list[int]


@dataclass(frozen=True)
class Decline:
    """Reports that a task cannot take part in snapshot `number`."""

    chain: int
    subtask: int
    number: int
    reason: str


@dataclass(frozen=True)
class InputEnded:
    """Reports that a task has processed all of its input."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class OutsideEnded:
    """Reports that a task of a loop has processed all input from outside of the loop."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class EndInput:
    """Orders the tasks of a loop to run their end-of-input hooks in round `round`.

    The JobManager sends it when no records are left in the loop.
    """

    loop: int
    round: int


@dataclass(frozen=True)
class CloseLoop:
    """Orders the tasks of a loop that has ended to send the end of input downstream."""

    loop: int


@dataclass(frozen=True)
class Failed:
    """Reports the failure of a task, or of the worker itself if `chain` is -1.

    Arguments:
        error: the error as plain values; see `penstock.runtime.control.failures.describe`.
        recoverability: the value of a `Recoverability`.
    """

    chain: int
    subtask: int
    error: dict[str, Any]
    recoverability: str


@dataclass(frozen=True)
class Metrics:
    """Reports the metrics of a worker.

    Arguments:
        operators: [uid, subtask, records in, records out, watermark, waits] of each operator. The
            watermark is in milliseconds since the epoch, or None before the first one. `waits` is
            whether windows or timers wait for a watermark.
        tasks: [chain, subtask, busy seconds, blocked seconds, queued elements, captured, holder] of
            each task. `captured` is the number of the last snapshot for which the task has captured
            its state. `holder` is the input of the task with the lowest watermark: a list
            ["channel", link, source subtask], ["split", id], ["no split"] or ["no strategy"]. It is
            None if all inputs are idle or have ended.
        back_edges: [link, source, target, queued records, bytes on disk, maximum bytes on disk]
            of each channel of a back-edge.
        metrics: [uid, subtask, path, name, kind, value] of each metric of an operator; see
            `penstock.dataflow.metrics`. The path has the names of its groups, and a list
            [key, value] for a key-value group.
        rss, peak: the resident memory of the worker now, and its maximum, in bytes.
    """

    worker: int
    operators: list[list[Any]]
    tasks: list[list[Any]]
    back_edges: list[list[Any]]
    metrics: list[list[Any]]
    rss: int
    peak: int


@dataclass(frozen=True)
class SourceWatermark:
    """Reports the watermark of a source task whose watermark group is aligned.

    It is in milliseconds since the epoch; `MAX_WATERMARK` if no other source waits for the task.
    """

    chain: int
    subtask: int
    watermark: int


@dataclass(frozen=True)
class WatermarkLimit:
    """Orders a source task to read no split whose watermark is higher than the limit.

    The limit is in milliseconds since the epoch.
    """

    chain: int
    subtask: int
    limit: int


@dataclass(frozen=True)
class Heartbeat:
    """Reports that a worker's process is alive. A thread of the worker sends it."""

    worker: int
    attempt: int


@dataclass(frozen=True)
class Shutdown:
    """Orders a worker to end."""


Message = (
    Hello
    | Deploy
    | Ready
    | Start
    | SplitWanted
    | SplitAssigned
    | NoMoreSplits
    | Prepare
    | Inject
    | Abort
    | Complete
    | Acknowledge
    | Decline
    | InputEnded
    | OutsideEnded
    | EndInput
    | CloseLoop
    | Failed
    | Metrics
    | Heartbeat
    | Shutdown
    | SourceWatermark
    | WatermarkLimit
)
_KINDS: tuple[type, ...] = Message.__args__
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def encode(message: Message) -> bytes:
    """Return a message as bytes.

    Raises:
        TypeError: if a field has a value of a type that cannot be sent.
        OverflowError: if an integer needs more than 64 bits.
    """
    values = [getattr(message, field.name) for field in fields(message)]
    return pack([_NUMBERS[type(message)], *values])


def decode(data: bytes) -> Message:
    """Return the message in `data`. Raise `ProtocolError` if it is malformed."""
    value = unpack(data)
    if not isinstance(value, list) or not value or value[0] not in range(len(_KINDS)):
        raise ProtocolError(f"malformed message: {data[:40]!r}")
    message: Message = build(_KINDS[value[0]], value[1:])
    return message
