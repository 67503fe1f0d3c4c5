"""The messages between JobManager and TaskManagers: a closed set of frozen records.

On the wire a message is a msgpack list of its number and its fields; nothing is looked up by a
name that came over a connection. Tasks are (chain, subtask).
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
    """A worker calls home: which it is, of which attempt, and where its data channels listen."""

    worker: int
    attempt: int
    pid: int
    address: str


@dataclass(frozen=True)
class Deploy:
    """What a worker is to run.

    Arguments:
        attempt: the execution attempt, by a number that no attempt of the job had before.
        ordinal: how often this run has been restarted before.
        code: the job's functions (cloudpickle; see `code.py`).
        plan: the execution graph, pickled: it is code of ours, made by the JobManager.
        types: `RecordSchema.to_wire` of each record class, in the order that the snapshots know.
        addresses: where each worker's data channels listen.
        handles: per task "chain:subtask", the operator handles to restore, each with the folder
            of the snapshot that holds it, and whether its operator's parallelism has changed.
        lineage: of the snapshots of this run.
        root: the job's folder.
        keep: whether snapshots hold state.
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
    """All workers are ready: begin."""


@dataclass(frozen=True)
class SplitWanted:
    """A source task wants a split."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class SplitAssigned:
    """A split for a source task, from a position (None: its start)."""

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
    """Snapshot `number` is due in so many seconds."""

    number: int
    seconds: float


@dataclass(frozen=True)
class Inject:
    """Barrier `number` for all sources of the worker."""

    number: int
    kind: str


@dataclass(frozen=True)
class Abort:
    """Snapshot `number` was given up."""

    number: int


@dataclass(frozen=True)
class Complete:
    """Snapshot `number` is complete."""

    number: int


@dataclass(frozen=True)
class Acknowledge:
    """A task's part of snapshot `number` is durable.

    Arguments:
        handles: `OperatorHandle.to_wire` of each.
        committables: (lineage, uid, subtask, snapshot, attempt, payload) of each.
        new, linked: bytes.
        aligned_seconds, write_seconds: how long it took.
        blocked_seconds: for how long each input channel was blocked for it.
        log_records, log_bytes: of the logs of edges, in which records were in flight.
        loop: the fields of its `LoopStatus`, if the task is in a loop.
        types: indices of the record classes of which the worker has encoded instances.
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
    """A task has processed all input that comes from outside of its loop."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class EndInput:
    """A loop is quiet: its tasks run their end-of-input hooks, for the `round`-th time."""

    loop: int
    round: int


@dataclass(frozen=True)
class CloseLoop:
    """A loop has ended: its tasks pass the end of input on."""

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
    """A look at a worker.

    Arguments:
        operators: [uid, subtask, records in, records out] of each.
        tasks: [chain, subtask, busy seconds, blocked seconds, queued, last snapshot that it has
            copied its state for] of each.
        back_edges: [link, source, target, queued records, bytes on disk, most bytes on disk] of
            each.
        rss, peak: resident memory in bytes, now and at most.
    """

    worker: int
    operators: list[list[Any]]
    tasks: list[list[Any]]
    back_edges: list[list[Any]]
    rss: int
    peak: int


@dataclass(frozen=True)
class Heartbeat:
    """The worker's process lives; sent by a thread of its own."""

    worker: int
    attempt: int


@dataclass(frozen=True)
class Shutdown:
    """End the process."""


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
    """A message as bytes. Raises `TypeError` or `OverflowError` for a value that is not plain."""
    values = [getattr(message, field.name) for field in fields(message)]
    return pack([_NUMBERS[type(message)], *values])


def decode(data: bytes) -> Message:
    """The message again. Raises `ProtocolError` if there is none, or a field has a wrong type."""
    value = unpack(data)
    if not isinstance(value, list) or not value or value[0] not in range(len(_KINDS)):
        raise ProtocolError(f"malformed message: {data[:40]!r}")
    message: Message = build(_KINDS[value[0]], value[1:])
    return message
