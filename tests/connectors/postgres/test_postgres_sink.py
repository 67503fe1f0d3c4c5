"""`PostgresSink`: rows added, replaced and deleted exactly once, and what the ledger says."""

from __future__ import annotations

import datetime
import threading
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pytest

from penstock import (
    GraphError,
    JobError,
    Recoverability,
    Row,
    RowKind,
    StreamExecutionEnvironment,
)
from penstock.connectors.postgres import Change, PostgresSink
from penstock.connectors.staged_sink import Marker, SinkPlace
from penstock.testing.connectors import SinkConformance
from penstock.testing.servers.postgres import PostgresServer


class _Conformance(SinkConformance):
    whole_snapshots = True

    @pytest.fixture(autouse=True)
    def tables(self, database):
        with psycopg.connect(database, autocommit=True) as connection:
            self.database, self.connection = database, connection
            self.made = set()
            yield

    def table(self, place):
        if place.name not in self.made:
            self.made.add(place.name)
            self.connection.execute(
                f'CREATE TABLE "{place.name}" (id int PRIMARY KEY, v text)'.encode()
            )
        return f'"{place.name}"'

    def record(self, number):
        return {"id": number, "v": f"\\a\tb\n{number}"}

    def read_output(self, place):
        rows = self.connection.execute(f"SELECT * FROM {self.table(place)}".encode())
        return [{"id": id, "v": v} for id, v in rows]


class TestAddedRows(_Conformance):
    def create_sink(self, place) -> Any:
        return PostgresSink(self.database, self.table(place))


class TestReplacedRows(_Conformance):
    def create_sink(self, place) -> Any:
        return PostgresSink(self.database, self.table(place), key=["id"])


class Sinking:
    """Publishes batches as the committer does.

    Arguments:
        sink: the sink.
    """

    def __init__(self, sink, lineage=None):
        self.sink = sink
        self.place = SinkPlace(lineage or uuid.uuid4().hex, "sink", "Sink")
        self.encode = sink.create_encoder(None)
        self.target = sink.connect(self.place)
        try:
            self.marker = self.target.fence()
        except JobError:
            self.target.close()
            raise
        self.number = 0 if self.marker is None else self.marker.number

    def write(self, *batches):
        staged = [self.encode(list(batch)) for batch in batches]
        self.number += 1
        self.target.publish(Marker(self.number, "abc"), iter(staged))

    def close(self):
        self.target.close()


@pytest.fixture
def sinking(database):
    made = []

    def make(table="t", lineage=None, **options):
        made.append(Sinking(PostgresSink(database, table, **options), lineage))
        return made[-1]

    yield make
    for one in made:
        one.close()


@dataclass
class Order:
    id: int
    v: str


class OrderTuple(NamedTuple):
    id: int
    v: str


TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 7)"


@pytest.mark.parametrize("key", [None, ["id"]])
def test_records_of_each_kind_become_rows(run, sinking, key):
    run(TABLE)
    sink = sinking(key=key, columns=["id", "v"])
    records = [(1, "a"), {"v": "b", "id": 2}, Order(3, "c"), OrderTuple(4, "d")]
    records += [Row(5, "e"), Row(id=6, v="f"), Row("v", "id")("g", 7), [8, None]]
    records += [Change("insert", "public.u", None, {"id": 9, "v": "i", "n": 1}, 5)]
    sink.write(records)
    texts = [*"abcdefg", None, "i"]
    assert run("SELECT * FROM t ORDER BY id") == [(i + 1, v, 7) for i, v in enumerate(texts)]


def test_columns_are_those_of_the_first_record(run, sinking):
    run(TABLE)
    sink = sinking()
    sink.write([{"n": 1, "id": 1}], [Order(2, "x")][:0], [{"id": 2, "n": 2, "v": "left out"}])
    assert run("SELECT * FROM t ORDER BY id") == [(1, None, 1), (2, None, 2)]
    with pytest.raises(JobError, match="a record lacks 'n': the sink writes the columns") as caught:
        sink.write([{"id": 3}])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    for records in ([(1, 2)], [Row(1, 2)]):
        with pytest.raises(JobError, match="the first record has no names"):
            sinking().write(records)
    with pytest.raises(JobError, match="writes dicts, tuples"):
        sinking(columns=["id"]).write([5])
    with pytest.raises(JobError, match="2 values"):
        sinking(columns=["id", "v"]).write([(1, "a", 3)])


def test_values_of_each_type(run, sinking):
    names = "id a b c d e f g h i j k l m n"
    run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b bytea, c numeric, d float8, e boolean, "
        "f timestamp, g timestamptz, h date, i uuid, j jsonb, k jsonb, l int[], m text[], "
        "n interval)"
    )
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
    row = (1, "\\N\t\r\n\\.é", b"\0\\x", Decimal("1.50"), float("inf"), False, moment)
    row += (moment.replace(tzinfo=datetime.UTC), moment.date(), uuid.uuid4())
    row += (
        {"a": ["\\", None]},
        [1, {"b": 2}],
        [1, None],
        ["a,b", "\\"],
        datetime.timedelta(days=1),
    )
    sink = sinking(columns=names.split(), json_columns=["k"])
    sink.write([row], [(2, *[None] * 14)])
    assert run("SELECT * FROM t ORDER BY id") == [row, (2, *[None] * 14)]


