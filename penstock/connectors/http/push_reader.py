"""Read from a server that pushes messages over a connection, and connect again when it is lost."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.connectors.formats.messages import MessageDecoder
from penstock.connectors.formats.schemas import DeserializationSchema, SchemaContext
from penstock.dataflow.errors import GraphError, JobError, PenstockError, Recoverability
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split
from penstock.dataflow.type_variables import PlainValue

logger = logging.getLogger("penstock.connectors")

C = TypeVar("C")
M = TypeVar("M")

_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 10.0


def check_url(url: object, schemes: tuple[str, ...]) -> str:
    """Return a URL, or raise a `GraphError` if it is none with one of these schemes."""
    if isinstance(url, str) and url.partition("://")[0] in schemes and url.partition("://")[2]:
        return url
    wanted = " or ".join(f"{scheme}://" for scheme in schemes)
    raise GraphError(f"a URL begins with {wanted}, and {url!r} does not")


class PushReader(SourceReader, Generic[C, M]):
    """Receives messages over one connection after the other.

    Arguments:
        url: the address, for messages.
        format: the schema that decodes messages; None emits them as they are.
        unreachable_seconds: the time for which a lost connection is tried again before the job
            restarts, in seconds.
        context: where the reader runs.
    """

    blocking = True

    def __init__(
        self,
        url: str,
        format: DeserializationSchema[Any] | None,
        unreachable_seconds: float,
        context: ReaderContext,
    ) -> None:
        self._url = url
        self._patience = unreachable_seconds
        self._reconnects = context.metrics.counter("numReconnects")
        self._decoder: MessageDecoder | None = None
        if format is not None:
            self._decoder = MessageDecoder(format, SchemaContext(metrics=context.metrics))
        #: Received messages that are not read yet, with the positions behind them.
        self._waiting: deque[tuple[M, PlainValue]] = deque()
        self._position: PlainValue = None
        #: Whether the server has ended the stream, so that no more messages come.
        self._ended = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: C | None = None
        #: The delay before the next attempt, in seconds, and when the first of them has failed.
        self.least_delay = _MIN_DELAY_SECONDS
        self._delay = 0.0
        self._lost_at: float | None = None

    # ---- what a subclass defines

    @abstractmethod
    def connect(self) -> C:
        """Connect to the server."""

    @abstractmethod
    def receive(self, connection: C) -> list[tuple[M, PlainValue]]:
        """Wait for messages, and return them with the positions behind them.

        It returns an empty list and calls `end` if the server has ended the stream for good. If the
        connection is lost, it raises a `ConnectionError`.
        """

    @abstractmethod
    def disconnect(self, connection: C) -> None:
        """Close a connection. Another thread may be blocked in `receive`."""

    @abstractmethod
    def is_loss(self, error: Exception) -> bool:
        """Return whether an error of the client means that the connection was lost."""

    @abstractmethod
    def payload(self, message: M) -> bytes:
        """Return the bytes of a message that a format decodes."""

    # ---- the interface of readers

    def open(self, split: Split, position: Any) -> None:
        """Go to a position. The first read connects."""
        del split
        self._position = position

    def read(self, max_records: int) -> Read:
        """Wait for messages, and return at most `max_records`."""
        waiting = self._waiting
        while not waiting and not self._ended and not self._closed.is_set():
            self._receive()
        taken = [waiting.popleft() for _ in range(min(max_records, len(waiting)))]
        if taken:
            self._position = taken[-1][1]
        messages = [message for message, _ in taken]
        finished = self._ended and not waiting
        if self._decoder is None:
            return Read(messages, self._position, finished)
        payloads = [self.payload(message) for message in messages]
        decoded = self._decoder.decode(payloads, lambda index: f"{self._url}, {taken[index][1]!r}")
        records, bad = decoded.records, self._decoder.take_side_output()
        return Read(records, self._position, finished, side_output=bad)

    def close(self) -> None:
        """Close the connection, even while a thread waits for messages."""
        self._closed.set()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self.disconnect(connection)

    def end(self) -> None:
        """Record that the stream has ended for good."""
        self._ended = True

    def _receive(self) -> None:
        try:
            connection = self._connected()
            if connection is not None:
                self._waiting += self.receive(connection)
                self._delay, self._lost_at = 0.0, None
        except Exception as error:
            if self._closed.is_set():
                return
            self._drop()
            if isinstance(error, PenstockError) or not self.is_loss(error):
                raise
            self._wait(error)

    def _connected(self) -> C | None:
        if self._connection is not None:
            return self._connection
        connection = self.connect()
        with self._lock:
            # `close` could not close a connection that was not there yet.
            if self._closed.is_set():
                self.disconnect(connection)
                return None
            self._connection = connection
        if self._lost_at is not None:
            logger.warning("connected to %s again", self._url)
            self._reconnects.inc()
        return connection

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self.disconnect(connection)

    def _wait(self, error: Exception) -> None:
        """Wait before the next attempt, or raise if there were too many."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            logger.warning("the connection to %s was lost: %s", self._url, error)
        if now - self._lost_at >= self._patience:
            raise JobError(
                f"{self._url} was not reached for {self._patience:g} s: {error}",
                recoverability=Recoverability.ENVIRONMENT,
            ) from error
        self._delay = min(max(2 * self._delay, self.least_delay), _MAX_DELAY_SECONDS)
        self._closed.wait(self._delay)


def header_values(headers: dict[str, str | Callable[[], str]]) -> dict[str, str]:
    """Return headers whose values are not functions any more."""
    return {name: value() if callable(value) else value for name, value in headers.items()}
