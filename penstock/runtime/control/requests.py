"""The requests to the job service and to a JobManager process.

Requests are sent as msgpack maps, and the types of their fields are checked when they are decoded.
The versions of client and server are compared first. So a client of another version gets an error
about the versions, and not about fields.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from penstock.dataflow.errors import PenstockError, ProtocolError
from penstock.runtime.control.packing import build_from_map, pack, unpack
from penstock.runtime.control.state_queries import LiveQuery, RecordQuery, StateQuery
from penstock.version import VERSION


class Refused(PenstockError):
    """The job service refuses a request. The client receives the message of this error."""


class UnknownJob(Refused):
    """The job service has no job with the id of the request."""


class UnknownName(Refused):
    """A job has no operator or no state of the name in the request."""


class Conflict(Refused):
    """The job service refuses a request because of the state that the job is in."""


@dataclass(frozen=True)
class Submit:
    """Requests to run a job, and to receive its events until it ends.

    Arguments:
        name: the name of the job.
        folder: the working directory of its JobManager process.
        job: the first frame to send to that process, from `encode_job`.
        checkpoint_dir: the job's checkpoint folder, as an absolute path; empty if it has none.
        parallelism, max_parallelism: the parallelism of the job, and the upper limit for it.
        slot_counts: the number of workers for each parallelism, from
            `dataflow.graph.restart_parts.slot_counts`; empty if it is the parallelism.
        restart_scope: the value of the `RestartScope` that the job really has.
        memory_bytes: the memory that the service keeps free for the job; 0 for the default of the
            service.
        submission: the text by which the service knows a job that it has submitted itself; see
            `SubmitScript`.
    """

    name: str
    folder: str
    job: bytes
    checkpoint_dir: str = ""
    parallelism: int = 1
    max_parallelism: int = 128
    slot_counts: list[list[int]] = field(default_factory=list)
    restart_scope: str = "job"
    memory_bytes: int = 0
    submission: str = ""


#: The environment variable from which `submit` takes the text `submission`.
SUBMISSION_VARIABLE = "PENSTOCK_SUBMISSION"


@dataclass(frozen=True)
class SubmitScript:
    """Requests to run a job file up to its `execute`, and to submit the program.

    The file runs in a process of its own. If it fails, its traceback is the reason of the refusal.

    Arguments:
        path: the path of the job file.
        options: the options of `penstock submit`, such as `["--parallelism", "2"]`.
        arguments: the arguments of the job file.
        folder: the working directory; empty for the folder of the job file.
    """

    path: str
    options: list[str]
    arguments: list[str]
    folder: str = ""


@dataclass(frozen=True)
class ListJobs:
    """Requests the `JobRecord`s of all jobs.

    Arguments:
        activity: whether each record has its `JobActivity` with it, as `activity`.
    """

    activity: bool = False


@dataclass(frozen=True)
class Show:
    """Requests the `JobDetails` of a job."""

    id: str


@dataclass(frozen=True)
class Cancel:
    """Requests to stop a job after a final snapshot, or to kill it at once if `now` is true."""

    id: str
    now: bool = False


@dataclass(frozen=True)
class Stop:
    """Requests to stop a job with a savepoint. The answer names the savepoint."""

    id: str


@dataclass(frozen=True)
class Savepoint:
    """Requests a savepoint of a job, which goes on.

    Arguments:
        id: the id of the job.
        timeout_seconds: the time after which the service no longer waits for the savepoint.
    """

    id: str
    timeout_seconds: float = 600.0


@dataclass(frozen=True)
class QueryState:
    """Requests entries of the keyed state of a running job.

    Arguments:
        id: the id of the job.
        operator, state, keys, prefix, top, by, limit: as in `StateQuery`.
    """

    id: str
    operator: str
    state: str
    keys: list[bytes]
    prefix: str | None = None
    top: int = 0
    by: str = "value"
    limit: int = 100

    def query(self, id: str) -> StateQuery:
        """Return the query for the JobManager, with an id of its own."""
        return StateQuery(**{**vars(self), "id": id})


@dataclass(frozen=True)
class SampleEdge:
    """Requests records that travel on an edge of a running job from now on.

    Arguments:
        id: the id of the job.
        edge, limit, seconds: as in `RecordQuery`.
    """

    id: str
    edge: str = ""
    limit: int = 20
    seconds: float = 1.0

    def query(self, id: str) -> RecordQuery:
        """Return the query for the JobManager, with an id of its own."""
        return RecordQuery(id, self.edge, self.limit, self.seconds)


@dataclass(frozen=True)
class Rescale:
    """Requests to stop a job with a savepoint, and to start it with another parallelism."""

    id: str
    parallelism: int


@dataclass(frozen=True)
class Upgrade:
    """Requests to stop a job with a savepoint, and to start another program from there.

    If the new program fails before its first snapshot, the old one is started again.

    Arguments:
        id: the id of the job.
        name, folder, job, parallelism, max_parallelism, slot_counts, restart_scope: as in `Submit`,
            for the new program.
        has_checkpoints: whether the new program takes checkpoints. Otherwise it counts as good when
            it processes records.
    """

    id: str
    name: str
    folder: str
    job: bytes
    parallelism: int = 1
    max_parallelism: int = 128
    slot_counts: list[list[int]] = field(default_factory=list)
    restart_scope: str = "job"
    has_checkpoints: bool = True


@dataclass(frozen=True)
class UpgradeScript:
    """Requests to replace the program of a job by that of a job file, as `Upgrade` does.

    Arguments:
        id: the id of the job.
        path, arguments, folder: as in `SubmitScript`.
        options: the options of `penstock upgrade`, such as `["--allow-dropped"]`.
    """

    id: str
    path: str
    options: list[str]
    arguments: list[str]
    folder: str = ""


@dataclass(frozen=True)
class ShadowSlots:
    """Requests slots for a shadow run of a job, as long as the connection is open.

    Arguments:
        id: the id of the job.
        slots: the number of workers of the new program. A shadow run takes as many slots as the
            larger of both programs, which run one after the other.
    """

    id: str
    slots: int


@dataclass(frozen=True)
class Restart:
    """Requests to start a job from its newest snapshot. A running job is stopped before."""

    id: str


@dataclass(frozen=True)
class Logs:
    """Requests the log of a job.

    Arguments:
        id: the id of the job.
        offset: the number of bytes to skip at the beginning; below 0, the number of last lines.
        follow: whether to wait for more until the job has ended.
    """

    id: str
    offset: int = 0
    follow: bool = False


@dataclass(frozen=True)
class Events:
    """Requests the events of a job.

    Arguments:
        id: the id of the job.
        after: the `seq` of the last event that the client has received; 0 for all.
        follow: whether to wait for more until the job has ended.
    """

    id: str
    after: int = 0
    follow: bool = False


Request = (
    Submit
    | SubmitScript
    | ListJobs
    | Show
    | Cancel
    | Stop
    | Savepoint
    | QueryState
    | SampleEdge
    | Rescale
    | Upgrade
    | UpgradeScript
    | ShadowSlots
    | Restart
    | Logs
    | Events
)
_REQUESTS: dict[str, type[Request]] = {
    "submit": Submit,
    "submit script": SubmitScript,
    "list": ListJobs,
    "show": Show,
    "cancel": Cancel,
    "stop": Stop,
    "savepoint": Savepoint,
    "query": QueryState,
    "sample edge": SampleEdge,
    "rescale": Rescale,
    "upgrade": Upgrade,
    "upgrade script": UpgradeScript,
    "shadow slots": ShadowSlots,
    "restart": Restart,
    "logs": Logs,
    "events": Events,
}
_NAMES = {cls: name for name, cls in _REQUESTS.items()}


@dataclass(frozen=True)
class JobRequest:
    """The job that a JobManager process runs.

    Arguments:
        code: the job's code, as `job_code.pack` returns it.
        search_path: the `sys.path` of the program.
        host: the address at which the process listens with TCP. If None, it uses Unix sockets.
        options: the fields of `JobSettings`.
    """

    code: bytes
    search_path: list[str]
    host: str | None
    options: dict[str, Any]


#: How the frames of queries to a running job begin.
_QUERIES: dict[str, type[LiveQuery]] = {"query": StateQuery, "records": RecordQuery}


class Order(Enum):
    """An order that a client sends to a running job."""

    STOP = "stop"
    SAVEPOINT = "savepoint"
    PROFILE = "profile"


def versions() -> list[str]:
    """Return the versions of Python and Penstock, which must be equal at both ends."""
    major, minor = sys.version_info[:2]
    return [f"Python {major}.{minor}", f"Penstock {VERSION}"]


def encode_request(request: Request) -> bytes:
    """Return a request to the job service as bytes."""
    return pack({"versions": versions(), **request_map(request)})


def request_map(request: Request) -> dict[str, Any]:
    """Return a request as a map of plain values, which `request_of` reads."""
    return {"do": _NAMES[type(request)], **asdict(request)}


def request_of(wire: dict[Any, Any]) -> Request:
    """Return the request in a map.

    Raises:
        Refused: if the request is malformed.
    """
    try:
        return build_from_map(_kind(wire.get("do")), wire)
    except ProtocolError as error:
        raise Refused(f"the job manager cannot read the request: {error}") from error


def decode_request(data: bytes) -> Request:
    """Return the request in `data`.

    Raises:
        Refused: if the request is malformed, or comes from another version of Python or Penstock.
    """
    try:
        wire = _map(data)
        theirs: Any = wire.get("versions")
        if theirs != versions():
            named = isinstance(theirs, list) and all(isinstance(text, str) for text in theirs)
            raise Refused(
                f"the job manager runs {' and '.join(versions())}, and this is "
                f"{' and '.join(theirs) if named else 'an older version'}; "
                f"code can only go between equal versions"
            )
    except ProtocolError as error:
        raise Refused(f"the job manager cannot read the request: {error}") from error
    return request_of(wire)


def encode_job(request: JobRequest) -> bytes:
    """Return the first frame for a JobManager process."""
    return pack(asdict(request))


def decode_job(data: bytes) -> JobRequest:
    """Return the job in the first frame of a client.

    Raise `ProtocolError` if the frame is malformed.
    """
    return build_from_map(JobRequest, _map(data))


def encode_order(order: Order | LiveQuery) -> bytes:
    """Return an order or a query to a running job as bytes."""
    if isinstance(order, Order):
        return pack({"do": order.value})
    name = next(name for name, kind in _QUERIES.items() if isinstance(order, kind))
    return pack({"do": name, **asdict(order)})


def decode_order(data: bytes) -> Order | LiveQuery:
    """Return the order or the query of a client to a running job.

    Raise `ProtocolError` if the frame is malformed.
    """
    wire = _map(data)
    name = wire.get("do")
    if isinstance(name, str) and name in _QUERIES:
        return build_from_map(_QUERIES[name], wire)
    try:
        return Order(name)
    except ValueError as error:
        raise ProtocolError(f"malformed request: {data[:40]!r}") from error


def _kind(name: Any) -> type[Request]:
    kind = _REQUESTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError("malformed request: it asks for nothing that is known")
    return kind


def _map(data: bytes) -> dict[Any, Any]:
    value = unpack(data)
    if not isinstance(value, dict):
        raise ProtocolError(f"malformed request: it is a {type(value).__name__}")
    return value
