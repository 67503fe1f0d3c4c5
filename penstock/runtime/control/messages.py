"""The messages between the JobManager and TaskManagers: a closed set of frozen dataclasses.

On the wire a message is a msgpack list of its number and its fields, so that nothing is looked up
by a name that came over a connection. A task is identified by chain and subtask.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.control.packing import build, pack, unpack

__all__ = [
    "Abort",
    "Acknowledge",
    "CloseLoop",
    "Complete",
    "Decline",
    "Deploy",
    "EndInput",
    "Failed",
    "Heartbeat",
    "Hello",
    "Inject",
    "InputEnded",
    "Message",
    "Metrics",
    "NoMoreSplits",
    "OutsideEnded",
    "Prepare",
    "Ready",
    "Shutdown",
    "SplitAssigned",
    "SplitWanted",
    "Start",
    "decode",
    "encode",
]


@dataclass(frozen=True)
class Hello:
    """A worker has connected; data connections to it are opened to `address`."""

    worker: int
    attempt: int
    pid: int
    address: str


@dataclass(frozen=True)
class Deploy:
    """Deploy the tasks of a worker.

    Arguments:
        attempt: the number of the execution attempt; no earlier attempt of the job had it.
        ordinal: the number of restarts of this run.
        code: the job's functions, pickled; see `job_code.py`.
        plan: the execution graph, pickled. It is made by the JobManager and holds no user code.
        types: `RecordSchema.to_wire` of each record class, in the order of the snapshots.
        addresses: of each worker, for data connections.
        handles: for each task "chain:subtask", the operator handles to restore, each with the
            folder of its snapshot, and whether the operator's parallelism has changed.
        lineage: of the snapshots of this run.
        root: the job's folder.
        keep: whether snapshots keep state.
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


@dataclass(frozen=True)
class Ready:
    """All tasks of the worker are open and its channels connected."""

    worker: int


@dataclass(frozen=True)
class Start:
    """Start the tasks: all workers are ready."""


@dataclass(frozen=True)
class SplitWanted:
    """A source task wants a split."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class SplitAssigned:
    """A split for a source task, to be read from `position`; None is its start."""

    chain: int
    subtask: int
    id: str
    payload: Any
    position: Any


@dataclass(frozen=True)
class NoMoreSplits:
    """There are no more splits for a source task."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class Prepare:
    """Prepare for snapshot `number`, which is due in `seconds`."""

    number: int
    seconds: float


@dataclass(frozen=True)
class Inject:
    """Emit barrier `number` from all sources of the worker."""

    number: int
    kind: str


@dataclass(frozen=True)
class Abort:
    """Snapshot `number` was aborted."""

    number: int


@dataclass(frozen=True)
class Complete:
    """Snapshot `number` is complete."""

    number: int


@dataclass(frozen=True)
class Acknowledge:
    """A task's part of snapshot `number` is durable.

    Arguments:
        handles: `OperatorHandle.to_wire` of each operator.
        committables: (lineage, uid, subtask, snapshot, attempt, payload) of each committable.
        new, linked: the bytes that were written, and those that were linked.
        aligned_seconds, write_seconds: the duration of the alignment and of the writing.
        blocked_seconds: for how long each input channel was blocked.
        log_records, log_bytes: the size of the logs of records in flight.
        loop: the fields of the task's `LoopStatus`; None if it is not in a loop.
        types: the indices of the record classes of which the worker has encoded instances.
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
    """A task cannot take part in snapshot `number`."""

    chain: int
    subtask: int
    number: int
    reason: str


@dataclass(frozen=True)
class InputEnded:
    """A task has processed all of its input."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class OutsideEnded:
    """A task has processed all input from outside of its loop."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class EndInput:
    """Run the end-of-input hooks of a quiet loop for the `round`-th time."""

    loop: int
    round: int


@dataclass(frozen=True)
class CloseLoop:
    """Pass the end of input on from the tasks of a loop: the loop has ended."""

    loop: int


@dataclass(frozen=True)
class Failed:
    """A task has failed, or the worker itself if `chain` is -1.

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
    """The metrics of a worker.

    Arguments:
        operators: [uid, subtask, records in, records out] of each operator.
        tasks: [chain, subtask, busy seconds, blocked seconds, queued elements, last snapshot for
            which it has copied its state] of each task.
        back_edges: [link, source, target, queued records, bytes on disk, most bytes on disk] of
            each back-edge.
        rss, peak: the resident memory in bytes, now and at most.
    """

    worker: int
    operators: list[list[Any]]
    tasks: list[list[Any]]
    back_edges: list[list[Any]]
    rss: int
    peak: int


@dataclass(frozen=True)
class Heartbeat:
    """The worker's process is alive; a thread of its own sends this."""

    worker: int
    attempt: int


@dataclass(frozen=True)
class Shutdown:
    """End the worker."""


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
)
_KINDS: tuple[type, ...] = Message.__args__
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def encode(message: Message) -> bytes:
    """Return a message as bytes. Raise `TypeError` or `OverflowError` if not plain."""
    values = [getattr(message, field.name) for field in fields(message)]
    return pack([_NUMBERS[type(message)], *values])


def decode(data: bytes) -> Message:
    """Return the message in `data`. Raise `ProtocolError` if it is malformed."""
    value = unpack(data)
    if not isinstance(value, list) or not value or value[0] not in range(len(_KINDS)):
        raise ProtocolError(f"malformed message: {data[:40]!r}")
    message: Message = build(_KINDS[value[0]], value[1:])
    return message
