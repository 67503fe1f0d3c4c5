"""Redis with users, passwords and TLS: right ones work, and wrong ones end a job at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import GraphError
from penstock.connectors.redis import (
    RedisConnection,
    RedisLookup,
    RedisStreamSink,
    RedisStreamSource,
)
from penstock.testing.servers.redis import RedisServer
from penstock.testing.servers.server import accepts_connections, free_port
from tests.connectors.access import SECRET, WRONG, Access, access
from tests.connectors.certificates import Certificates, make_certificates

__all__ = ["access"]

redis = pytest.importorskip("redis")


class GuardedRedis(RedisServer):
    """Asks for a password. It has one port with TLS and one without."""

    certificates: Certificates

    def command(self) -> list[str]:
        files = self.certificates
        self.tls_port = free_port()
        return [
            *super().command(),
            *("--requirepass", SECRET, "--tls-port", str(self.tls_port)),
            *("--tls-cert-file", files.certificate, "--tls-key-file", files.key),
            *("--tls-ca-cert-file", files.ca, "--tls-auth-clients", "no"),
        ]

    def is_ready(self) -> bool:
        return accepts_connections(self.host, self.port)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    if (advice := GuardedRedis.missing()) is not None:
        pytest.skip(advice)
    server = GuardedRedis(tmp_path_factory.mktemp("redis"))
    server.certificates = make_certificates(server.folder / "certificates")
    with server:
        client = redis.Redis(port=server.port, password=SECRET)
        client.xadd("orders", {"id": "1"})
        client.set("price:1", "5")
        client.acl_setuser("reader", enabled=True, passwords=[f"+{SECRET}"], commands=["+ping"])
        client.close()
        yield server


def source(connection: str | RedisConnection) -> Any:
    return RedisStreamSource("orders", connection, bounded=True)


def sink(connection: str | RedisConnection) -> Any:
    return RedisStreamSink("totals", connection)


def lookup(connection: str | RedisConnection) -> Any:
    return RedisLookup(
        lambda record: str(record["id"]),
        lambda record, found: found,
        connection,
        prefix="price:",
    )


parts = pytest.mark.parametrize("make", [source, sink, lookup])


@parts
def test_a_right_password_works_and_wrong_ones_end_the_job(
    make: Callable[[Any], Any], server: GuardedRedis, access: Access
):
    found = access.run(make(f"redis://:{SECRET}@{server.address}/0"))
    assert found == {source: [{"id": "1"}], sink: [], lookup: ["5"]}[make]
    for user in (f":{WRONG}@", f"nobody:{SECRET}@", ""):
        text = access.refuse(
            make(f"redis://{user}{server.address}/0"), "refuses the user or password|HELLO|NOAUTH"
        )
        assert f"{server.address}/0" in text and "in the URL" in text
    access.refuse(make(f"redis://reader:{SECRET}@{server.address}/0"), "ACL SETUSER")


@parts
def test_tls_needs_the_right_authority(
    make: Callable[[Any], Any], server: GuardedRedis, access: Access
):
    files, place = server.certificates, f"{server.host}:{server.tls_port}/0"
    url = f"rediss://:{SECRET}@{place}"
    assert access.run(make(RedisConnection(url, options={"ssl_ca_certs": files.ca}))) is not None
    wrong = RedisConnection(url, options={"ssl_ca_certs": files.wrong_ca})
    access.refuse(make(wrong), f"TLS with Redis at {place} fails", "not trusted", "ssl_ca_certs")
    access.refuse(make(url), "not trusted")
    access.refuse(make(f"redis://:{SECRET}@{place}"), "expects TLS: use a URL with rediss://")


@pytest.mark.parametrize("secret", ["a/b", "a#b", "a?b", "p@ss/w@rd"])
def test_a_password_that_breaks_the_url_is_not_shown(secret: str):
    try:
        shown = repr(RedisConnection(f"redis://ann:{secret}@localhost:6379/0"))
    except GraphError as error:
        shown = str(error)
        assert error.__suppress_context__
        assert "%2F" in shown
    assert secret not in shown and secret[:3] not in shown
