"""Keep the events of a job in a file, with a number for each: `EventJournal`.

The process that reports an event writes it: the JobManager of the job while it lives, and the job
service otherwise. So there is one writer at a time. Each line is an event as JSON. A reader that
knows the number of the last event that it has read continues after it, also after a restart of the
JobManager or of the service.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.runtime.system.private_files import open_private, read_private

logger = logging.getLogger(__name__)

#: The size at which a new file is begun, in bytes. The file before it is kept, and older ones not.
MAX_BYTES = 8 << 20
#: The kinds of events that are not kept: figures that are sent every half second, large answers to
#: a client, and events without a meaning for a reader of the past.
_PASSING = frozenset({"status", "types", "committed", "stacks", "state"})


def is_kept(event: dict[str, Any]) -> bool:
    """Return whether the journal keeps events of this kind."""
    return event["event"] not in _PASSING


class EventJournal:
    """The events of one job, in a file and in the one before it.

    Arguments:
        path: the path of the file. The file before it has the suffix `.old`.
        clock: returns the seconds since the epoch.
        max_bytes: the size at which a new file is begun.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, max_bytes: int = MAX_BYTES
    ) -> None:
        self._path = path
        self._old = path.with_name(path.name + ".old")
        self._clock = clock
        self._max_bytes = max_bytes
        self._size = 0
        self._last: int | None = None
        #: Whether the file may end with a part of a line.
        self._torn = True
        self._failed = False

    def append(self, event: dict[str, Any]) -> dict[str, Any]:
        """Write an event, and return it with its number as `seq` and its time as `time`.

        If the event cannot be written, for example because the disk is full, this is only logged:
        the job goes on.
        """
        if self._last is None:
            self._last = self.last()
        self._last += 1
        numbered = {**event, "seq": self._last, "time": round(self._clock(), 3)}
        line = json.dumps(numbered, default=str).encode() + b"\n"
        try:
            self._write(line)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("events of the job cannot be written: %s", error)
            self._failed = True
        return numbered

    def _write(self, line: bytes) -> None:
        if self._size > self._max_bytes:
            self._path.replace(self._old)
        descriptor = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._size = os.fstat(descriptor).st_size
            if self._torn and self._size:
                # A writer that was killed, or a full disk, may have left a part of a line.
                line = b"\n" + line
            self._torn = True
            self._size += os.write(descriptor, line)
            self._torn = False
        finally:
            os.close(descriptor)

    def last(self) -> int:
        """Return the number of the last event, or 0 if there is none.

        Another process may have written it.
        """
        return max((event["seq"] for event in self.read()), default=0)

    def read(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the kept events with higher numbers than `after`, oldest first.

        Lines that are damaged or incomplete are skipped.
        """
        return [event for event in self._events() if event["seq"] > after]

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in (self._old, self._path):
            data = b""
            with contextlib.suppress(OSError):
                data = read_private(path)
            for line in data.split(b"\n"):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and isinstance(event.get("seq"), int):
                        yield event

    def remove(self) -> None:
        """Remove the files. Raise `OSError` if one exists and cannot be removed."""
        for path in (self._path, self._old):
            path.unlink(missing_ok=True)
