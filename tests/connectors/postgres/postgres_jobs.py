"""Jobs with PostgreSQL that are killed, and what their output must be.

The *counting* job writes running counts to a table, so a record that is lost or counted twice
shows, and so does output that is written twice. The *copying* job reads the changes of a table that
other connections change at random. It writes each change to a table, and keeps a copy.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.postgres import Change, PostgresCdcSource, PostgresSink
from penstock.connectors.postgres.initial_rows import end_of_log
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split, TimedRead
from penstock.testing.servers.postgres import PostgresServer
from tests.connectors.postgres.replica import Replica, drop_slots
from tests.processes.harness import (
    Killer,
    Settings,
    compared,
    expected_words,
    run_to_the_end,
)
from tests.processes.parts import PartedSource, has_let_all_go, let_all_go


def _environment(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 10))
    return env


# ---- counting


def create_counts(database: str) -> None:
    """Create the tables of the counting job."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE counts (word text, number int)")
        connection.execute("CREATE TABLE newest (word text PRIMARY KEY, number int)")


def counting_job(settings: Settings, database: str) -> StreamExecutionEnvironment:
    """Return a job that counts words, and writes each count, and the newest by word."""
    env = _environment(settings)
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    pairs = numbers.map(lambda i: (f"word{i * 7919 % 499}", 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counted.uid("count").sink_to(PostgresSink(database, "counts", columns=["word", "number"])).uid(
        "counts"
    )
    counted.key_by(lambda pair: pair[0]).sink_to(
        PostgresSink(database, "newest", key=["word"], columns=["word", "number"])
    ).uid("newest")
    return env


def judge_counts(settings: Settings, database: str) -> tuple[int, int]:
    """Return how many counts are lost, and how many are doubled."""
    with psycopg.connect(database) as connection:
        seen = Counter(connection.execute("SELECT word, number FROM counts").fetchall())
        newest = Counter(connection.execute("SELECT word, number FROM newest").fetchall())
    words = expected_words(settings)
    lost, doubled = compared(seen, {(word, i + 1) for word, n in words.items() for i in range(n)})
    more_lost, more_doubled = compared(newest, set(words.items()))
    return lost + more_lost, doubled + more_doubled


# ---- copying


class EndingChanges(PostgresCdcSource):
    """Ends when all is let go, at the end of the log at that time.

    Arguments:
        settings: the settings of the job.
        database: the connection string.
        slot: the name of the slot.
    """

    def __init__(self, settings: Settings, database: str, slot: str) -> None:
        super().__init__(database, slot=slot, publication="changes", tables=["public.original"])
        self.gate = settings.gate

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _EndingReader(self, super().create_reader(context))


class _EndingReader(SourceReader):
    blocking = True

    def __init__(self, source: EndingChanges, reader: SourceReader) -> None:
        self._source, self._reader = source, reader
        self._end: int | None = None

    def open(self, split: Split, position: Any) -> None:
        self._reader.open(split, position)

    def read(self, max_records: int) -> Read:
        source = self._source
        if self._end is None and has_let_all_go(source.gate):
            with psycopg.connect(source.options.conninfo, autocommit=True) as connection:
                self._end = end_of_log(connection)
        read = self._reader.read(max_records)
        assert isinstance(read, TimedRead)
        lsn, xid, _, rows, _ = read.position
        in_log = rows is None or rows[2] is not None
        if self._end is not None and in_log and lsn >= self._end and not xid:
            return TimedRead(Read(read.records, read.position, True), read.timestamps)
        return read

    def snapshot_completed(self, position: Any) -> None:
        self._reader.snapshot_completed(position)

    def close(self) -> None:
        self._reader.close()


def create_original(database: str, rows: int = 300) -> None:
    """Create a table with rows, and the tables that the copying job writes."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE original (id int PRIMARY KEY, v int, pad text)")
        connection.execute("CREATE TABLE copy (LIKE original INCLUDING ALL)")
        connection.execute(
            "CREATE TABLE changes (n bigserial, op text, old int, id int, v int, lsn bigint)"
        )
        connection.execute(
            "INSERT INTO original SELECT i, 0, 'x' FROM generate_series(1, %s) AS i", [rows]
        )


def _as_row(change: Change) -> dict[str, Any]:
    before, after = change.before or {}, change.after or {}
    return {
        "op": change.op,
        "old": before.get("id"),
        "id": after.get("id"),
        "v": after.get("v"),
        "lsn": change.lsn,
    }


def copying_job(settings: Settings, database: str, slot: str) -> StreamExecutionEnvironment:
    """Return a job that writes each change of a table, and keeps a copy of it."""
    env = _environment(settings)
    changes = env.from_source(EndingChanges(settings, database, slot), None, "changes")
    changes.uid("changes")
    rows = changes.map(_as_row).set_parallelism(1).uid("rows")
    columns = ["op", "old", "id", "v", "lsn"]
    rows.sink_to(PostgresSink(database, "changes", columns=columns)).set_parallelism(1).uid("log")
    copy = PostgresSink(database, "copy", key=["id"])
    changes.sink_to(copy).set_parallelism(1).uid("copy")
    return env


def judge_copy(database: str) -> tuple[int, int, int]:
    """Return how many rows of the copy are lost, how many are wrong, and the number of changes.

    Raise an `AssertionError` if the changes do not fit each other: each update adds 1 to a row.
    """
    replica = Replica()
    with psycopg.connect(database) as connection:
        cursor = connection.execute("SELECT op, old, id, v FROM changes ORDER BY n")
        count = 0
        for op, old, id, v in cursor:
            count += 1
            before = None if old is None else {"id": old}
            after = None if id is None else {"id": id, "v": v}
            if op == "update":
                known = replica.tables["t"].get((id if old is None else old,))
                assert known is not None, f"the change before {op} {old} {id} {v} is lost"
                assert known["v"] + 1 == v, f"lost or doubled: {known} {op} {old} {id} {v}"
            replica.apply(Change(op, "t", before, after, 0))
        wanted = set(connection.execute("SELECT * FROM original").fetchall())
        seen = Counter(connection.execute("SELECT * FROM copy").fetchall())
    assert {(row["id"], row["v"]) for row in replica.rows("t")} == {row[:2] for row in wanted}
    return *compared(seen, wanted), count


class Writer:
    """Changes the original table in random transactions, also while its server restarts.

    Arguments:
        database: the connection string.
        seed: draws what happens.
    """

    def __init__(self, database: str, seed: int) -> None:
        self._database, self._rng, self._ended = database, random.Random(seed), threading.Event()
        self.transactions = 0
        self._next = 1_000
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(self._database) as connection:
                    while not self._ended.wait(0.002):
                        for _ in range(self._rng.choice((1, 1, 3, 20))):
                            self._change(connection)
                        (connection.rollback if self._rng.random() < 0.1 else connection.commit)()
                        self.transactions += 1
            except psycopg.OperationalError:
                self._ended.wait(0.1)

    def _change(self, connection: Any) -> None:
        rng, kind = self._rng, self._rng.random()
        id = rng.choice((rng.randint(1, 300), rng.randint(1_000, self._next)))
        self._next += 1
        if kind < 0.4:
            connection.execute("INSERT INTO original VALUES (%s, 0, 'y')", [self._next])
        elif kind < 0.7:
            connection.execute("UPDATE original SET v = v + 1 WHERE id %% 50 = %s", [id % 50])
        elif kind < 0.8:
            connection.execute(
                "UPDATE original SET v = v + 1, id = %s WHERE id = %s", [self._next, id]
            )
        else:
            connection.execute("DELETE FROM original WHERE id = %s", [id])

    def stop(self) -> None:
        """Stop after the current transaction."""
        self._ended.set()
        self._thread.join()


# ---- faults


@dataclass
class Disturber(Killer):
    """Kills processes of the job, and also disturbs the server between the kills.

    Arguments:
        faults: what is done to the server, one of them at random after some snapshots.
        disturbances: how many of them in all.
        done: the names of those that were done.
    """

    faults: tuple[Callable[[], str], ...] = ()
    disturbances: int = 0
    done: list[str] = field(default_factory=list)
    _disturbing: threading.Thread | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        super().__call__(event)
        idle = self._disturbing is None or not self._disturbing.is_alive()
        if event["event"] == "snapshot" and idle and len(self.done) < self.disturbances:
            self._disturbing = threading.Thread(target=self._disturb, daemon=True)
            self._disturbing.start()

    def _disturb(self) -> None:
        self.done.append(self.rng.choice(self.faults)())

    def settle(self) -> None:
        """Wait for the last disturbance."""
        if self._disturbing is not None:
            self._disturbing.join()

    @property
    def is_over(self) -> bool:
        """Whether all kills and disturbances have happened."""
        return len(self.killed) >= self.kills and len(self.done) >= self.disturbances


def restart(server: PostgresServer) -> Callable[[], str]:
    """Return a function that kills a server and starts it again."""

    def run() -> str:
        server.kill()
        server.start()
        return "server killed"

    return run


def cut(database: str) -> Callable[[], str]:
    """Return a function that cuts all other connections to a database."""

    def run() -> str:
        try:
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
        except psycopg.OperationalError:
            return "server not there to cut connections"
        return "connections cut"

    return run


def disturber(seed: int, kills: int, **options: Any) -> Disturber:
    """Return what kills a job so often, anywhere."""
    return Disturber(
        random.Random(seed),
        kills,
        ("worker", "jobmanager", "both"),
        after_snapshots=None,
        **options,
    )


def when_over(killer: Disturber, then: Callable[[], None]) -> threading.Thread:
    """Call a function when all kills and disturbances have happened."""

    def watch() -> None:
        while not killer.is_over:
            threading.Event().wait(0.02)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def copy_table(
    settings: Settings, database: str, killer: Disturber, seed: int
) -> tuple[int, int, int]:
    """Run the copying job while its table is changed, and return what `judge_copy` returns."""
    create_original(database)
    writer, slot = Writer(database, seed), f"copy_{uuid.uuid4().hex[:8]}"

    def end() -> None:
        writer.stop()
        let_all_go(settings.gate)

    watching = when_over(killer, end)
    try:
        run_to_the_end(settings, killer, job=lambda s: copying_job(s, database, slot))
    finally:
        writer.stop()
    watching.join()
    killer.settle()
    drop_slots(database)
    return judge_copy(database)
