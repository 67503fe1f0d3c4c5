"""Keep a copy of a table by its changes, and count them: change data capture, exactly once.

    python examples/connectors/postgres_copy.py

Starts a PostgreSQL server of its own (`apt-get install postgresql`), if no --database is given.
Needs psycopg (`pip install 'penstock[postgres]'`). A thread changes the table while the job reads
it. In the end the copy must be equal to the table.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from penstock import JobClient, StreamExecutionEnvironment
from penstock.connectors.postgres import PostgresCdcSource, PostgresSink
from penstock.testing.servers.postgres import PostgresServer


def create_tables(database: str) -> None:
    """Create a table with stocks, and the tables that the job writes."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE stocks (product text PRIMARY KEY, quantity int)")
        connection.execute("CREATE TABLE stocks_copy (LIKE stocks INCLUDING ALL)")
        connection.execute("CREATE TABLE changes (product text PRIMARY KEY, count int)")
        connection.execute("INSERT INTO stocks SELECT 'p' || i, i FROM generate_series(1, 500) i")


@contextmanager
def changing(database: str) -> Iterator[None]:
    """Change the table in random transactions, until the block is left."""
    over, rng = threading.Event(), random.Random(7)

    def change() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not over.wait(0.001):
                product = f"p{rng.randint(1, 600)}"
                if rng.random() < 0.2:
                    connection.execute("DELETE FROM stocks WHERE product = %s", [product])
                else:
                    connection.execute(
                        "INSERT INTO stocks VALUES (%s, 1) ON CONFLICT (product) "
                        "DO UPDATE SET quantity = stocks.quantity + 1",
                        [product],
                    )

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def changes_of(database: str) -> PostgresCdcSource:
    """Return the source of the changes."""
    return PostgresCdcSource(
        database, slot="stocks_copy", publication="stocks", tables=["public.stocks"]
    )


def start_job(database: str, folder: Path) -> JobClient:
    """Start the job, which begins with the rows of the table, and never ends."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.enable_checkpointing(200)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder)
    changes = env.from_source(changes_of(database), None, "stocks")
    changes.sink_to(PostgresSink(database, "stocks_copy", key=["product"]))
    pairs = changes.map(lambda change: ((change.after or change.before)["product"], 1))
    counts = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    columns = ["product", "count"]
    counts.sink_to(PostgresSink(database, "changes", key=["product"], columns=columns))
    return env.execute_async("copy stocks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", help="the connection string of an empty database")
    database = parser.parse_args().database
    with tempfile.TemporaryDirectory() as folder:
        server = None if database else PostgresServer(Path(folder) / "server").start()
        try:
            copy(database or server.create_database(), Path(folder))
        finally:
            if server is not None:
                server.stop()


def copy(database: str, folder: Path) -> None:
    create_tables(database)
    with changing(database):
        client = start_job(database, folder / "job")
        wait_until(database, "SELECT sum(count) >= 1000 FROM changes")
    # Nothing changes any more.
    wait_until(
        database,
        "SELECT NOT EXISTS ((TABLE stocks EXCEPT TABLE stocks_copy) UNION ALL "
        "(TABLE stocks_copy EXCEPT TABLE stocks))",
    )
    client.cancel().result()
    changes_of(database).drop_slot()
    print("the copy has the rows of the table")


def wait_until(database: str, question: str) -> None:
    """Wait until the answer to a query is true."""
    with psycopg.connect(database, autocommit=True) as connection:
        while connection.execute(question).fetchone() != (True,):
            time.sleep(0.1)


if __name__ == "__main__":
    main()
