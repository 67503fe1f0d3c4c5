"""Look at some of the records that a task sends over a link: `EdgeWatch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from reprlib import Repr
from typing import Any

from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.serialization.record_batch import RecordBatch

#: The longest text of a record, in characters.
MAX_CHARACTERS = 1_000

#: Looks at the first parts of large values only, since a `repr` of all of them takes long.
_REPR = Repr()
_REPR.maxlevel = 8
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 50
_REPR.maxarray = _REPR.maxdeque = 50
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_CHARACTERS


class EdgeWatch:
    """Takes the first record of a batch now and then, until it is closed.

    It does work for each batch only, and only while it is open.

    Arguments:
        channels: the output channels of the link in this task.
        limit: the largest number of records.
        pause: the least time between two records, in seconds, so that they spread over the time.
        clock: returns the time in seconds.
        wall_clock: returns the time in milliseconds since the epoch.
    """

    def __init__(
        self,
        channels: Iterable[OutputChannel],
        limit: int,
        pause: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], int],
    ) -> None:
        self._channels = list(channels)
        self._limit, self._pause = limit, pause
        self._clock, self._wall_clock = clock, wall_clock
        self._next = clock()
        #: The number of records that were sent.
        self.seen = 0
        #: [time, text] of each record that was taken.
        self.records: list[list[Any]] = []
        for channel in self._channels:
            channel.watch(self._see)

    def _see(self, batch: RecordBatch) -> None:
        self.seen += batch.count
        now = self._clock()
        if now < self._next or len(self.records) >= self._limit or not batch.count:
            return
        self._next = now + self._pause
        self.records.append([self._wall_clock(), shown(batch.slice(0, 1).rows()[0])])

    def close(self) -> None:
        """Look at no more records."""
        for channel in self._channels:
            channel.unwatch(self._see)


def shown(record: Any) -> str:
    """Return a text for a record, of a bounded length, whatever its `repr` does."""
    try:
        # A text with half a pair of surrogates could not be sent.
        text = _REPR.repr(record).encode(errors="backslashreplace").decode()
    except (Exception, SystemExit) as error:
        return f"<{type(record).__qualname__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
