"""NATS with passwords, tokens and TLS: right ones work, and wrong ones end a job at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.connectors.formats import Json
from penstock.connectors.nats import NatsConnection, NatsStreamSink, NatsStreamSource
from penstock.connectors.tls import Tls
from penstock.testing.servers.nats import NatsServer
from tests.connectors.access import SECRET, WRONG, Access, access
from tests.connectors.certificates import Certificates, make_certificates

__all__ = ["access"]

pytest.importorskip("nats")


class GuardedNats(NatsServer):
    """Asks for a password or a token, and may require TLS."""

    certificates: Certificates | None = None
    login: tuple[str, ...] = ("--user", "ann", "--pass", SECRET)

    def command(self) -> list[str]:
        files = self.certificates
        tls = [] if files is None else ["--tls", f"--tlscert={files.certificate}"]
        tls += [] if files is None else [f"--tlskey={files.key}"]
        return [*super().command(), *self.login, *tls]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., GuardedNats]]:
    if (advice := GuardedNats.missing()) is not None:
        pytest.skip(advice)
    servers: dict[str, GuardedNats] = {}

    def start(kind: str) -> GuardedNats:
        from tests.connectors.nats.streams import Streams

        if kind in servers:
            return servers[kind]
        server = servers[kind] = GuardedNats(tmp_path_factory.mktemp(kind))
        url = f"nats://ann:{SECRET}@{server.address}"
        if kind == "token":
            server.login = ("--auth", SECRET)
            url = f"nats://{SECRET}@{server.address}"
        with server:  # TLS comes afterwards, which this client does not have
            streams = Streams(url)
            streams.make("ORDERS", ["orders.>"])
            streams.make("TOTALS", ["totals.>"])
            streams.publish("orders.a", [7])
            streams.close()
        if kind == "tls":
            server.certificates = make_certificates(server.folder / "certificates")
        return server.start()

    yield start
    for server in servers.values():
        server.stop()


def source(connection: str | NatsConnection) -> Any:
    return NatsStreamSource("ORDERS", connection, schema=Json(int), bounded=True)


def sink(connection: str | NatsConnection) -> Any:
    return NatsStreamSink("TOTALS", "totals.a", connection, schema=Json())


parts = pytest.mark.parametrize("make", [source, sink])


@parts
def test_a_right_password_or_token_works_and_wrong_ones_end_the_job(
    make: Callable[[Any], Any], started: Callable[..., GuardedNats], access: Access
):
    expected = {source: [7], sink: []}[make]
    for kind, right, wrong in (
        ("password", f"ann:{SECRET}@", f"ann:{WRONG}@"),
        ("token", f"{SECRET}@", f"{WRONG}@"),
    ):
        address = started(kind).address
        assert access.run(make(f"nats://{right}{address}")) == expected
        for user in (wrong, ""):
            text = access.refuse(make(f"nats://{user}{address}"), "refuses the user or password")
            assert address in text and "correct the user, password, token" in text
        option = NatsConnection(f"nats://{address}", options={"token": WRONG})
        access.refuse(make(option), "refuses the user or password")


@parts
def test_tls_needs_the_right_authority(
    make: Callable[[Any], Any], started: Callable[..., GuardedNats], access: Access
):
    server = started("tls")
    files, url = server.certificates, f"nats://ann:{SECRET}@{server.address}"
    assert files is not None
    access.run(make(NatsConnection(url, tls=Tls(files.ca))))
    for tls in (Tls(files.wrong_ca), None):
        text = access.refuse(make(NatsConnection(url, tls=tls)), "not trusted", r"Tls\(ca_file\)")
        assert f"TLS with NATS at {server.address} fails" in text


@parts
def test_a_password_is_not_sent_to_a_server_without_tls_if_tls_is_wanted(
    make: Callable[[Any], Any], started: Callable[..., GuardedNats], access: Access
):
    url = f"nats://ann:{SECRET}@{started('password').address}"
    access.refuse(make(NatsConnection(url, tls=Tls())), "has no TLS", "no password was sent")
