"""The messages between the JobManager and its TaskManagers, as frozen dataclasses.

A message is sent as a msgpack list: the number of its class, and then its fields. The receiver
finds the class by that number, and never by a name from the connection. A message identifies a task
by the index of its chain and of its subtask.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from penstock.dataflow.errors import JobError, ProtocolError
from penstock.runtime.control.packing import MAX_FRAME, build, pack, unpack


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
        handles: a list of [folder, handle, rescaled, producers, version] for each task
            "chain:subtask"; see `RestoredHandle`. The task restores each operator handle from the
            snapshot in that folder.
        lineage: the id of the lineage to which the snapshots of this run belong.
        root: the path of the job's folder.
        keep: whether snapshots contain the state of operators.
        restored: the number of the snapshot that the tasks restore; None if there is none.
        allow_dropped: whether tasks drop restored states that the program no longer has.
        python_files: the Python files of the job, as `pack_files` returns them.
        running: the workers that already run, because only some tasks restart.
        steps: the number of steps before those that the task of the worker repeats, and these
            steps, because others depend on them; empty if there are none. See
            `penstock.runtime.network.step_logs`.
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
    running: list[int] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Ready:
    """Reports that all tasks of a worker are open, and that all its channels are connected."""

    worker: int


@dataclass(frozen=True)
class Start:
    """Orders a worker to start its tasks. The JobManager sends it when all workers are ready."""


@dataclass(frozen=True)
class ReplaceSenders:
    """Orders a worker to receive from other workers in place of those that have died.

    Arguments:
        workers: the indices of the workers.
        attempt: the number of their attempt.
        snapshot: the snapshot from which their tasks restart; 0 for the beginning of the input.
    """

    workers: list[int]
    attempt: int
    snapshot: int


@dataclass(frozen=True)
class SendersReplaced:
    """Reports that a worker waits for the connections of the workers of `ReplaceSenders`.

    Arguments:
        worker: the index of the worker.
        steps: what the worker knows of the steps of the tasks that restart: a list of
            [chain, subtask, number of steps before, steps].
    """

    worker: int
    steps: list[Any]


@dataclass(frozen=True)
class CaughtUp:
    """Reports that a worker does what it did before a restart of tasks.

    A worker that has continued has dropped all records that it had processed. A task that has
    restarted has repeated all steps of its predecessor.
    """

    worker: int


@dataclass(frozen=True)
class SplitWanted:
    """Requests a split for a source task."""

    chain: int
    subtask: int


@dataclass(frozen=True)
class SplitAssigned:
    """Assigns a split to a source task, which reads it from its start.

    `sequence` says how many splits of its attempt were assigned before it.
    """

    chain: int
    subtask: int
    id: str
    payload: Any
    sequence: int


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
        aligned_seconds, capture_seconds, write_seconds: the duration of the alignment, of the
            capture and of the writing.
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
    capture_seconds: float
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
        clock: the time on the clock of the worker, in seconds.
        work: [chain, subtask, records, reading seconds, ended, splits, sampled, keys] of each task,
            to find slow ones; see `TaskWork`. `keys` is a list of [text of a key, number].
        process: the figures of `ProcessMeter.figures`; empty if there are none.
    """

    worker: int
    operators: list[list[Any]]
    tasks: list[list[Any]]
    back_edges: list[list[Any]]
    metrics: list[list[Any]]
    rss: int
    peak: int
    clock: float = 0.0
    work: list[list[Any]] = field(default_factory=list)
    process: list[float] = field(default_factory=list)


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


@dataclass(frozen=True)
class SampleStacks:
    """Requests the call stacks of a worker, which it samples for some seconds."""


@dataclass(frozen=True)
class StacksSampled:
    """Reports the call stacks of a worker.

    Arguments:
        worker, pid: the worker, and its process id.
        samples, frames, stacks: as in `SampledStacks`.
    """

    worker: int
    pid: int
    samples: int
    frames: list[str]
    stacks: list[list[int]]


