"""`postgres`: changes read from PostgreSQL, and rows written to it, per second.

The server runs on the same machine, without syncing to the disk. Rows have six columns: a number as
the key, two texts, a decimal, a time and a large number.

`cdc_rows_per_second` is the rate at which the reader of `PostgresCdcSource` returns changes that
are in the log already, in one process, and `cdc_initial_rows_per_second` that of initial rows.
`postgres_sink_rows_per_second` is the rate of `PostgresSink` from records to rows that are
committed, in one process: the text of COPY is made, and then sent in one transaction per 50,000
rows. `postgres_sink_upsert_rows_per_second` is the same with a key, for rows that are new.
`postgres_source_rows_per_second` is the rate of `PostgresSource` with one split.
"""

from __future__ import annotations

import datetime
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Say, WrongResultError

__all__ = ["measure"]

RECORDS = 100_000
BATCH = 1_000
#: The number of rows in one transaction of the sink.
SNAPSHOT = 50_000
TABLE = (
    "CREATE TABLE {} (id int PRIMARY KEY, customer text, product text, amount numeric, "
    "time timestamptz, number bigint)"
)


def measure(records: int | None, rounds: int, folder: str | None, say: Say) -> Figures:
    """Measure sources and sinks.

    Arguments:
        records: the number of rows; None for `RECORDS`.
        rounds: the number of runs; the figures are those of the fastest.
        folder: the folder for the server; None for a temporary one.
        say: told what happens.
    """
    from penstock.testing.servers.postgres import PostgresServer

    count = records or RECORDS
    figures: Figures = {}
    with ExitStack() as stack:
        place = folder or stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(PostgresServer(Path(place) / "postgres"))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            database = server.create_database("bench")
            for name, rate in _rates(database, count):
                figures[name] = max(rate, float(figures.get(name, 0.0)))
    return {name: round(float(rate)) for name, rate in figures.items()}


def _rates(database: str, count: int) -> Iterator[tuple[str, float]]:
    rows = [
        {
            "id": i,
            "customer": f"customer {i % 1000}",
            "product": f"product {i % 77}",
            "amount": Decimal(i) / 100,
            "time": datetime.datetime(2026, 11, 26, tzinfo=datetime.UTC),
            "number": i * 7,
        }
        for i in range(count)
    ]
    yield "postgres_sink_rows_per_second", _sink_rate(database, rows, "added", None)
    yield "postgres_sink_upsert_rows_per_second", _sink_rate(database, rows, "replaced", ["id"])
    yield "postgres_source_rows_per_second", _source_rate(database, count)
    yield from _cdc_rates(database, count)


def _sink_rate(database: str, rows: list[Any], table: str, key: list[str] | None) -> float:
    from penstock.connectors.postgres import PostgresSink
    from penstock.connectors.staged_sink import Marker, SinkPlace

    _execute(database, TABLE.format(table))
    sink = PostgresSink(database, table, key=key)
    encode = sink.create_encoder(None)  # type: ignore[arg-type]
    with closing(sink.connect(SinkPlace(uuid.uuid4().hex, table, table))) as target:
        target.fence()
        began = time.perf_counter()
        for number, first in enumerate(range(0, len(rows), SNAPSHOT)):
            last = min(first + SNAPSHOT, len(rows))
            batches = [encode(rows[i : min(i + BATCH, last)]) for i in range(first, last, BATCH)]
            target.publish(Marker(number + 1), iter(batches))
        seconds = time.perf_counter() - began
    found = _execute(database, f"SELECT count(*) FROM {table}")[0][0]
    if found != len(rows):
        raise WrongResultError(f"{found} of {len(rows)} rows were written")
    return len(rows) / seconds


def _source_rate(database: str, count: int) -> float:
    from penstock.connectors.postgres import PostgresSource

    source = PostgresSource(database, "added", key="id", splits=1)
    (split,) = source.splits()
    with closing(source.create_poller(split)) as poller:  # type: ignore[arg-type]
        began, found = time.perf_counter(), 0
        poller.seek(None)
        while (records := poller.poll(BATCH)) is not None:
            found += len(records)
        seconds = time.perf_counter() - began
    if found != count:
        raise WrongResultError(f"{found} of {count} rows were read")
    return count / seconds


def _cdc_rates(database: str, count: int) -> Iterator[tuple[str, float]]:
    from penstock.connectors.postgres import PostgresCdcSource
    from penstock.dataflow.source import ReaderContext

    slot = f"bench_{uuid.uuid4().hex[:8]}"
    source = PostgresCdcSource(database, slot=slot, publication="bench", tables=["public.added"])
    enumerator = source.create_enumerator(1)
    enumerator.start()
    split = enumerator.next_split(0)
    assert split is not None
    with closing(source.create_reader(ReaderContext("bench", 0, 1))) as reader:
        reader.open(split, None)
        yield "cdc_initial_rows_per_second", _read(reader, count)
        while reader.read(BATCH).position[3][2] is None:  # type: ignore[index,call-overload]
            pass
        for first in range(count, 2 * count, BATCH):
            _execute(
                database,
                "INSERT INTO added SELECT i, 'customer ' || i % 1000, 'product ' || i % 77, "
                f"i / 100.0, now(), i * 7 FROM generate_series({first}, {first + BATCH - 1}) AS i",
            )
        yield "cdc_rows_per_second", _read(reader, count)
    source.drop_slot()


def _read(reader: Any, count: int) -> float:
    began, found = time.perf_counter(), 0
    while found < count:
        found += len(reader.read(BATCH).records)
    return found / (time.perf_counter() - began)


def _execute(database: str, statement: str) -> Any:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else None
