"""The PostgreSQL server of tests: with a folder that only root may enter, killed and paused."""

import threading

import pytest

from penstock.testing.servers.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.skipif(PostgresServer.missing() is not None, reason="no PostgreSQL")


def test_what_is_committed_survives_a_kill(tmp_path):
    tmp_path.chmod(0o700)
    with PostgresServer(tmp_path / "pg") as server:
        conninfo = server.create_database()
        with psycopg.connect(conninfo) as connection:
            connection.execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i")
        server.kill()
        assert not server.is_ready()
        server.start()
        with psycopg.connect(conninfo) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (1000,)
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_a_paused_server_answers_when_it_goes_on(tmp_path):
    with (
        PostgresServer(tmp_path / "pg") as server,
        psycopg.connect(server.conninfo()) as connection,
    ):
        server.pause()
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(connection.execute("SELECT 1").fetchone())
        )
        thread.start()
        thread.join(0.2)
        assert answers == []
        server.resume()
        thread.join()
        assert answers == [(1,)]


def test_each_test_gets_a_database_of_its_own(postgres_server):
    assert postgres_server.create_database("A name!") != postgres_server.create_database("A name!")
