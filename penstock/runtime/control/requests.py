"""The requests to the job service and to a JobManager process.

Requests are sent as msgpack maps, and the types of their fields are checked when they are decoded.
The versions of client and server are compared first. So a client of another version gets an error
about the versions, and not about fields.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from penstock.dataflow.errors import PenstockError, ProtocolError
from penstock.runtime.control.packing import build_from_map, pack, unpack
from penstock.version import VERSION


class Refused(PenstockError):
    """The job service refuses a request. The client receives the message of this error."""


@dataclass(frozen=True)
class Submit:
    """Requests to run a job, and to receive its events until it ends.

    Arguments:
        name: the name of the job.
        folder: the working directory of its JobManager process.
        job: the first frame to send to that process, from `encode_job`.
        checkpoint_dir: the job's checkpoint folder, as an absolute path; empty if it has none.
    """

    name: str
    folder: str
    job: bytes
    checkpoint_dir: str = ""


@dataclass(frozen=True)
class ListJobs:
    """Requests the `JobRecord`s of all jobs."""


@dataclass(frozen=True)
class Cancel:
    """Requests to stop a job after a final snapshot, or to kill it at once if `now` is true."""

    id: str
    now: bool


Request = Submit | ListJobs | Cancel
_REQUESTS: dict[str, type[Request]] = {"submit": Submit, "list": ListJobs, "cancel": Cancel}
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


class Order(Enum):
    """An order that a client sends to a running job."""

    STOP = "stop"
    SAVEPOINT = "savepoint"


def versions() -> list[str]:
    """Return the versions of Python and Penstock, which must be equal at both ends."""
    major, minor = sys.version_info[:2]
    return [f"Python {major}.{minor}", f"Penstock {VERSION}"]


def encode_request(request: Request) -> bytes:
    """Return a request to the job service as bytes."""
    return pack({"do": _NAMES[type(request)], "versions": versions(), **asdict(request)})


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
        return build_from_map(_kind(wire.get("do")), wire)
    except ProtocolError as error:
        raise Refused(f"the job manager cannot read the request: {error}") from error


def encode_job(request: JobRequest) -> bytes:
    """Return the first frame for a JobManager process."""
    return pack(asdict(request))


def decode_job(data: bytes) -> JobRequest:
    """Return the job in the first frame of a client.

    Raise `ProtocolError` if the frame is malformed.
    """
    return build_from_map(JobRequest, _map(data))


def encode_order(order: Order) -> bytes:
    """Return an order to a running job as bytes."""
    return pack({"do": order.value})


def decode_order(data: bytes) -> Order:
    """Return the order of a client to a running job.

    Raise `ProtocolError` if the frame is malformed.
    """
    try:
        return Order(_map(data).get("do"))
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