@dataclass(frozen=True)
class Rejoin:
    """Offers the tasks of a worker to the next JobManager, since its own one has died.

    Arguments:
        worker, attempt, pid, address: as in `Hello`.
        code: the SHA-256 digest of the code that the worker has deployed.
        plan, types: as in `Deploy`.
        started: whether the tasks process records.
        completed: the newest snapshot whose completion the worker knows; 0 for none.
        pending: [number, kind] of each later snapshot that was announced or has begun. The kind is
            empty if it was only announced.
        splits: [sequence, chain, id, payload, after] of each split that was assigned after the
            barriers of snapshot `completed`. `after` is the newest snapshot whose barriers had been
            ordered before.
        wanted: the chains whose request for a split has no answer.
        ended: [chain, subtask] of each task that has processed all its input.
        outside_ended: [chain, subtask] of each task that has sent `OutsideEnded`.
        loop_ends: whether the end of a loop has begun.
    """

    worker: int
    attempt: int
    pid: int
    address: str
    code: bytes
    plan: bytes
    types: list[Any]
    started: bool
    completed: int
    pending: list[list[Any]]
    splits: list[list[Any]]
    wanted: list[int]
    ended: list[list[int]]
    outside_ended: list[list[int]]
    loop_ends: bool


@dataclass(frozen=True)
class ReadState:
    """Requests entries of the keyed state of a task; see `StateQuery`.

    Arguments:
        chain, subtask: the task.
        id: the id of the query, which the answer repeats.
        operator, state, keys, prefix, top, by, limit: as in `StateQuery`. Only keys that the task
            owns are among `keys`.
    """

    chain: int
    subtask: int
    id: str
    operator: str
    state: str
    keys: list[bytes]
    prefix: str | None
    top: int
    by: str
    limit: int


@dataclass(frozen=True)
class StateRead:
    """Answers `ReadState`.

    Arguments:
        chain, subtask: the task.
        id: the id of the query.
        problem, reason: why there is no answer; see `state_queries.PROBLEMS`. If the task has no
            such state, the reason is the names of its states, each in a line.
        kind: the kind of the state.
        expires: whether its values have a time to live.
        entries: [key, value] of each entry, encoded as in a snapshot.
        sample: the key of any entry, encoded, if none of the wanted keys has an entry.
        more: whether there are more entries than the limit.
    """

    chain: int
    subtask: int
    id: str
    problem: str = ""
    reason: str = ""
    kind: str = ""
    expires: bool = False
    entries: list[list[bytes]] = field(default_factory=list)
    sample: bytes = b""
    more: bool = False


@dataclass(frozen=True)
class SampleRecords:
    """Requests records that a task sends over a link from now on; see `RecordQuery`.

    Arguments:
        chain, subtask: the task.
        id: the id of the query, which the answer repeats.
        link: the id of the link.
        limit, seconds: as in `RecordQuery`.
    """

    chain: int
    subtask: int
    id: str
    link: int
    limit: int
    seconds: float


@dataclass(frozen=True)
class RecordsSampled:
    """Answers `SampleRecords`.

    Arguments:
        chain, subtask: the task.
        id: the id of the query.
        seen: the number of records that the task has sent meanwhile.
        records: [time, text] of some of them. The time is in milliseconds since the epoch.
    """

    chain: int
    subtask: int
    id: str
    seen: int
    records: list[list[Any]]


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
    | Rejoin
    | ReadState
    | StateRead
    | SampleStacks
    | StacksSampled
    | SampleRecords
    | RecordsSampled
    | ReplaceSenders
    | SendersReplaced
    | CaughtUp
)
_KINDS: tuple[type, ...] = Message.__args__
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def encode(message: Message) -> bytes:
    """Return a message as bytes.

    Raises:
        TypeError: if a field has a value of a type that cannot be sent.
        OverflowError: if an integer needs more than 64 bits.
        JobError: if the message is too large for a frame.
    """
    values = [getattr(message, one.name) for one in fields(message)]
    data = pack([_NUMBERS[type(message)], *values])
    if len(data) > MAX_FRAME:
        # The receiver would only break the connection.
        raise JobError(
            f"a message {type(message).__name__} has {len(data):,} bytes, and the limit is "
            f"{MAX_FRAME:,}"
        )
    return data


def decode(data: bytes) -> Message:
    """Return the message in `data`. Raise `ProtocolError` if it is malformed."""
    value = unpack(data)
    if not isinstance(value, list) or not value or value[0] not in range(len(_KINDS)):
        raise ProtocolError(f"malformed message: {data[:40]!r}")
    message: Message = build(_KINDS[value[0]], value[1:])
    return message
