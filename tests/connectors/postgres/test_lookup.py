"""`PostgresLookup`: many keys in one query, lost connections, missing rows."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import NamedTuple

import psycopg
import pytest

from penstock import (
    AsyncDataStream,
    GraphError,
    JobError,
    Recoverability,
    RequestCache,
    StreamExecutionEnvironment,
)
from penstock.connectors.postgres import PostgresLookup


class Customer(NamedTuple):
    id: int
    name: str


@pytest.fixture
def customers(run):
    run("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    run("INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 100) AS i")


@pytest.fixture
def look_up(database):
    made = []

    def make(table="customers", **options):
        arguments = {"key": "id", "of": lambda value: value, **options}
        made.append(PostgresLookup(database, table, **arguments))
        made[-1].open(None)
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_each_record_gets_its_row_or_none(customers, look_up):
    lookup = look_up()
    assert lookup.invoke_batch([3, None, 200, 3, 1]) == [
        {"id": 3, "name": "n3"},
        None,
        None,
        {"id": 3, "name": "n3"},
        {"id": 1, "name": "n1"},
    ]
    assert lookup.invoke_batch([None]) == [None]
    assert look_up(as_=Customer).invoke_batch([5]) == [Customer(5, "n5")]
    assert look_up(columns=["name"], as_="tuple").invoke_batch([5]) == [("n5",)]


def test_keys_of_several_columns_and_other_types(run, look_up):
    run('CREATE TABLE p ("a%" numeric, b char(5), v text, PRIMARY KEY ("a%", b))')
    run("INSERT INTO p VALUES (1.50, 'x', 'first'), (2, 'y', 'second')")
    lookup = look_up("p", key=["a%", "b"], columns=["v"], as_="tuple")
    found = lookup.invoke_batch([(Decimal("1.5"), "x"), (2, "y"), (2, None), (Decimal(2), "x")])
    assert found == [("first",), ("second",), None, None]
    with pytest.raises(JobError, match="returned \\(1,\\), and the key has the columns"):
        lookup.invoke_batch([(1,)])


def test_several_rows_are_a_list_or_an_error(run, look_up):
    run("CREATE TABLE o AS SELECT i % 3 AS id, i AS n FROM generate_series(1, 6) AS i")
    many = look_up("o", many=True, columns=["n"], as_="tuple")
    found = many.invoke_batch([1, 7, None])
    assert [sorted(rows) for rows in found] == [[(1,), (4,)], [], []]
    with pytest.raises(JobError, match="has several rows with the key") as caught:
        look_up("o").invoke_batch([1])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_lost_connection_is_replaced(customers, run, look_up):
    lookup = look_up()
    for _ in range(3):
        assert lookup.invoke_batch([1]) == [{"id": 1, "name": "n1"}]
        run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_calls_at_the_same_time_have_connections_of_their_own(customers, database, run, look_up):
    lookup, results = look_up(), []
    with psycopg.connect(database) as blocking:
        blocking.execute("LOCK TABLE customers IN ACCESS EXCLUSIVE MODE")
        threads = [
            threading.Thread(target=lambda i=i: results.extend(lookup.invoke_batch([i])))
            for i in (1, 2)
        ]
        for thread in threads:
            thread.start()
        while run(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        ) != [(2,)]:
            pass
    for thread in threads:
        thread.join()
    assert sorted(row["id"] for row in results) == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"table": "nothing"}, "does not exist"), ({"key": "nothing"}, "does not exist")],
)
def test_what_is_missing_is_not_tried_again(customers, look_up, options, message):
    with pytest.raises(JobError, match=message) as caught:
        look_up(**options).invoke_batch([1])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_server_that_is_gone_is_tried_again_for_a_while():
    lookup = PostgresLookup("host=127.0.0.1 port=1", "t", key="id", of=int, patience_seconds=0.1)
    with pytest.raises(JobError, match="look up rows of t") as caught:
        lookup.invoke_batch([1])
    assert caught.value.recoverability is Recoverability.ENVIRONMENT


def test_wrong_arguments_are_refused():
    for wrong in ({"columns": "id"}, {"of": 1}, {"as_": "list"}):
        with pytest.raises(GraphError):
            PostgresLookup("", "t", **{"key": "id", "of": int, **wrong})


def test_a_job_joins_rows_with_a_cache(customers, database):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True)
    lookup = PostgresLookup(database, "customers", key="id", of=lambda n: n % 50, as_=Customer)
    named = AsyncDataStream.batched(
        env.from_sequence(1, 1000),
        lookup,
        60_000,
        combine=lambda n, customer: (n, customer and customer.name),
        cache=RequestCache(ttl=60_000, key=lambda n: n % 50),
    )
    expected = [(n, f"n{n % 50}" if n % 50 else None) for n in range(1, 1001)]
    assert sorted(named.execute_and_collect()) == expected


def test_a_connection_that_comes_back_while_the_function_closes_is_closed(
    customers, look_up, monkeypatch
):
    lookup = look_up()
    lookup.invoke_batch([1])
    connection = lookup._idle.queue[0][0]
    idle = lookup._idle
    put = idle.put
    # The function is closed when the connection is about to be given back.
    monkeypatch.setattr(idle, "put", lambda item: (lookup.close(), put(item)))
    lookup.invoke_batch([1])
    assert connection.closed and idle.empty()
