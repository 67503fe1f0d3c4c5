"""Publish messages to a stream without waiting for each: `Publisher`.

The client of NATS can do this, too. But if the server refuses a message, version 2.16 of the client
raises the error in code of its own. The caller never receives it, and waits without an end.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from penstock.connectors.nats.connection import ANSWER_SECONDS, NatsClient
from penstock.dataflow.errors import JobError, Recoverability

#: The number of the error for a message that does not follow the expected one.
_WRONG_LAST_SEQUENCE = 10071


class WrongLastSequence(ConnectionError):
    """Raised if a message was not stored, because it does not follow the expected one."""


class Publisher:
    """Publishes messages, and returns the sequences that they get, in order.

    It must be used in the event loop of its client.

    Arguments:
        client: the client.
    """

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._inbox = client.connected.new_inbox()
        self._sent = 0
        #: Messages that are sent and not confirmed, the oldest one first.
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._by_reply: dict[str, asyncio.Future[int]] = {}
        client.when_closed(self._fail)

    async def open(self) -> None:
        """Begin to listen for answers."""
        await self._client.connected.subscribe(f"{self._inbox}.*", cb=self._answer)

    @property
    def waiting(self) -> int:
        """How many messages are not confirmed."""
        return len(self._waiting)

    async def publish(self, subject: str, content: bytes, headers: Mapping[str, str]) -> None:
        """Send a message."""
        self._sent += 1
        reply = f"{self._inbox}.{self._sent}"
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._by_reply[reply] = future
        self._waiting.append(future)
        await self._client.connected.publish(subject, content, reply=reply, headers=dict(headers))

    async def confirmed(self) -> int:
        """Wait until the oldest message is stored, and return its sequence.

        Raises:
            WrongLastSequence: if it does not follow the expected message.
            JobError: if it is refused for another reason.
            TimeoutError: if there is no answer.
        """
        oldest = self._waiting[0]
        # `wait_for` makes a timer and a task, so it is left out if the answer is there.
        sequence = (
            oldest.result() if oldest.done() else await asyncio.wait_for(oldest, ANSWER_SECONDS)
        )
        self._waiting.popleft()
        return sequence

    def forget(self) -> None:
        """Wait for no more messages."""
        while self._waiting:
            future = self._waiting.popleft()
            if future.done() and not future.cancelled():
                future.exception()  # else asyncio would report it as lost
            future.cancel()
        self._by_reply.clear()

    def _fail(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionError("the connection is lost"))

    async def _answer(self, message: Any) -> None:
        future = self._by_reply.pop(message.subject, None)
        if future is None or future.done():
            return
        error: Exception | None
        if message.headers and message.headers.get("Status") == "503":
            error = JobError(
                "no server answers: no stream has the subject of the message, or JetStream is not "
                "ready",
                recoverability=Recoverability.ENVIRONMENT,
            )
        else:
            answer = json.loads(message.data)
            error = _error_of(answer.get("error"))
        if error is None:
            future.set_result(answer["seq"])
        else:
            future.set_exception(error)


def _error_of(error: Any) -> Exception | None:
    if error is None:
        return None
    description = str(error.get("description", error))
    if error.get("err_code") == _WRONG_LAST_SEQUENCE:
        return WrongLastSequence(description)
    # The stream is full, its leader is away, or a disk has failed.
    passing = error.get("code", 500) >= 500
    return JobError(
        f"NATS refuses a message: {description}",
        recoverability=Recoverability.ENVIRONMENT if passing else Recoverability.NON_RECOVERABLE,
    )
