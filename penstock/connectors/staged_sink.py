"""Define `StagedSink`, the base of sinks that publish by transactions of another system.

The *staged* protocol needs of its target only that one transaction can write records and a marker.
Until a barrier, writers stage their output in files, which belong to the snapshot. When snapshot
*n* is complete, the committer publishes it in one transaction: the records of all subtasks, in
order, and the marker *n*. When a process starts, and after each error, the committer first *fences*
the writers before it, which cannot publish any more. Then it reads the marker, skips what the
target has, and publishes the rest.

So a transaction is open only while it is written. It does not matter how long the job was down, and
readers never wait for a snapshot. The committer runs in the JobManager. So at another parallelism,
no subtask inherits the staged output of another one.

`docs/inside/decisions/047-staged-sinks.md` compares this with a transaction that stays open.
"""

from __future__ import annotations

import hashlib
import logging
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgpack

from penstock.connectors.staging_writer import STAGED_NAME, StagingWriter, new_digest, remove_staged
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import (
    Committable,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
)
from penstock.dataflow.type_variables import PlainValue, T_contra
from penstock.snapshot.storage.filesystem.durable_files import make_folders

logger = logging.getLogger("penstock.connectors")

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class SinkPlace:
    """Identifies the output of one sink in one lineage of snapshots.

    Arguments:
        lineage: the id of the lineage. Each job that is started afresh, and each fork, has another.
        uid: the uid of the sink's operator, which may have any characters.
        name: the name of the sink's operator, for messages.

    Examples:
        >>> SinkPlace("1f3b", "orders", "Kafka").key
        '1f3b-orders-e9c4d42dd5e64a5d'
    """

    lineage: str
    uid: str
    name: str = field(compare=False)

    @property
    def key(self) -> str:
        """A string that no other sink of any job has.

        It has only letters, digits, `_` and `-`, and at most 100 characters.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "_", self.uid)[:40]
        digest = hashlib.blake2b(self.uid.encode(errors="surrogatepass"), digest_size=8)
        return f"{self.lineage}-{name}-{digest.hexdigest()}"


@dataclass(frozen=True)
class Marker:
    """Names the last snapshot whose output the target of a sink has.

    Arguments:
        number: the number of the snapshot.
        digest: a hash of this snapshot's output, at most 32 letters and digits; empty if the target
            cannot keep one. Two runs that go on from copies of one job folder show by it.
    """

    number: int
    digest: str = ""


class Target(ABC):
    """A connection of the committer to the system that a staged sink writes to.

    All calls come from one thread at a time. Each call that waits for the system ends with an error
    if there is no answer for some time.

    Attributes:
        marker_seconds: the time for which the system keeps a marker that is not written again, in
            seconds. None if it keeps it for good.
    """

    marker_seconds: float | None = None

    @abstractmethod
    def fence(self) -> Marker | None:
        """Stop all earlier writers of this place, and return the marker.

        This is the first call. After it, no transaction of an earlier connection may be committed,
        and none may be open. Only then the marker is read.

        Returns:
            The marker of the newest committed transaction, or None if there is none.
        """

    @abstractmethod
    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        """Write the output of one snapshot and its marker in one transaction, and commit it.

        If the method raises an error, the transaction may be committed or not. The connection is
        then closed. Another connection finds out by the marker.

        Arguments:
            marker: the marker to write, whose number is above that of the one before.
            batches: the values that the encoder has returned, in order. The iterator raises an
                error if a staged file is damaged. It must be read to its end before the commit.
        """

    def close(self) -> None:
        """Close the connection. An open transaction is not committed."""


class StagedSink(Sink[T_contra]):
    """A sink that stages its output, and publishes each snapshot in one transaction, exactly once.

    A subclass encodes records, and connects to its target. It is sent to the workers and to the
    JobManager, so its `__init__` opens no connections.

    Examples:
        >>> class Rows(StagedSink):
        ...     def create_encoder(self, context):
        ...         return lambda records: [str(record) for record in records]
        ...     def connect(self, place):
        ...         return RowTarget(place.key)
        >>> class RowTarget(Target):
        ...     def __init__(self, key):
        ...         self.key = key
        ...     def fence(self):
        ...         return None
        ...     def publish(self, marker, batches):
        ...         for rows in batches:
        ...             print("INSERT", rows, "AND MARKER", marker.number)
        >>> _ = env.from_collection([1, 2]).sink_to(Rows())
        >>> _ = env.execute("rows")
        INSERT ['1', '2'] AND MARKER 1
    """

    exactly_once = True
    stages_in_job = True

    @abstractmethod
    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that converts a batch to the value that is staged.

        It runs in the workers. Allowed types of the value are str, int, float, bool, None, bytes,
        and lists and dicts of these. The function must not change the records.
        """

    @abstractmethod
    def connect(self, place: SinkPlace) -> Target:
        """Return a connection for the committer. It may connect later, in `Target.fence`."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages the output of one subtask."""
        if context.staging is None:
            raise JobError("a staged sink needs the staging folder of a job: WriterContext.staging")
        staging = context.staging

        def create_encoder() -> Callable[[list[Any]], bytes]:
            return _frame_encoder(self.create_encoder(context))

        return StagingWriter(staging, lambda: make_staging(staging), create_encoder, context)

    def create_committer(self) -> Committer:
        """Return the committer, which publishes staged output by transactions."""
        return StagedCommitter(self)


