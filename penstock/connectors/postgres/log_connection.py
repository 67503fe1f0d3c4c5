"""Receive the log of a replication slot over the connection of libpq.

psycopg has no interface for replication. Its `pgconn` sends `START_REPLICATION`, and then reads and
writes the messages of the streaming replication protocol as data of a COPY in both directions.
"""

from __future__ import annotations

import select
import struct
import time

from penstock.connectors.postgres.connection import connect, explained
from penstock.dataflow.errors import JobError, Recoverability

#: The longest time between two reports to the server, in seconds, if there is something to report.
STATUS_SECONDS = 5.0
#: The number of bytes before the payload of `XLogData`.
_HEADER = 25
#: The number of questions of the server in a row by which it shows that it shuts down.
_QUESTIONS = 3
_DATA, _KEEPALIVE = ord("w"), ord("k")
_KEEPALIVE_FIELDS = struct.Struct(">QqB").unpack_from
_STATUS = struct.Struct(">cQQQqB").pack
#: 2000-01-01, where the times of PostgreSQL begin, in seconds since the Unix epoch.
_EPOCH = 946_684_800


def lsn_text(lsn: int) -> str:
    """Return a place in the log in the form of PostgreSQL.

    Examples:
        >>> lsn_text(0x1_0000_00AB)
        '1/AB'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return a place in the log as a number.

    Examples:
        >>> lsn_number("1/AB") == 0x1_0000_00AB
        True
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


class SlotInUseError(Exception):
    """Raised if another connection reads the slot."""


class LogConnection:
    """Streams the log of a slot from a place on.

    Arguments:
        conninfo: the connection string.
        slot: the name of the slot.
        publication: the name of the publication.
        lsn: the place in the log.
        application_name: the name of the connection.

    Raises:
        SlotInUseError: if another connection reads the slot.
        JobError: if the server cannot be reached, or refuses.
    """

    def __init__(
        self, conninfo: str, slot: str, publication: str, lsn: int, application_name: str
    ) -> None:
        from psycopg.errors import ObjectInUse, error_from_result
        from psycopg.pq import ExecStatus

        self._purpose = f"read the replication slot {slot}"
        self._connection = connect(
            conninfo,
            self._purpose,
            # A reader whose task has no room for records does not answer the server. TCP detects
            # whether it still lives.
            session={"wal_sender_timeout": "0"},
            replication="database",
            application_name=application_name,
        )
        self._pgconn = self._connection.pgconn
        name = publication.replace('"', '""').replace("'", "''")
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} '
            f"(proto_version '1', publication_names '\"{name}\"')"
        )
        try:
            with explained(self._purpose):
                result = self._pgconn.exec_(command.encode())
                if result.status != ExecStatus.COPY_BOTH:
                    # The error has no SQLSTATE if the connection was lost.
                    raise error_from_result(result)
        except JobError as error:
            self._connection.close()
            if isinstance(error.__cause__, ObjectInUse):
                raise SlotInUseError(str(error)) from error.__cause__
            raise
        #: The place that is reported as durable. The job may go back to one before `lsn`.
        self._reported = 0
        self._status_at = time.monotonic()
        #: How often the server has asked for an answer since it has sent data.
        self._questions = 0
        #: The end of the log as far as the server has read it for this slot.
        self.server_lsn = lsn

    def receive(self, wait_seconds: float) -> bytes | None:
        """Return the payload of the next message, or None if there is none for some time.

        A message without a payload is b"". It may have changed `server_lsn`. The server sends one
        for each transaction that has no change of the publication.

        Raises:
            JobError: if the server ends the stream.
            psycopg.Error: if the connection is lost.
        """
        size, data = self._pgconn.get_copy_data(1)
        if size == 0:
            if not self._wait(wait_seconds):
                return None
            self._pgconn.consume_input()
            size, data = self._pgconn.get_copy_data(1)
            if size == 0:
                return None
        if size < 0:
            self._ended()
        message = bytes(data)
        if message[0] == _DATA:
            self._questions = 0
            return message[_HEADER:]
        if message[0] == _KEEPALIVE:
            self.server_lsn, _, wants_answer = _KEEPALIVE_FIELDS(message, 1)
            if wants_answer:
                self._answer()
        return b""

    def _answer(self) -> None:
        """Answer the server, which asks for an answer.

        A server that shuts down asks again until all of the log is reported as durable, which may
        be never. Without `wal_sender_timeout` it has no other reason to ask repeatedly.
        """
        self._questions += 1
        if self._questions >= _QUESTIONS:
            raise JobError(
                f"PostgreSQL: {self._purpose}: the server shuts down",
                recoverability=Recoverability.ENVIRONMENT,
            )
        self._send_status(self._reported, False)

    def _wait(self, seconds: float) -> bool:
        if seconds <= 0:
            return False
        # `select.select` cannot wait for a file descriptor above 1,023.
        readable = select.poll()
        readable.register(self._pgconn.socket, select.POLLIN)
        return bool(readable.poll(1000 * seconds))

    def _ended(self) -> None:
        result = self._pgconn.get_result()
        message = result.get_error_message() if result is not None else "the server has ended it"
        raise JobError(
            f"PostgreSQL: {self._purpose}: the stream ended: {' '.join(message.split())}",
            recoverability=Recoverability.ENVIRONMENT,
        )

    def report(self, durable_lsn: int, ask: bool = False) -> None:
        """Report up to which place the job does not need the log any more.

        Arguments:
            durable_lsn: the place.
            ask: whether the server shall say how far it is. Both happens from time to time only.
        """
        due = time.monotonic() - self._status_at >= STATUS_SECONDS
        if durable_lsn > self._reported or due or ask:
            self._send_status(durable_lsn, ask)

    def _send_status(self, durable_lsn: int, ask: bool) -> None:
        self._reported = durable = max(self._reported, durable_lsn)
        self._status_at = time.monotonic()
        clock = int((time.time() - _EPOCH) * 1_000_000)
        received = max(self.server_lsn, durable)
        self._pgconn.put_copy_data(_STATUS(b"r", received, durable, durable, clock, ask))
        self._pgconn.flush()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
