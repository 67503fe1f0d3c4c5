"""`PostgresSource`: ranges of keys of each type, new rows, late commits, wrong arguments."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, NamedTuple

import psycopg
import pytest

from penstock import GraphError, JobError, Recoverability, Row, StreamExecutionEnvironment
from penstock.connectors.postgres import PostgresSource, query_source
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors import SourceConformance


def read_all(source):
    """Read a bounded source, each split in turn."""
    records = []
    for split in source.splits():
        reader = source.create_reader(ReaderContext("s", 0, 1))
        with contextlib.closing(reader):
            reader.open(split, None)
            while True:
                read = reader.read(1000)
                records += read.records
                if read.finished:
                    break
    return records


class _Conformance(SourceConformance):
    """A table with keys of one type."""

    keys: str
    source: ClassVar = {}

    @pytest.fixture(autouse=True)
    def table(self, database, run):
        self.database = database
        run(f"CREATE TABLE t AS SELECT {self.keys}, i AS value FROM generate_series(1, 11) AS i")
        self.rows = run("SELECT * FROM t")

    def create_source(self):
        arguments = {"key": "k", "as_": "tuple", "fetch_rows": 4, "splits": 3, **self.source}
        return PostgresSource(self.database, "t", **arguments)

    def expected(self):
        return self.rows


class TestNumbers(_Conformance):
    keys = "(i * 7919 % 101)::numeric / 3 AS k"


class TestTwoColumns(_Conformance):
    keys = "i % 5 AS k, md5(i::text) AS j"
    source: ClassVar = {"key": ("k", "j")}


class TestFollowedRows(_Conformance):
    keys = "i AS k"
    source: ClassVar = {"follow": True, "lag_seconds": 0}
    limit = 11


@pytest.mark.parametrize(
    "keys",
    [
        "md5(i::text)::uuid",
        "chr(97 + i % 26) || ' ' || md5(i::text) || '''%'",
        "'2024-02-29 12:00+02'::timestamptz + i * '1.000001 h'::interval",
        "lpad(i::text, i % 7 + 2, 'x')::char(9)",
        "(i * 0.1)::float8",
        "decode(md5(i::text), 'hex')",
    ],
)
def test_reading_goes_on_behind_a_key_of_each_type(database, run, keys):
    run(f"CREATE TABLE t AS SELECT {keys} AS k, i AS value FROM generate_series(1, 17) AS i")
    source = PostgresSource(database, "t", key="k", as_="tuple", splits=3, fetch_rows=4)
    found = []
    for split in source.splits():
        poller = source.create_poller(split)
        poller.seek(None)
        while (rows := poller.poll(3)) is not None:
            found += rows
            position = poller.position()
            poller.close()
            poller = source.create_poller(split)
            poller.seek(position)
        poller.close()
    assert found == run("SELECT * FROM t ORDER BY k")


def test_each_type_has_a_python_value_that_a_job_can_carry(database, run):
    run(
        "CREATE TABLE t (id int PRIMARY KEY, a smallint, b bigint, c numeric, d real, "
        "e float8, f boolean, g text, h varchar(9), i bytea, j date, k timestamp, l timestamptz, "
        "m interval, n uuid, o json, p jsonb, q int[], r text[])"
    )
    day = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)
    values = [1, 2, 2**60, Decimal("1.50"), 0.5, 0.1, True, "é", "v", b"\0\xff", day.date(), day]
    values += [day.replace(tzinfo=datetime.UTC), datetime.timedelta(days=3, seconds=1)]
    some_id = uuid.uuid4()
    run(
        f"INSERT INTO t VALUES ({', '.join(['%s'] * 19)}), (2{', NULL' * 18})",
        [*values, some_id, '{"x": [1]}', '{"x": null}', [1, None], ["a", "b"]],
    )
    source = PostgresSource(database, "t", key="id", as_="tuple")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process(True)
    found = sorted(env.from_source(source).execute_and_collect(), key=lambda row: row[0])
    expected = (*values, some_id, {"x": [1]}, {"x": None}, [1, None], ["a", "b"])
    assert found == [expected, (2, *[None] * 18)]


@dataclass
class Order:
    id: int
    product: str


class OrderTuple(NamedTuple):
    id: int
    product: str


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("dict", {"id": 1, "product": "tea"}),
        ("tuple", (1, "tea")),
        ("row", Row("id", "product")(1, "tea")),
        (Order, Order(1, "tea")),
        (OrderTuple, OrderTuple(1, "tea")),
    ],
)
def test_records_are_of_the_kind_that_was_asked_for(database, run, kind, record):
    run("CREATE TABLE orders AS SELECT 1 AS id, 'tea' AS product")
    (found,) = read_all(PostgresSource(database, "orders", key="id", as_=kind))
    assert found == record and type(found) is type(record)


def test_a_query_and_columns_choose_what_is_read(database, run):
    run("CREATE TABLE t AS SELECT i AS id, 'a%' || i AS name FROM generate_series(1, 9) AS i")
    query = "SELECT id, name, id % 2 AS odd FROM t WHERE name LIKE 'a%';"
    source = PostgresSource(database, query=query, key="id", columns=["odd", "id"], as_="tuple")
    assert sorted(read_all(source)) == sorted((i % 2, i) for i in range(1, 10))


def test_a_table_whose_name_needs_quotes(database, run):
    run('CREATE SCHEMA "My Shop"; CREATE TABLE "My Shop"."Ord%ers" AS SELECT 1 AS "the id"')
    source = PostgresSource(database, '"My Shop"."Ord%ers"', key="the id", as_="tuple")
    assert read_all(source) == [(1,)]


def test_the_limits_of_splits_of_a_large_table_come_from_a_sample(database, run, monkeypatch):
    monkeypatch.setattr(query_source, "SAMPLED_ROWS", 1_000)
    monkeypatch.setattr(query_source, "_SAMPLE", 2_000)
    run("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 20000) AS i; ANALYZE t")
    source = PostgresSource(database, "t", key="id", as_="tuple", splits=4)
    splits = list(source.splits())
    assert [row for (row,) in sorted(read_all(source))] == list(range(1, 20001))
    limits = [int(split.payload["until"][0]) for split in splits]
    assert limits == sorted(limits) and limits[-1] == 20000 and 3 <= len(limits) <= 4
    assert limits[:-1] != [5000, 10000, 15000]


def test_splits_have_about_as_many_rows_each(database, run):
    run("CREATE TABLE t AS SELECT (i ^ 4)::bigint AS id FROM generate_series(1, 400) AS i")
    source = PostgresSource(database, "t", key="id", splits=4, as_="tuple")
    limits = [int(split.payload["until"][0]) for split in source.splits()]
    assert limits == [i**4 for i in (100, 200, 300, 400)]


def test_an_empty_table_has_no_splits(database, run):
    run("CREATE TABLE t (id int)")
    assert list(PostgresSource(database, "t", key="id").splits()) == []


# ---- new rows


class Follower:
    """Reads a source that follows new rows, poll by poll."""

    def __init__(self, poller, position):
        self.poller = poller
        self.poller.seek(position)

    def read(self, wanted=0):
        """Return what comes until it is enough, and the poller has polled several times in vain.

        Transactions of other tests also keep a row from being read, as their ids are the server's.
        """
        found, idle = [], 0
        while idle < 3 or len(found) < wanted:
            records = self.poller.poll(100)
            found += records
            idle = 0 if records else idle + 1
        return [row["id"] for row in found]


@pytest.fixture
def follow():
    """Return a function that begins to follow a source, and close what it has begun."""
    with contextlib.ExitStack() as stack:

        def begin(source, position=None):
            (split,) = source.splits()
            poller = source.create_poller(split)
            stack.callback(poller.close)
            return Follower(poller, position)

        yield begin


def test_a_row_of_a_transaction_that_commits_late_is_not_passed_over(database, run, follow):
    run("CREATE TABLE t (id serial PRIMARY KEY)")
    follower = follow(PostgresSource(database, "t", key="id", follow=True, lag_seconds=0))
    with psycopg.connect(database) as early, psycopg.connect(database) as late:
        late.execute("INSERT INTO t DEFAULT VALUES")
        early.execute("INSERT INTO t DEFAULT VALUES")
        early.commit()
        assert follower.read() == []
        late.commit()
        assert follower.read(2) == [1, 2]
        early.execute("INSERT INTO t DEFAULT VALUES")
        early.rollback()
    run("INSERT INTO t DEFAULT VALUES")
    assert follower.read(1) == [4]
    # A snapshot knows how far it was.
    again = follow(
        PostgresSource(database, "t", key="id", follow=True, lag_seconds=0),
        follower.poller.position(),
    )
    run("INSERT INTO t DEFAULT VALUES")
    assert again.read(1) == [5]


def test_a_transaction_with_a_higher_id_and_a_lower_key_is_waited_for(database, run, follow):
    run("CREATE TABLE t (id int PRIMARY KEY)")
    follower = follow(PostgresSource(database, "t", key="id", follow=True, lag_seconds=0))
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        first.execute("INSERT INTO t VALUES (2)")
        second.execute("INSERT INTO t VALUES (1)")
        first.commit()
        assert follower.read() == []
        second.commit()
    assert follower.read(2) == [1, 2]


def test_a_row_that_is_drawn_long_before_it_is_written_needs_the_lag(database, run, follow):
    run("CREATE TABLE t (id int PRIMARY KEY)")
    source = PostgresSource(database, "t", key="id", follow=True, lag_seconds=0.3)
    follower = follow(source)
    run("INSERT INTO t VALUES (2)")
    assert follower.read() == []
    run("INSERT INTO t VALUES (1)")  # within the lag
    found = []
    while len(found) < 2:
        found += follower.read()
    assert found == [1, 2]


def test_rows_with_a_transaction_id_come_in_the_order_of_transactions(database, run, follow):
    run("CREATE TABLE t (id int, xid xid8 DEFAULT pg_current_xact_id(), PRIMARY KEY (xid, id))")
    source = PostgresSource(database, "t", key=("xid", "id"), follow=True, lag_seconds=60)
    follower = follow(source)
    with psycopg.connect(database) as early, psycopg.connect(database) as late:
        late.execute("INSERT INTO t VALUES (5)")
        early.execute("INSERT INTO t VALUES (7)")
        early.commit()
        assert follower.read() == []
        late.execute("INSERT INTO t VALUES (1)")
        late.commit()
    assert follower.read(3) == [1, 5, 7]


# ---- what is wrong


def refused(source):
    with pytest.raises(JobError) as caught:
        read_all(source)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    with pytest.raises(GraphError):
        raise GraphError(str(caught.value))
    return str(caught.value)


def test_a_key_that_is_not_unique_is_refused_before_a_row_is_lost(database, run):
    run("CREATE TABLE t AS SELECT i / 2 AS id FROM generate_series(1, 9) AS i")
    for rows in (1, 2, 3, 100):
        source = PostgresSource(database, "t", key="id", splits=1, fetch_rows=rows)
        assert "two rows have the same key (id)" in refused(source)


def test_a_row_without_a_key_is_refused(database, run):
    run("CREATE TABLE t AS SELECT NULLIF(i, 3) AS id FROM generate_series(1, 9) AS i")
    assert "a row has NULL in the key id" in refused(PostgresSource(database, "t", key="id"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "nothing", "key": "id"}, 'relation "nothing" does not exist'),
        ({"table": "t", "key": "nothing"}, "column q.nothing does not exist"),
        ({"query": "SELEC 1", "key": "id"}, "syntax error"),
        ({"table": "t", "key": "id", "as_": OrderTuple}, "OrderTuple has the fields"),
        ({"query": "SELECT 1 AS id, 'infinity'::date AS d", "key": "id"}, "date too large"),
    ],
)
def test_what_cannot_be_read_says_why(database, run, arguments, message):
    run("CREATE TABLE t AS SELECT 1 AS id")
    assert message in refused(PostgresSource(database, **arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a table or a query"),
        ({"table": "t", "query": "SELECT 1"}, "either a table or a query"),
        ({"table": "t", "as_": "list"}, "as_ is one of"),
        ({"table": "t", "as_": int}, "as_ is one of"),
        ({"table": "t", "splits": 0}, "at least 1"),
        ({"table": "t", "key": ()}, "at least one column"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(GraphError, match=message):
        PostgresSource("", **{"key": "id", **arguments})


def test_a_missing_table_is_found_before_the_job_starts(database):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process(True)
    env.from_source(PostgresSource(database, "nothing", key="id")).print()
    with pytest.raises(GraphError, match='relation "nothing" does not exist'):
        env.execute()


def test_a_server_that_refuses_or_is_gone(database, postgres_server):
    source = PostgresSource(f"{database}_no", "t", key="id")
    assert "does not exist" in refused(source)
    with pytest.raises(JobError) as caught:
        list(PostgresSource("host=127.0.0.1 port=1", "t", key="id").splits())
    assert caught.value.recoverability is Recoverability.ENVIRONMENT
    assert "read t" in str(caught.value)


def test_a_lost_connection_loses_no_row(database, run):
    run("CREATE TABLE t AS SELECT i AS id FROM generate_series(1, 50) AS i")
    source = PostgresSource(database, "t", key="id", splits=1, fetch_rows=10, as_="tuple")
    (split,) = source.splits()
    poller, found = source.create_poller(split), Counter()
    poller.seek(None)
    cuts = 0
    while (rows := poller.poll(7)) is not None:
        found.update(rows)
        position = poller.position()
        if cuts < 3:
            cuts += 1
            run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            with pytest.raises(JobError) as caught:
                while poller.poll(7) is not None:
                    pass
            assert caught.value.recoverability is Recoverability.ENVIRONMENT
            poller.close()
            poller = source.create_poller(split)
            poller.seek(position)
    poller.close()
    assert cuts == 3 and found == Counter((i,) for i in range(1, 51))


def test_a_poller_that_is_closed_while_it_connects_leaves_no_connection(database, run, monkeypatch):
    run("CREATE TABLE t (id int PRIMARY KEY)")
    run("INSERT INTO t SELECT generate_series(1, 9)")
    source = PostgresSource(database, "t", key="id", splits=1)
    (split,) = source.splits()
    poller, made = source.create_poller(split), []
    connect = query_source.connect

    def connect_and_close(*arguments):
        made.append(connect(*arguments))
        poller.close()  # as the engine does from another thread
        return made[-1]

    monkeypatch.setattr(query_source, "connect", connect_and_close)
    with pytest.raises((JobError, psycopg.OperationalError)):
        poller.poll(10)
    assert made[0].closed
