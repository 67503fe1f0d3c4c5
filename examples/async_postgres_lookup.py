"""Adds the names of customers, which are rows in PostgreSQL, to orders: many in one query.

    python examples/async_postgres_lookup.py
    python examples/async_postgres_lookup.py --orders 20000 --batch-size 1 --kills 0 --no-cache

The job asks the database for all customers of a batch of orders with one query, and keeps the rows
that it has seen for a while. Meanwhile workers get SIGKILL. The job goes back to its newest
snapshot, and asks again for the orders whose customers had not come. In the end each order must be
in the committed files once, with the name of its customer.

Starts a PostgreSQL server of its own (`apt-get install postgresql`), if no --dsn is given. Needs
psycopg (`pip install 'psycopg[binary]'`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psycopg
from killed import HeldBackSource, Kills

from penstock import (
    AsyncDataStream,
    AsyncRetryStrategy,
    BatchedFunction,
    FileSink,
    JsonLines,
    RequestCache,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
)
from penstock.testing.servers.postgres import PostgresServer

CUSTOMERS = 2_000


def order(number: int) -> tuple[int, int]:
    """Return the order of a number: its number, and that of its customer. Some order often."""
    return number, number * 7919 % CUSTOMERS if number % 3 else number % 10


def name_of(customer: int) -> str:
    """Return the name of a customer."""
    return f"customer {customer * 31 % 1000}"


class LookUpCustomers(BatchedFunction):
    """Returns the name of the customer of each order; None for one that is not in the table.

    Arguments:
        dsn: the address of the database.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection: psycopg.Connection | None = None

    def invoke_batch(self, values: list[tuple[int, int]]) -> list[str | None]:
        if self.connection is None or self.connection.closed:
            self.connection = psycopg.connect(self.dsn, autocommit=True)
        customers = [customer for _, customer in values]
        rows = self.connection.execute(
            "SELECT id, name FROM customers WHERE id = ANY(%s)", (customers,)
        )
        names = dict(rows.fetchall())
        return [names.get(customer) for customer in customers]

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def is_lost(error: Exception) -> bool:
    """Return whether an error says that the connection is lost, so that a repetition may help."""
    return isinstance(error, psycopg.OperationalError)


def enrich(
    given: argparse.Namespace, dsn: str, gate: Path, output: Path
) -> StreamExecutionEnvironment:
    """Return the program."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(given.parallelism)
    env.enable_checkpointing(50)  # milliseconds
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(given.kills + 3, 0))
    orders = env.from_source(HeldBackSource(given.orders, order, gate), None, "orders")
    named = AsyncDataStream.batched(
        orders.key_by(lambda order: order[1]),  # so that each customer is in one cache
        LookUpCustomers(dsn),
        Time.seconds(60),
        batch_size=given.batch_size,
        batch_wait=0,
        cache=RequestCache(Time.minutes(10), key=lambda order: order[1]) if given.cache else None,
        combine=lambda order, name: (order[0], name),
        retry=AsyncRetryStrategy.fixed_delay(50, 100, exception_predicate=is_lost),
        run_in="thread",  # psycopg's connection is for one thread at a time
    )
    named.name("customers").sink_to(FileSink(output, JsonLines()))
    return env


def fill(dsn: str) -> None:
    """Create the table of customers."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL)")
        rows = [(customer, name_of(customer)) for customer in range(CUSTOMERS)]
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO customers VALUES (%s, %s)", rows)


def main() -> int:
    """Run the job, and compare what was committed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=8_000)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--parallelism", "-p", type=int, default=2)
    parser.add_argument("--dsn", help="the address of an empty database")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-example-"))
        dsn = given.dsn
        if dsn is None:
            server = stack.enter_context(PostgresServer(Path(folder) / "server"))
            dsn = server.create_database()
        fill(dsn)
        gate, output = Path(folder) / "gate", Path(folder) / "orders"
        kills = Kills(given.kills, gate)
        result = kills.run(enrich(given, dsn, gate, output), "lookup")
        calls, asked = result.metric("numCalls"), result.metric("numRecordsInCalls")
        print(
            f"lookup: {given.orders:,} orders in {kills.seconds:.1f} s · {calls:,} queries for "
            f"{asked:,} orders · {result.metric('numCacheHits'):,} from the cache"
        )
        orders = map(order, range(given.orders))
        return kills.report(output, Counter((one, name_of(customer)) for one, customer in orders))


if __name__ == "__main__":
    sys.exit(main())
