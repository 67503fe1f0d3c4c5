"""`PostgresCdcSource`: rows, changes, restarts anywhere, slots that are in use or gone."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import uuid
from typing import Any

import psycopg
import pytest

from penstock import GraphError, JobError, Recoverability, RowKind, StreamExecutionEnvironment
from penstock.connectors.postgres import (
    Change,
    PostgresCdcSource,
    PostgresSource,
    change_reader,
    initial_rows,
)
from penstock.testing.connectors import SourceConformance
from penstock.testing.servers.postgres import PostgresServer
from tests.connectors.postgres.replica import CONTEXT, Reading, Replica, cdc, drop_slots


@pytest.fixture(autouse=True)
def clean(database):
    yield
    drop_slots(database)


@pytest.fixture
def begin(database):
    """Return a function that begins to read; what it has begun is closed at the end."""
    begun = []

    def begin_reading(source=None, **options):
        begun.append(Reading(source or cdc(database, **options)))
        return begun[-1]

    yield begin_reading
    for reading in begun:
        reading.close()


def brief(records):
    return [(c.op, c.before, c.after) for c in records]


TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def test_rows_come_first_and_then_each_change(run, begin):
    run(f"{TABLE}; INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    reading = begin()
    assert brief(reading.take(2)) == [
        ("read", None, {"id": 1, "v": "a"}),
        ("read", None, {"id": 2, "v": "b"}),
    ]
    run("INSERT INTO t VALUES (3, NULL)")
    run("UPDATE t SET v = 'é' WHERE id = 1")
    run("UPDATE t SET id = 20 WHERE id = 2")
    run("DELETE FROM t WHERE id = 3")
    run("INSERT INTO t VALUES (4, 'd'); DELETE FROM t WHERE id = 4")
    assert brief(reading.take(6)) == [
        ("insert", None, {"id": 3, "v": None}),
        ("update", None, {"id": 1, "v": "é"}),
        ("update", {"id": 2}, {"id": 20, "v": "b"}),
        ("delete", {"id": 3}, None),
        ("insert", None, {"id": 4, "v": "d"}),
        ("delete", {"id": 4}, None),
    ]


def test_the_event_time_is_that_of_the_commit(run, begin):
    run(TABLE)
    reading = begin()
    reading.rest()
    run("INSERT INTO t VALUES (1, 'a')")
    while not (read := reading.read()).records:
        pass
    ((time,),) = run("SELECT pg_xact_commit_timestamp(xmin) FROM t")
    assert read.timestamps == [int(time.timestamp() * 1000)]


def test_old_values_come_with_replica_identity_full(run, begin):
    run(f"{TABLE}; ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1, 'a')")
    reading = begin(initial_rows=False, as_="row")
    reading.rest()
    run("UPDATE t SET v = 'b'; DELETE FROM t")
    rows = reading.take(3, max_records=1)
    assert [str(row.get_row_kind()) for row in rows] == ["-U", "+U", "-D"]
    assert [row.as_dict() for row in rows] == [
        {"id": 1, "v": "a"},
        {"id": 1, "v": "b"},
        {"id": 1, "v": "b"},
    ]


def test_rows_without_all_old_values_are_an_upsert_stream(run, begin):
    run(f"{TABLE}; INSERT INTO t VALUES (1, 'a')")
    reading = begin(as_="row")
    (row,) = reading.take(1)
    assert row.get_row_kind() is RowKind.INSERT
    run("UPDATE t SET id = 2; DELETE FROM t")
    rows = reading.take(2)
    assert [(str(row.get_row_kind()), row.as_dict()) for row in rows] == [
        ("+U", {"id": 2, "v": "a"}),
        ("-D", {"id": 2}),
    ]


@pytest.mark.parametrize("full", [False, True])
def test_large_values_that_do_not_change_are_named(run, begin, full):
    run("CREATE TABLE t (id int PRIMARY KEY, v text, n int)")
    run("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    if full:
        run("ALTER TABLE t REPLICA IDENTITY FULL")
    run("INSERT INTO t VALUES (1, repeat('x', 10000), 1)")
    reading = begin()
    reading.take(1)
    run("UPDATE t SET n = 2")
    (change,) = reading.take(1)
    if full:
        assert change.after == {"id": 1, "v": "x" * 10000, "n": 2} and change.unchanged == ()
    else:
        assert change.after == {"id": 1, "n": 2} and change.unchanged == ("v",)


def test_changes_have_the_same_values_as_a_query(database, run, begin):
    run("CREATE DOMAIN amount AS numeric(9, 2); CREATE TYPE mood AS ENUM ('sad', 'glad')")
    run(
        "CREATE TABLE t (id int PRIMARY KEY, a smallint, b bigint, c numeric, d real, e float8, "
        "f boolean, g text, h char(3), i bytea, j date, k timestamp, l timestamptz, m interval, "
        "n uuid, o json, p jsonb, q int[], r text[], s amount, u mood, v inet, "
        "w int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    reading = begin()
    reading.rest()
    run(
        "INSERT INTO t VALUES (1, 2, 3, 1.50, 0.1, 0.1, true, 'é', 'x', '\\x00ff', '2024-02-29', "
        "'2024-02-29 12:00:00.000001', '2024-02-29 12:00+02', '1 day 2 s', "
        "'12345678123456781234567812345678', '[1]', '{\"a\": null}', '{1,NULL}', '{a,b}', 7, "
        "'glad', '::1')"
    )
    run("INSERT INTO t VALUES (2)")
    changes = {change.after["id"]: change.after for change in reading.take(2)}
    source = PostgresSource(database, "t", key="id", splits=1)
    (split,) = source.splits()
    poller = source.create_poller(split)
    poller.seek(None)
    for row in poller.poll(10):
        del row["w"]  # a generated column is not in the log
        assert changes[row["id"]] == row
        assert list(map(type, changes[row["id"]].values())) == list(map(type, row.values()))
    poller.close()
    again = begin()
    assert {change.after["id"]: change.after for change in again.take(2)} == changes


def test_truncation_is_a_change_an_error_or_left_out(run, begin):
    run(f"{TABLE}; INSERT INTO t VALUES (1, 'a')")
    change, row, silent = begin(), begin(as_="row"), begin(as_="row", skip_truncate=True)
    for reading in (change, row, silent):
        reading.take(1)
        reading.rest()
    run("TRUNCATE t; INSERT INTO t VALUES (2, 'b')")
    assert [c.op for c in change.take(2)] == ["truncate", "insert"]
    assert [str(r.get_row_kind()) for r in silent.take(1)] == ["+I"]
    with pytest.raises(JobError, match="was truncated, which no RowKind says") as caught:
        row.take(1)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    assert Change("truncate", "public.t", None, None, 1).after is None


def test_only_the_chosen_tables_come(run, begin):
    run(f"{TABLE}; CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE w (id int)")
    run("CREATE PUBLICATION changes FOR TABLE t, u")
    one, both = begin(), begin(tables=None)
    assert one.rest() == both.rest() == []
    run("INSERT INTO u VALUES (1); INSERT INTO w VALUES (1); INSERT INTO t VALUES (2)")
    assert [c.table for c in one.take(1)] == ["public.t"]
    assert [c.table for c in both.take(2)] == ["public.u", "public.t"]


def test_what_a_publication_leaves_out_is_not_among_the_rows_either(run, begin):
    run("CREATE TABLE t (id int PRIMARY KEY, v text, secret text)")
    run("INSERT INTO t SELECT i, 'a%b', 's' FROM generate_series(1, 6) AS i")
    run("CREATE PUBLICATION changes FOR TABLE t (id, v) WHERE (id % 2 = 0)")
    reading = begin()
    found = [change.after for change in reading.rest()]
    run("INSERT INTO t VALUES (7, 'c', 's'), (8, 'd', 's')")
    found += [change.after for change in reading.take(1)]
    assert found == [{"id": i, "v": "a%b"} for i in (2, 4, 6)] + [{"id": 8, "v": "d"}]


# ---- restarts


class _Conformance(SourceConformance):
    @pytest.fixture(autouse=True)
    def hurry(self, monkeypatch):
        """Let each reader end the connection of the one before at once; each test has dozens."""
        monkeypatch.setattr(change_reader, "_TAKE_OVER_SECONDS", 0.05)

    def test_an_old_reader_that_reads_on_changes_nothing(self) -> None:
        """A slot has one reader: the new one ends the connection of the old one."""
        source = self.create_source()
        old, new = Reading(source), Reading(source)
        found = old.take(1, max_records=1)
        new.restart(position=old.position)
        found += self.until_the_end(new)
        with contextlib.suppress(JobError):
            while not old.read(1).finished:
                pass
        old.close()
        new.close()
        assert sorted(map(repr, found)) == sorted(map(repr, self.expected()))

    @staticmethod
    def until_the_end(reading):
        while True:
            read = reading.read(3)
            yield from read.records
            if read.finished:
                return


class TestLog(_Conformance):
    parallelisms = (1, 2)

    @pytest.fixture(autouse=True)
    def log(self, database, run):
        run(f"{TABLE}; ALTER TABLE t REPLICA IDENTITY FULL; CREATE PUBLICATION changes FOR TABLE t")
        slot = f"log_{uuid.uuid4().hex}"
        self.source = lambda: cdc(database, slot=slot, as_="row", initial_rows=False, bounded=True)
        self.source().create_enumerator(1).start()
        run("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 4) AS i")
        run("UPDATE t SET v = 'b' WHERE id < 3; DELETE FROM t WHERE id = 2")
        reading = Reading(self.source())
        self.rows = list(self.until_the_end(reading))
        reading.close()
        assert len(self.rows) == 9

    def create_source(self) -> Any:
        return self.source()

    def expected(self) -> Any:
        return self.rows


class TestRowsAndLog(_Conformance):
    parallelisms = (1,)

    @pytest.fixture(autouse=True)
    def rows(self, database, run, monkeypatch):
        monkeypatch.setattr(initial_rows, "FETCH_ROWS", 4)
        run(f"{TABLE}; INSERT INTO t SELECT i, 'a' FROM generate_series(1, 9) AS i")
        slot = f"rows_{uuid.uuid4().hex}"
        self.source = lambda: cdc(database, slot=slot, as_="row", bounded=True)
        self.source().create_enumerator(1).start()
        # The rows include it, so it is left out in the log.
        run("UPDATE t SET v = 'b' WHERE id < 5; DELETE FROM t WHERE id = 2")
        self.rows = [("b" if i < 5 else "a", i) for i in range(1, 10) if i != 2]

    def create_source(self) -> Any:
        return self.source()

    def expected(self) -> Any:
        from penstock import Row

        return [Row("id", "v")(i, v) for v, i in self.rows]


class Writers:
    """Threads that change a table at random, in transactions that overlap.

    Arguments:
        database: the connection string.
        rng: draws what happens.
        table: the table, with the columns id, k and v.
        count: the number of threads.
    """

    def __init__(self, database, rng, table="t", count=3):
        self.database, self.table, self.ended = database, table, threading.Event()
        seeds = [rng.random() for _ in range(count)]
        self.threads = [threading.Thread(target=self.write, args=(seed,)) for seed in seeds]
        self.transactions = 0
        for thread in self.threads:
            thread.start()

    def write(self, seed):
        rng = random.Random(seed)
        settings = "-c deadlock_timeout=10"
        with psycopg.connect(self.database, options=settings) as connection:
            while not self.ended.is_set():
                try:
                    for _ in range(rng.choice((1, 1, 2, 5, 30))):
                        self.change(connection, rng)
                        if rng.random() < 0.1:
                            self.ended.wait(0.01)
                    (connection.rollback if rng.random() < 0.15 else connection.commit)()
                    self.transactions += 1
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    connection.rollback()

    def change(self, connection, rng):
        table, id, other = self.table, rng.randrange(60), rng.randrange(60)
        kind = rng.random()
        if kind < 0.35:
            connection.execute(
                f"INSERT INTO {table} VALUES (%s, 'é' || %s, %s) ON CONFLICT DO NOTHING",
                (id, id % 7, rng.randrange(1000)),
            )
        elif kind < 0.7:
            connection.execute(
                f"UPDATE {table} SET v = v + 1 WHERE id BETWEEN %s AND %s", (id, id + 3)
            )
        elif kind < 0.8:
            connection.execute(f"SAVEPOINT s; DELETE FROM {table} WHERE id = {id}")
            if rng.random() < 0.5:
                connection.execute("ROLLBACK TO s")
        elif kind < 0.9:
            # A row gets another key.
            connection.execute(
                f"UPDATE {table} SET id = {other} WHERE id = {id} "
                f"AND NOT EXISTS (SELECT FROM {table} WHERE id = {other})"
            )
        else:
            connection.execute(f"DELETE FROM {table} WHERE id = %s", (id,))

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.connectors) for seed in range(1, 20))]
)
def test_a_reader_that_restarts_anywhere_keeps_a_copy_of_the_table(
    database, run, begin, seed, monkeypatch
):
    rng = random.Random(seed)
    monkeypatch.setattr(initial_rows, "FETCH_ROWS", 7)
    run('CREATE TABLE t (id int, k text COLLATE "en-x-icu", v int, PRIMARY KEY (k, id))')
    run("INSERT INTO t SELECT i, 'é' || i % 7, 0 FROM generate_series(0, 50) AS i")
    writers = Writers(database, rng)
    try:
        reading, replica = begin(), Replica(key=("k", "id"))
        restarts = mixed = 0
        while restarts < 30 or writers.transactions < 200:
            in_rows = reading.position is None or reading.position[3] is not None
            for change in reading.read(rng.choice((1, 2, 5, *[50] * (not in_rows)))).records:
                replica.apply(change)
            rows = reading.position[3]
            mixed += rows is not None and len(rows[1]) > 1 and rows[2] is not None
            if rng.random() < (0.5 if rows is not None else 0.1):
                if rng.random() < 0.5:
                    reading.reader.snapshot_completed(reading.position)
                reading.restart()
                restarts += 1
    finally:
        writers.stop()
    for change in reading.rest():
        replica.apply(change)
    expected = [dict(zip(("id", "k", "v"), row, strict=True)) for row in run("SELECT * FROM t")]
    assert replica.rows() == sorted(expected, key=replica.key_of)
    # The initial rows were read in several parts, and the log was read with them.
    assert mixed


def test_rows_are_read_when_older_transactions_have_ended(database, run, begin):
    run(f"{TABLE}; CREATE PUBLICATION changes FOR TABLE t")
    run("CREATE TABLE other (id int)")
    source = cdc(database)
    source.create_enumerator(1).start()  # makes the slot
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        reading, found = begin(source), []
        thread = threading.Thread(target=lambda: found.extend(reading.take(1)))
        thread.start()
        thread.join(0.3)
        assert not found
    thread.join()
    assert brief(found) == [("read", None, {"id": 1, "v": "a"})]
    assert reading.rest() == []


def test_the_server_keeps_the_log_until_snapshots_are_complete(database, run, begin):
    run(TABLE)
    reading = begin(keep_snapshots=2)
    reading.rest()

    def confirmed():
        reading.read()
        return run(
            "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots "
            "WHERE database = current_database()"
        )[0][0]

    positions = []
    for number in range(3):
        run(f"INSERT INTO t VALUES ({number}, 'a')")
        reading.take(1)
        reading.rest()
        positions.append(reading.position)
    begun = confirmed()
    assert begun <= reading.split.payload["lsn"]
    reading.reader.snapshot_completed(positions[0])
    assert confirmed() == begun
    reading.reader.snapshot_completed(positions[1])
    while confirmed() < positions[0][0]:
        pass
    assert confirmed() == positions[0][0]
    # A job can go on from each of the two newest snapshots, and from no older one.
    reading.restart(position=positions[0])
    assert [change.after["id"] for change in reading.rest()] == [1, 2]
    reading.reader.snapshot_completed(positions[1])
    reading.reader.snapshot_completed(positions[2])
    while confirmed() < positions[1][0]:
        pass
    with pytest.raises(JobError, match=r"has moved on to .*keep_snapshots") as caught:
        reading.restart(position=positions[0])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_an_idle_slot_does_not_hold_the_log_of_other_tables(database, run, begin):
    run(f"{TABLE}; CREATE TABLE other (id int)")
    reading = begin()
    reading.rest()
    before = reading.position[0]
    run("INSERT INTO other SELECT generate_series(1, 1000)")
    assert reading.rest() == []
    assert reading.position[0] > before + 10_000


def test_a_lost_connection_and_a_killed_server_lose_nothing(tmp_path):
    with PostgresServer(tmp_path / "pg") as server:
        database = server.create_database()

        def run(statement):
            with psycopg.connect(database, autocommit=True) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else None

        run(f"{TABLE}; INSERT INTO t SELECT i, 'a' FROM generate_series(1, 9) AS i")
        reading, replica = Reading(cdc(database)), Replica()

        def disconnect():
            run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )

        def kill():
            server.kill()
            server.start()

        def stop():
            # The server waits for the reader, which notices that it shall end.
            server.stop()
            server.start()

        def read_on(reader, errors):
            try:
                while True:
                    reader.read(1000)
            except JobError as error:
                errors.append(error)
            reader.close()

        for number, end in enumerate((disconnect, kill, stop) * 2):
            for change in reading.take(3, max_records=3):
                replica.apply(change)
            errors = []
            thread = threading.Thread(target=read_on, args=(reading.reader, errors), daemon=True)
            thread.start()
            while run("SELECT active_pid FROM pg_replication_slots") == [(None,)]:
                pass
            end()
            thread.join()
            assert errors[0].recoverability is Recoverability.ENVIRONMENT
            run(
                f"INSERT INTO t SELECT i, 'b' FROM generate_series({100 * number + 100}, "
                f"{100 * number + 120}) AS i; DELETE FROM t WHERE id = {number + 1}"
            )
            reading.restart()
        for change in reading.rest():
            replica.apply(change)
        with psycopg.connect(database) as connection:
            rows = connection.execute("SELECT id, v FROM t ORDER BY id").fetchall()
        assert [tuple(row.values()) for row in replica.rows()] == rows
        reading.close()


# ---- slots


def test_a_slot_in_use_is_taken_over_from_an_earlier_reader(run, begin):
    run(TABLE)
    reading = begin()
    reading.rest()
    later = Reading.__new__(Reading)
    later.__dict__.update(reading.__dict__, reader=None)
    later.restart()
    run("INSERT INTO t VALUES (1, 'a')")
    assert [change.after["id"] for change in later.take(1)] == [1]
    with pytest.raises(JobError) as caught:
        while True:
            reading.read()
    assert caught.value.recoverability is Recoverability.ENVIRONMENT
    later.close()


def test_a_slot_in_use_by_somebody_else_is_named(database, run, begin):
    run(TABLE)
    first = begin(slot="shared_slot")
    first.rest()
    pid = run("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'shared_slot'")[0][0]
    message = f"in use by the connection with PID {pid} .'penstock slot shared_slot'"
    with pytest.raises(JobError, match=message) as caught:
        begin(slot="shared_slot", slot_seconds=0.2)
    assert caught.value.recoverability is Recoverability.ENVIRONMENT
    second = cdc(database, slot="shared_slot", slot_seconds=0.2, take_over=False)
    reader = second.create_reader(CONTEXT)
    reader.open(first.split, first.position)
    with pytest.raises(JobError, match=message):
        reader.read(1)
    reader.close()
    first.rest()
    first.close()
    second.drop_slot()
    second.drop_slot()
    assert run("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'shared_slot'") == []


def test_a_slot_that_is_gone_is_refused_with_what_is_lost(run, begin):
    run(TABLE)
    reading = begin()
    reading.rest()
    reading.close()
    reading.source.drop_slot()
    since = re.escape(f"{reading.position[0] >> 32:X}/{reading.position[0] & 0xFFFFFFFF:X}")
    message = f"does not exist any more. So the changes since {since} are gone"
    with pytest.raises(JobError, match=message) as caught:
        reading.restart()
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_slot_whose_log_was_removed_is_refused(tmp_path):
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with PostgresServer(tmp_path / "pg", settings=settings) as server:
        database = server.create_database()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TABLE)
            reading = Reading(cdc(database))
            reading.rest()
            reading.close()
            for _ in range(6):
                connection.execute(
                    "INSERT INTO t SELECT 1, repeat('x', 99) FROM "
                    "generate_series(1, 100000) ON CONFLICT DO NOTHING"
                )
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CHECKPOINT")
        with pytest.raises(JobError, match="its log was larger than max_slot_wal_keep_size"):
            reading.restart()
        with pytest.raises(JobError, match="its log was larger than max_slot_wal_keep_size"):
            Reading(reading.source)
        reading.close()


def test_a_slot_of_another_kind_is_refused(database, run, begin):
    run(TABLE)
    run("SELECT pg_create_logical_replication_slot('of_test', 'test_decoding')")
    with pytest.raises(JobError, match="is of the plug-in test_decoding"):
        begin(slot="of_test")


# ---- what is wrong


def test_a_change_of_the_schema_is_followed_or_ends_the_job(database, run, begin, caplog):
    run(f"{TABLE}; INSERT INTO t VALUES (1, 'a')")
    reading, strict = begin(), begin(on_schema_change="fail")
    for one in (reading, strict):
        one.rest()
    run("INSERT INTO t VALUES (2, 'b')")
    for one in (reading, strict):
        one.take(1)
    run("ALTER TABLE t ADD n int, ALTER v TYPE int USING 7")
    run("INSERT INTO t VALUES (3, 8, 9)")
    assert [change.after for change in reading.take(1)] == [{"id": 3, "v": 8, "n": 9}]
    assert "public.t has changed: the column n is new, the column v has another" in caplog.text
    position = strict.position
    for _ in range(2):
        with pytest.raises(JobError, match=r"public\.t has changed: the column n is new") as caught:
            strict.take(1)
        assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
        strict.restart(position=position)
    strict.restart(position, cdc(database, slot=strict.source.options.slot))
    assert [change.after for change in strict.take(1)] == [{"id": 3, "v": 8, "n": 9}]


@pytest.mark.parametrize(
    ("before", "options", "message"),
    [
        ("", {"tables": None}, "no publication 'changes' in this database: run CREATE"),
        ("", {"tables": ["public.u"]}, 'relation "public.u" does not exist'),
        ("CREATE PUBLICATION changes", {}, 'run ALTER PUBLICATION "changes" ADD TABLE public.t'),
        (
            "CREATE TABLE u (id int); CREATE PUBLICATION changes FOR TABLE t, u",
            {"tables": None},
            "the table public.u has no primary key",
        ),
        (
            "CREATE TABLE u (id int); CREATE PUBLICATION changes FOR TABLE t, u",
            {"tables": None, "as_": "row", "initial_rows": False},
            "has 2 tables: choose one",
        ),
    ],
)
def test_what_is_missing_says_what_to_do(database, run, begin, before, options, message):
    run(TABLE)
    if before:
        run(before)
    with pytest.raises(JobError, match=message) as caught:
        begin(**options)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_server_without_logical_replication_is_refused(tmp_path):
    with PostgresServer(tmp_path / "pg", settings={"wal_level": "replica"}) as server:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_in_process(True)
        env.from_source(cdc(server.create_database())).print()
        with pytest.raises(GraphError, match="wal_level = replica, and change data capture needs"):
            env.execute()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slot": "My-Slot"}, "lower-case letters"),
        ({"as_": "dict"}, 'as_ is "change" or "row"'),
        ({"on_schema_change": "ignore"}, '"follow" or "fail"'),
        ({"keep_snapshots": 0}, "at least 1"),
        ({"tables": "public.t"}, "a list of names with schemas"),
        ({"tables": ["t"]}, "a list of names with schemas"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    arguments = {"slot": "s", "publication": "p", **options}
    with pytest.raises(GraphError, match=message):
        PostgresCdcSource("", **arguments)


def test_a_job_reads_rows_and_changes_to_the_end(database, run):
    run(f"{TABLE}; INSERT INTO t SELECT i, 'a' FROM generate_series(1, 100) AS i")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process(True)
    found = list(env.from_source(cdc(database, bounded=True)).execute_and_collect())
    assert sorted(change.after["id"] for change in found) == list(range(1, 101))