def test_the_last_row_of_a_key_counts(run, sinking):
    run(f"{TABLE}; INSERT INTO t VALUES (1, 'old', 1), (2, 'old', 2), (3, 'old', 3)")
    sink = sinking(key=["id"], columns=["id", "v"])
    gone = lambda *values: Row.of_kind(RowKind.DELETE, *values)  # noqa: E731
    before = lambda *values: Row.of_kind(RowKind.UPDATE_BEFORE, *values)  # noqa: E731
    sink.write(
        [(1, "a"), (1, "b"), gone(2, None), (4, "x"), (4, "y")],
        [
            (1, "c"),
            gone(4, None),
            gone(5, "?"),
            before(3, "old"),
            Row(3, "new"),
            (6, "z"),
            gone(6, "z"),
        ],
    )
    # A column that is not written keeps its value.
    assert run("SELECT * FROM t ORDER BY id") == [(1, "c", 1), (3, "new", 3)]
    sink.write([before(3, "new"), Row.of_kind(RowKind.UPDATE_AFTER, 30, "moved")])
    assert run("SELECT * FROM t ORDER BY id") == [(1, "c", 1), (30, "moved", 7)]


def test_changes_of_another_table_are_applied(run, sinking):
    run(f"{TABLE}; INSERT INTO t VALUES (1, 'stays?', 1)")
    sink = sinking(key=["id"])
    change = lambda op, before, after: Change(op, "public.u", before, after, 1)  # noqa: E731
    sink.write(
        [change("delete", {"id": 1}, None)],
    )
    sink.write(
        [
            change("read", None, {"id": 1, "v": "a", "n": 1}),
            change("insert", None, {"id": 2, "v": "b", "n": 2}),
            change("update", None, {"id": 2, "v": "c", "n": 2}),
            change("update", {"id": 1}, {"id": 10, "v": "a", "n": 1}),
        ]
    )
    assert run("SELECT * FROM t ORDER BY id") == [(2, "c", 2), (10, "a", 1)]
    sink.write(
        [
            change("insert", None, {"id": 3, "v": "d", "n": 3}),
            change("truncate", None, None),
            change("insert", None, {"id": 4, "v": "e", "n": 4}),
        ]
    )
    assert run("SELECT * FROM t ORDER BY id") == [(4, "e", 4)]
    with pytest.raises(JobError, match="REPLICA IDENTITY FULL"):
        sink.write([Change("update", "public.u", None, {"id": 4, "n": 1}, 1, ("v",))])


def test_a_sink_without_a_key_refuses_to_delete(run, sinking):
    run(TABLE)
    sink = sinking(columns=["id", "v"])
    for record in (
        Row.of_kind(RowKind.DELETE, 1, "a"),
        Row.of_kind(RowKind.UPDATE_BEFORE, 1, "a"),
        Change("update", "public.u", None, {"id": 1, "v": "a"}, 1),
        Change("truncate", "public.u", None, None, 1),
    ):
        with pytest.raises(JobError, match="without a key only adds rows") as caught:
            sink.write([record])
        assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_keys_of_several_columns_and_names_that_need_quotes(run, sinking):
    run(
        'CREATE SCHEMA "My"; '
        'CREATE TABLE "My"."T" ("A b" int, "c%" text, PRIMARY KEY ("A b", "c%"))'
    )
    sink = sinking('"My"."T"', key=["A b", "c%"], ledger='"My"."Ledger"')
    sink.write([{"A b": 1, "c%": "x"}, {"A b": 1, "c%": "y"}, {"A b": 1, "c%": "x"}])
    sink.write([{"A b": 1, "c%": "x"}])
    assert run('SELECT * FROM "My"."T" ORDER BY 2') == [(1, "x"), (1, "y")]
    assert run('SELECT number, digest, name FROM "My"."Ledger"') == [(2, "abc", "Sink")]


