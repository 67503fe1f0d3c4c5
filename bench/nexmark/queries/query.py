"""What the benchmark knows about a query besides its program."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock import DataStream

__all__ = ["Query", "Row", "day_of", "first_field", "minute_of"]

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Query:
    """A query of the benchmark.

    Arguments:
        name: the name, such as `q5`.
        title: what it asks, in a few words.
        build: a function that makes the stream of results from the stream of events.
        events: the number of events of a measuring run, which takes about ten seconds then.
        key: the number of first fields of a result that are its key, if the results are updates:
            then the table of the last result of each key is what SQL would show. 0 if each result
            stands for itself.
        write: a function that writes the results to files in a folder, for a query that does so.
        read: a function that reads them again.
        linger_seconds: the time for which the source must stay open after its last event, when
            results are checked.
        columns: whether `build` takes the bids as Arrow batches, and returns Arrow batches.
        build_checked: a function that is used instead of `build` when results are checked.
    """

    name: str
    title: str
    build: Callable[[DataStream], DataStream]
    events: int
    key: int = 0
    write: Callable[[DataStream, Path], None] | None = None
    read: Callable[[Path], list[Row]] | None = None
    linger_seconds: float = 0.0
    build_checked: Callable[[DataStream], DataStream] | None = None
    columns: bool = False

    @property
    def number(self) -> int:
        """The number of the query, with which its name begins."""
        return int(self.name[1:].partition("-")[0])


def first_field(record: Row) -> Any:
    """Return the first field of a tuple."""
    return record[0]


@lru_cache(maxsize=10_000)
def day_of(day: int) -> str:
    """Return the date of a day, given in days since the epoch, such as 2015-07-15."""
    return time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))


@lru_cache(maxsize=10_000)
def minute_of(minute: int) -> str:
    """Return the time of a minute, given in minutes since the epoch, such as 17:05."""
    return time.strftime("%H:%M", time.gmtime(minute * 60))
