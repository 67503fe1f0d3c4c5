"""PostgreSQL with passwords and TLS: right ones work, and wrong ones end a job at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.connectors.postgres import (
    PostgresCdcSource,
    PostgresLookup,
    PostgresSink,
    PostgresSource,
)
from penstock.testing.servers.postgres import PostgresServer
from tests.connectors.access import SECRET, WRONG, Access, access
from tests.connectors.certificates import Certificates, make_certificates

__all__ = ["access"]

#: The superuser needs no password, `ann` needs one, and `tls` needs an encrypted connection, too.
RULES = """
host     all          postgres  127.0.0.1/32  trust
hostssl  all          tls       127.0.0.1/32  scram-sha-256
host     all          ann       127.0.0.1/32  scram-sha-256
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Certificates]]:
    """Start a server; return the string of its database, without a user."""
    if (advice := PostgresServer.missing()) is not None:
        pytest.skip(advice)
    folder = tmp_path_factory.mktemp("postgres")
    files = make_certificates(folder / "certificates")
    server = PostgresServer(folder / "server", settings={"ssl": "on"})
    server.folder.mkdir()
    shutil.chown(server.folder, "postgres")
    server.prepare()
    data = server.folder / "data"
    for source, name in ((files.certificate, "server.crt"), (files.key, "server.key")):
        shutil.copy(source, data / name)
        (data / name).chmod(0o600)
        shutil.chown(data / name, "postgres")
    (data / "pg_hba.conf").write_text(RULES)
    with server:
        database = server.create_database()
        with psycopg.connect(database, autocommit=True) as connection:
            for user in ("ann", "tls"):
                connection.execute(
                    f"CREATE ROLE {user} LOGIN REPLICATION PASSWORD '{SECRET}'".encode()
                )
            grant = "ALTER DEFAULT PRIVILEGES FOR ROLE ann GRANT ALL ON TABLES TO PUBLIC"
            connection.execute(grant)  # both users write to one ledger
            connection.execute("GRANT ALL ON SCHEMA public TO PUBLIC")
            connection.execute("CREATE TABLE prices (id int PRIMARY KEY)")
            connection.execute("CREATE PUBLICATION prices FOR TABLE prices")
            connection.execute("INSERT INTO prices VALUES (1)")
            connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC")
        yield database.replace("user=postgres ", ""), files


def source(conninfo: str) -> Any:
    return PostgresSource(conninfo, "prices", key="id")


def cdc(conninfo: str) -> Any:
    return PostgresCdcSource(conninfo, slot="prices", publication="prices", as_="row")


def sink(conninfo: str) -> Any:
    return PostgresSink(conninfo, "prices", key=["id"])


def lookup(conninfo: str) -> Any:
    return PostgresLookup(conninfo, "prices", key="id", of=lambda record: record["id"])


parts = pytest.mark.parametrize("make", [source, cdc, sink, lookup])


@parts
def test_a_right_password_works_and_wrong_ones_end_the_job(
    make: Any, guarded: Any, access: Access, monkeypatch: pytest.MonkeyPatch
):
    database, _ = guarded
    if make is not cdc:
        access.run(make(f"{database} user=ann password={SECRET}"))
        with monkeypatch.context() as environment:
            environment.setenv("PGPASSWORD", SECRET)
            access.run(make(f"{database} user=ann"))
    for login, said in (
        (f"user=ann password={WRONG}", 'password authentication failed for user "ann"'),
        ("user=ann", "no password supplied"),
        (f"user=nobody password={SECRET}", r"no pg_hba\.conf entry for host .*nobody"),
    ):
        text = access.refuse(make(f"{database} {login}"), said)
        assert "127.0.0.1" in text and "PostgreSQL: " in text
        assert "PGPASSWORD" in text or "sslmode" in text


@parts
def test_tls_needs_the_right_authority(make: Any, guarded: Any, access: Access, tmp_path: Path):
    database, files = guarded
    url = f"{database} user=tls password={SECRET} sslmode=verify-full sslrootcert="
    if make is not cdc:
        access.run(make(url + files.ca))
    access.refuse(make(url + files.wrong_ca), "certificate verify failed", "check .*sslrootcert")
    access.refuse(make(f"{url}{tmp_path}/none.pem"), "root certificate file .* does not exist")
    plain = f"{database} user=tls password={SECRET} sslmode=disable"
    access.refuse(make(plain), r"no pg_hba\.conf entry .*no encryption", "sslmode=verify-full")


def test_a_server_without_tls_is_refused(postgres_server: PostgresServer, access: Access):
    database = f"{postgres_server.conninfo()} sslmode=require"
    access.refuse(source(database), "server does not support SSL", "change sslmode")