def test_rows_with_identity_columns_keep_their_values(run, sinking):
    run("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    sinking(key=["id"]).write([{"id": 5, "v": "a"}])
    sinking().write([{"id": 6, "v": "a"}])
    assert run("SELECT id FROM t ORDER BY id") == [(5,), (6,)]


# ---- the ledger


def test_a_failed_transaction_writes_neither_rows_nor_marker(run, sinking):
    run(TABLE)
    sink = sinking(columns=["id", "v"])
    sink.write([(1, "a")])
    with pytest.raises(JobError, match="duplicate key value") as caught:
        sink.write([(2, "b"), (1, "again")])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    assert run("SELECT id FROM t") == [(1,)]
    assert sinking(lineage=sink.place.lineage, columns=["id", "v"]).marker == Marker(1, "abc")


def test_a_new_committer_ends_the_transaction_of_an_old_one(run, sinking):
    run(TABLE)
    old = sinking(columns=["id", "v"])
    old.write([(1, "a")])
    begun, errors = threading.Event(), []

    def slowly():
        yield old.encode([(2, "zombie")])
        begun.set()
        new.wait()
        yield old.encode([(3, "zombie")])

    def publish():
        try:
            old.target.publish(Marker(2), slowly())
        except JobError as error:
            errors.append(error)

    new, thread = threading.Event(), threading.Thread(target=publish)
    thread.start()
    begun.wait()
    later = sinking(lineage=old.place.lineage, columns=["id", "v"])
    assert later.marker == Marker(1, "abc")
    new.set()
    thread.join()
    assert errors[0].recoverability is Recoverability.ENVIRONMENT
    later.write([(2, "new")])
    assert run("SELECT id, v FROM t ORDER BY id") == [(1, "a"), (2, "new")]


def test_an_old_committer_without_a_transaction_writes_nothing(database, run, sinking):
    run(TABLE)
    old = sinking(columns=["id", "v"])
    # As if its connection belonged to another role, which may not be ended.
    old.target._connection.execute("SET application_name = 'another'")
    later = sinking(lineage=old.place.lineage, columns=["id", "v"])
    with pytest.raises(JobError, match="another process writes the output of the sink Sink now"):
        old.write([(1, "zombie")])
    later.write([(1, "new")])
    assert run("SELECT id, v FROM t") == [(1, "new")]


def test_sinks_of_several_jobs_make_one_ledger_at_the_same_time(run, sinking):
    run(TABLE)
    threads = [
        threading.Thread(target=lambda i=i: sinking(columns=["id", "v"]).write([(i, "a")]))
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run("SELECT count(*), (SELECT count(*) FROM penstock_ledger) FROM t") == [(6, 6)]


def test_a_server_that_does_not_answer_is_given_up(tmp_path):
    with PostgresServer(tmp_path / "pg") as server:
        database = server.create_database()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TABLE)
        options = {"columns": ["id", "v"], "timeout_seconds": 1.0}
        sink = Sinking(PostgresSink(database, "t", **options))
        server.pause()
        with pytest.raises(JobError) as caught:
            sink.write([(1, "a")])
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        sink.close()
        server.resume()
        later = Sinking(sink.sink, sink.place.lineage)
        later.write([(1, "a")])
        later.close()


def test_what_is_published_survives_a_killed_server(tmp_path):
    with PostgresServer(tmp_path / "pg", settings={"synchronous_commit": "off"}) as server:
        database = server.create_database()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute(TABLE)
        sink = Sinking(PostgresSink(database, "t", columns=["id", "v"]))
        for number in range(5):
            sink.write([(number, "a")])
        server.kill()
        with pytest.raises(JobError) as caught:
            sink.write([(9, "a")])
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        sink.close()
        server.start()
        later = Sinking(sink.sink, sink.place.lineage)
        assert later.marker == Marker(5, "abc")
        later.close()
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (5,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nothing"}, 'relation "nothing" does not exist'),
        ({"columns": ["nothing"]}, 'column "nothing" does not exist'),
        ({"key": ["nothing"]}, 'column "nothing" does not exist'),
    ],
)
def test_what_is_missing_is_found_before_records_flow(run, sinking, options, message):
    run(TABLE)
    with pytest.raises(JobError, match=message) as caught:
        sinking(**options)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": 1, "v": "a\0"}, "cannot have the character NUL"),
        ({"id": 1, "v": object()}, "cannot adapt"),
        ({"id": "x", "v": "a"}, "invalid input syntax for type integer"),
        ({"id": None, "v": "a"}, "violates not-null constraint"),
    ],
)
@pytest.mark.parametrize("key", [None, ["id"]])
def test_a_row_that_does_not_fit_says_why(run, sinking, record, message, key):
    run(TABLE)
    with pytest.raises(JobError, match=message) as caught:
        sinking(key=key).write([record])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_key_without_a_unique_index_is_refused(run, sinking):
    run("CREATE TABLE t (id int, v text)")
    with pytest.raises(JobError, match="no unique or exclusion constraint matching") as caught:
        sinking(key=["id"]).write([{"id": 1, "v": "a"}])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "id"}, "key is a list of columns"),
        ({"columns": "id"}, "columns is a list of columns"),
        ({"key": ["id"], "columns": ["v"]}, "are not among `columns`"),
        ({"timeout_seconds": 0}, "greater than 0"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(GraphError, match=message):
        PostgresSink("", "t", **options)


def test_a_job_writes_each_row_once(database, run, tmp_path):
    run(TABLE)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    numbers = env.from_sequence(1, 5000).map(lambda i: {"id": i, "v": str(i)})
    numbers.sink_to(PostgresSink(database, "t"))
    env.execute("rows")
    assert run("SELECT count(*), sum(id) FROM t") == [(5000, 12502500)]
