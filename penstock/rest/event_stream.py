"""Stream the events of a job as server-sent events, which a client can resume."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from typing import Any

import trio

from penstock.rest.json_text import json_text
from penstock.runtime.control.event_log import EventLog

#: The time without an event after which a comment is sent, so that a dead connection is noticed.
HEARTBEAT_SECONDS = 15.0
#: The number of streams that may be open.
MAX_STREAMS = 1_000
#: Begins the ids of the events of this process. The next one numbers its events from 1 again.
EPOCH = secrets.token_hex(4)


def resume_after(last_event_id: str | None) -> int:
    """Return the number of the last event that a client has; 0 if it has none of this process."""
    epoch, _, number = (last_event_id or "").partition("-")
    if epoch == EPOCH and number.isascii() and number.isdigit() and len(number) < 18:
        return int(number)
    return 0


async def event_stream(log: EventLog, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the events of a job in the format of server-sent events, until the job has ended.

    No queue grows for a client that reads slowly: it gets what the log still has.

    Arguments:
        log: the events of the job.
        after: the number of the last event that the client has.
    """
    changed = trio.Event()

    def notify() -> None:
        changed.set()

    log.listeners.add(notify)
    try:
        # A proxy or a browser sees at once that the stream is open.
        yield b": open\n\n"
        while True:
            changed = trio.Event()
            (missing, events), last = log.after(after), log.last
            if missing:
                yield _event("gap", {"missing": missing})
            for after, event in events:
                yield _event(event["event"], event, after)
            after = max(after, last)  # and not `log.last`: events may have come meanwhile
            if log.closed and after >= log.last:
                return
            with trio.move_on_after(HEARTBEAT_SECONDS) as scope:
                await changed.wait()
            if scope.cancelled_caught:
                yield b": waiting\n\n"
    finally:
        log.listeners.discard(notify)


def _event(kind: str, data: dict[str, Any], number: int | None = None) -> bytes:
    id = "" if number is None else f"id: {EPOCH}-{number}\n"
    return f"{id}event: {kind}\ndata: {json_text(data)}\n\n".encode()
