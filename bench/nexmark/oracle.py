"""Checks results against DuckDB, which runs the published SQL over the same events as tables.

The SQL is that of the benchmark, in DuckDB's dialect (`sql/`). It shares nothing with the programs
but the events. Times are milliseconds since the epoch in both.

* If the results of a program are updates, the last one of each key is compared. These rows are the
  table that SQL would show.
* Where rows are equal in what SQL orders them by, it may choose any of them. Then only what is
  determined is compared, and the rest of each row must be that of a bid, which occurs once.
* q6 is not supported by Flink SQL, since it would order updates. DuckDB has the whole table.
* q12 depends on the clock. The bids of each user are compared, summed up over all windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.nexmark.generator import BLOCK, Generator, NexmarkConfig
from bench.nexmark.model import Auction, Bid, Event, Person
from bench.nexmark.queries import Query
from bench.nexmark.queries.query import Row

__all__ = ["Oracle", "all_events", "last_of_each_key"]

SQL = Path(__file__).parent / "sql"

#: For a query with ties: what SQL determines of a result, and the fields of a bid in it.
_TIES: dict[str, tuple[Callable[[Row], Row], Callable[[Row], Row], str]] = {
    "q9": (
        lambda row: (*row[:10], row[12], row[13]),
        lambda row: row[10:],
        "auction, bidder, price, date_time, extra",
    ),
    "q18": (lambda row: (row[0], row[1], row[5]), tuple, "*"),
    "q19": (lambda row: (row[0], row[1], row[3]), lambda row: (row[0], *row[2:]), "*"),
}


class Oracle:
    """The right results for the events of a configuration.

    Arguments:
        config: the configuration of the generator.
    """

    def __init__(self, config: NexmarkConfig) -> None:
        self._tables = duckdb.connect()
        events = all_events(config)
        for kind in (Person, Auction, Bid):
            rows = [event for event in events if type(event) is kind]
            columns = dict(zip(kind._fields, zip(*rows, strict=True), strict=True))
            self._tables.register(kind.__name__.lower(), pa.table(columns))

    def difference(self, query: Query, results: Iterable[Row]) -> str | None:
        """Return what is wrong with the results of a query, or None if they are right."""
        rows = last_of_each_key(query.key, map(tuple, results))
        wrong = None
        if query.name in _TIES:
            determined, bid_of, fields = _TIES[query.name]
            bids = Counter(self._rows(f"SELECT {fields} FROM bid"))
            wrong = _surplus("are no bids, or come twice", Counter(map(bid_of, rows)) - bids)
            rows = [determined(row) for row in rows]
        elif query.name == "q12":
            rows = _sum_of_windows(rows)
        found = Counter(rows)
        expected = Counter(self._rows((SQL / f"q{query.number}.sql").read_text()))
        return (
            wrong
            or _surplus("are missing", expected - found)
            or _surplus("should not be there", found - expected)
        )

    def _rows(self, sql: str) -> list[Row]:
        return self._tables.execute(sql).fetchall()


def all_events(config: NexmarkConfig) -> list[Event]:
    """Return all events of a configuration."""
    generator = Generator(config)
    blocks = -(-config.events // BLOCK)
    return [event for number in range(blocks) for event in generator.block(number)[0]]


def last_of_each_key(fields: int, rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each key, or all rows if they are no updates.

    Arguments:
        fields: the number of first fields that are the key; 0 if the rows are no updates.
        rows: the rows, in order for each key.
    """
    if not fields:
        return list(rows)
    return list({row[:fields]: row for row in rows}.values())


def _surplus(what: str, rows: Counter[Row]) -> str | None:
    """Return a message about rows, or None if there are none."""
    if not rows:
        return None
    return f"{rows.total():,} rows {what}, such as {next(iter(rows))}"


def _sum_of_windows(rows: Iterable[Row]) -> list[Row]:
    """Return the bids of each user, of rows `(bidder, bids, start, end)` of windows."""
    windows = Counter((bidder, start) for bidder, _, start, _ in rows)
    twice = [window for window, times in windows.items() if times > 1]
    if twice:
        return [("a window has fired twice", *twice[0])]
    bids: Counter[Any] = Counter()
    for bidder, count, _, _ in rows:
        bids[bidder] += count
    return list(bids.items())
