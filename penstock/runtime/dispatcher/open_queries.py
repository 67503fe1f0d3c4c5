"""Wait for the answers to queries of keyed state that a JobManager sends as events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from penstock.runtime.control.state_queries import (
    ANSWER_SECONDS,
    CONFLICT,
    LiveQuery,
    refusal,
)

_GONE = "the JobManager of the job has just ended or starts: ask again in a moment"


class OpenQueries:
    """The queries to one job that have no answer yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, trio.MemorySendChannel[dict[str, Any]]] = {}

    async def ask(
        self, query: LiveQuery, send: Callable[[LiveQuery], Awaitable[bool]] | None
    ) -> dict[str, Any]:
        """Send a query, and return its answer.

        Arguments:
            query: the query.
            send: sends the query, and returns whether there is a connection; None if no JobManager
                runs.
        """
        put, take = trio.open_memory_channel[dict[str, Any]](1)
        self._waiting[query.id] = put
        try:
            with trio.move_on_after(ANSWER_SECONDS):
                if send is None or not await send(query):
                    return refusal(query.id, CONFLICT, _GONE)
                return await take.receive()
        finally:
            self._waiting.pop(query.id, None)
        return refusal(
            query.id,
            CONFLICT,
            f"the job has not answered within {ANSWER_SECONDS:g} s: a function may take long, or "
            f"the state is large; ask later, or query the snapshot, without `live`",
        )

    def answered(self, event: dict[str, Any]) -> None:
        """Pass an answer on to the one that waits for it; ignore other answers."""
        put = self._waiting.get(str(event.get("id")))
        if put is not None:
            with_answer = {"problem": "", "reason": "", **event}
            try:
                put.send_nowait(with_answer)
            except trio.WouldBlock:
                return  # a second answer

    def end(self) -> None:
        """Refuse all open queries, because the JobManager has ended."""
        for id in list(self._waiting):
            self.answered(refusal(id, CONFLICT, _GONE))