def _frame_encoder(encode: Callable[[list[Any]], PlainValue]) -> Callable[[list[Any]], bytes]:
    pack = msgpack.Packer(use_bin_type=True).pack

    def encode_frame(batch: list[Any]) -> bytes:
        data: bytes = pack(encode(batch))
        return _LENGTH.pack(len(data)) + data

    return encode_frame


def make_staging(staging: Path) -> None:
    """Create the job's folder of staged files, if it does not exist.

    Raises:
        JobError: if it is a symbolic link.
    """
    if staging.is_symlink():
        raise JobError(
            f"{staging} is a symbolic link, so staged files would be written and removed "
            f"elsewhere: remove the link. Nothing was written",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    make_folders(staging)


@dataclass
class _Connection:
    """Holds what the committer knows of one place.

    Arguments:
        target: the open connection; None before the first one, and after an error.
        marker: the newest marker, as far as it is known.
        published: whether this process has published a snapshot here.
    """

    target: Target | None = None
    marker: Marker | None = None
    published: bool = False


class StagedCommitter(Committer):
    """Publishes the output of a staged sink, by the staged protocol.

    Arguments:
        sink: the sink.
    """

    def __init__(self, sink: StagedSink[Any]) -> None:
        self._sink = sink
        self._context = CommitterContext("", "")
        self._connections: dict[SinkPlace, _Connection] = {}
        #: The highest number of a snapshot of the run's lineage that is known to be complete.
        self._complete = 0

    def open(self, context: CommitterContext) -> None:
        """Set the run whose output the committer publishes."""
        self._context = context
        self._complete = context.restored

    def commit(self, committables: list[Committable]) -> None:
        """Publish the output of each snapshot in one transaction, unless the target has it.

        Raises:
            JobError: if a staged file is missing or damaged, or if the marker of the target does
                not fit the snapshots of the job.
        """
        for (lineage, uid, number), group in groupby(committables, _snapshot_of):
            place = SinkPlace(lineage, uid, self._context.name)
            if lineage == self._context.lineage:
                self._complete = max(self._complete, number)
            self._publish(place, number, list(group))

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Connect to the target, and remove staged files that no snapshot has."""
        place = SinkPlace(lineage, uid, self._context.name)
        if lineage == self._context.lineage:
            # So a target that cannot be reached, and an old writer, show before records flow.
            self._connected(place, None)
        own = self._context.staging[:1]
        return sum(remove_staged(folder, lineage, uid, before_attempt) for folder in own)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            _disconnect(connection)

    def _publish(self, place: SinkPlace, number: int, items: list[Committable]) -> None:
        """Publish the output of one snapshot, unless the target has it."""
        files = [self._staged_name(item) for item in items]
        marker = Marker(number, _digest(items))
        connection = self._connections.setdefault(place, _Connection())
        for attempt in (1, 2):
            target = self._connected(place, number)
            if connection.marker is not None and connection.marker.number >= number:
                if _differ(connection.marker, marker):
                    raise _other_output(place, number)
                break
            try:
                target.publish(marker, self._batches(items))
                connection.marker, connection.published = marker, True
                break
            except Exception as error:
                # It is unknown whether the transaction is committed. Another JobManager may have
                # published the snapshot, and removed the files. A new connection finds out.
                _disconnect(connection)
                if attempt == 2:
                    raise
                logger.warning(
                    "sink %s: snapshot %d is not published yet (%s); trying again",
                    place.name,
                    number,
                    error,
                )
        for name in files:
            for folder in self._context.staging:
                (folder / name).unlink(missing_ok=True)

    def _connected(self, place: SinkPlace, pending: int | None) -> Target:
        """Return the connection for a place. A new one has fenced all others.

        Arguments:
            place: the place.
            pending: the number of the snapshot that is to be published; None if there is none.
        """
        connection = self._connections.setdefault(place, _Connection())
        if connection.target is None:
            target = self._sink.connect(place)
            try:
                found = target.fence()
                connection.marker = self._checked(place, connection, target, found, pending)
            except BaseException:
                target.close()
                raise
            connection.target = target
        return connection.target

    def _checked(
        self,
        place: SinkPlace,
        connection: _Connection,
        target: Target,
        found: Marker | None,
        pending: int | None,
    ) -> Marker | None:
        """Return the marker of a target, if it fits the snapshots of the job."""
        context = self._context
        known = context.confirmed.get((place.lineage, place.uid), 0)
        if connection.published and connection.marker is not None:
            known = max(known, connection.marker.number)
        if found is not None:
            own = place.lineage == context.lineage
            if own and found.number > self._complete:
                raise JobError(
                    f"its target has the output of snapshot {found.number} already, and the job "
                    f"goes on from snapshot {self._complete}: the newest snapshots are lost, or "
                    f"another run of this job is ahead. Resume from snapshot {found.number} or a "
                    f"later one; or start a new line of output with --resume NUMBER --fork, which "
                    f"writes the output behind that snapshot a second time. Nothing was written",
                    operator=f"sink {place.name}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            if found.number < known and context.marker is None:
                raise JobError(
                    f"its target has the output up to snapshot {found.number} only, and had it up "
                    f"to snapshot {known}: the target has lost its newest data, for example by a "
                    f"restart or a failover. The output of the snapshots between is lost there, "
                    f"and the job has no copy of it. Restore the target; or write this output a "
                    f"second time with --resume NUMBER --fork from a snapshot of that time; or "
                    f"accept the loss with --sink-marker UID={known}; the uid is {place.uid!r}. "
                    f"Nothing was written",
                    operator=f"sink {place.name}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            return found
        if pending is None:
            return None
        restored = pending <= context.restored or place.lineage != context.lineage
        kept = target.marker_seconds
        expired = restored and kept is not None and context.age_seconds > kept * 0.9
        if not (known or connection.published or expired):
            return None
        if context.marker is not None:
            return Marker(context.marker)
        last = connection.marker.number if connection.marker is not None else known
        since = f"up to snapshot {last} was published, but" if last else "may be published, and"
        raise JobError(
            f"its output {since} the target has no marker that says so: it was removed, or the "
            f"target keeps markers for a limited time only"
            f"{'' if kept is None else f' ({kept / 86400:.3g} days)'}. So it is unknown whether "
            f"the output of snapshot {pending} is there. Look at the newest output, and resume "
            f"with --sink-marker UID={pending} if it is there, or with --sink-marker "
            f"UID={pending - 1} if it is not; the uid is {place.uid!r}. Nothing was written",
            operator=f"sink {place.name}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    def _batches(self, items: Sequence[Committable]) -> Iterator[PlainValue]:
        """Yield the staged values of committables, in order; raise if a file is damaged."""
        for item in items:
            payload: Any = item.payload
            path = self._staged_path(item)
            digest, size = new_digest(), 0
            with path.open("rb") as file:
                while head := file.read(_LENGTH.size):
                    data = file.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
                    digest.update(head)
                    digest.update(data)
                    size += len(head) + len(data)
                    if size > payload["size"]:
                        break
                    yield msgpack.unpackb(data, strict_map_key=False)
            if size != payload["size"] or digest.hexdigest() != payload["checksum"]:
                raise JobError(
                    f"the staged file {path} was changed, so the output of snapshot "
                    f"{item.snapshot} cannot be published from it. Nothing of it was published",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )

    def _staged_path(self, item: Committable) -> Path:
        name = self._staged_name(item)
        for folder in self._context.staging:
            path = folder / name
            if path.is_file() and not path.is_symlink():
                return path
        raise JobError(
            f"output of snapshot {item.snapshot} is lost: the staged file {name} was removed "
            f"before it could be published. Start from an earlier snapshot or afresh",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    @staticmethod
    def _staged_name(item: Committable) -> str:
        """Return the name of the staged file of a committable, which is not trusted."""
        payload: Any = item.payload
        name = payload.get("staged") if isinstance(payload, dict) else None
        if not isinstance(name, str) or not STAGED_NAME.fullmatch(name):
            raise JobError(
                f"snapshot {item.snapshot} holds output that this sink has not staged: "
                f"{str(payload)[:100]!r}. Nothing was published",
                operator=f"sink {item.uid}",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return name


def _snapshot_of(item: Committable) -> tuple[str, str, int]:
    return item.lineage, item.uid, item.snapshot


def _digest(items: Sequence[Committable]) -> str:
    """Return a hash of the output of one snapshot."""
    digest = hashlib.blake2b(digest_size=12)
    for item in items:
        payload: Any = item.payload
        digest.update(f"{item.subtask}/{payload['size']}/{payload['checksum']}\n".encode())
    return digest.hexdigest()


def _differ(found: Marker, own: Marker) -> bool:
    """Return whether two markers are for different output of the same snapshot."""
    if found.number != own.number or not found.digest:
        return False
    return found.digest != own.digest


def _other_output(place: SinkPlace, number: int) -> JobError:
    return JobError(
        f"another run of this job has published other output as snapshot {number}: two jobs "
        f"continue from copies of the same folder. End one of them; start the other again from "
        f"a snapshot that both have, with --resume NUMBER --fork",
        operator=f"sink {place.name}",
        recoverability=Recoverability.NON_RECOVERABLE,
    )


def _disconnect(connection: _Connection) -> None:
    target, connection.target = connection.target, None
    if target is not None:
        try:
            target.close()
        except Exception as error:  # The connection is of no use any more.
            logger.debug("a connection could not be closed: %s", error)
