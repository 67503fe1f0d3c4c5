"""RabbitMQ with wrong users, passwords and TLS: a job ends at once, and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.connectors.formats import Json
from penstock.connectors.rabbitmq import RabbitBroker, RabbitStreamSink, RabbitStreamSource
from penstock.connectors.tls import Tls
from penstock.testing.servers.rabbitmq import RabbitServer
from penstock.testing.servers.server import free_port
from tests.connectors.access import WRONG, Access, access
from tests.connectors.certificates import Certificates, make_certificates
from tests.connectors.rabbitmq.streams import create_stream

__all__ = ["access"]


class GuardedRabbit(RabbitServer):
    """Has the stream protocol with TLS at a second port."""

    certificates: Certificates
    tls_port: int

    def prepare(self) -> None:
        super().prepare()
        files = self.certificates
        lines = [
            f"stream.listeners.ssl.1 = {self.host}:{self.tls_port}",
            f"stream.advertised_tls_port = {self.tls_port}",
            f"ssl_options.cacertfile = {files.ca}",
            f"ssl_options.certfile = {files.certificate}",
            f"ssl_options.keyfile = {files.key}",
        ]
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRabbit]:
    if (advice := GuardedRabbit.missing()) is not None:
        pytest.skip(advice)
    server = GuardedRabbit(tmp_path_factory.mktemp("rabbitmq"))
    server.certificates = make_certificates(server.folder / "certificates")
    server.tls_port = free_port()
    with server:
        create_stream(RabbitBroker(server.host, server.port), "orders")
        yield server


def broker(server: GuardedRabbit, **options: Any) -> RabbitBroker:
    port = server.tls_port if "tls" in options else server.port
    # Without a limit, so that only a refusal can end the job.
    return RabbitBroker(server.host, port, **{"unreachable_seconds": 1e6, **options})


def test_a_wrong_user_password_or_host_ends_the_job(server: GuardedRabbit, access: Access):
    for options, said in (
        ({"password": WRONG}, "refuses user 'guest'"),
        ({"username": "nobody"}, "refuses user 'nobody'"),
        ({"vhost": "other"}, "virtual host 'other'"),
    ):
        wrong = broker(server, **options)
        for part in (RabbitStreamSource(wrong, "orders"), RabbitStreamSink(wrong, "orders")):
            text = access.refuse(part, said, records=["1"])
            assert server.address in text and "correct the username" in text


def test_tls_needs_the_right_authority(server: GuardedRabbit, access: Access):
    files, place = server.certificates, f"{server.host}:{server.tls_port}"
    right = broker(server, tls=Tls(files.ca))
    access.run(RabbitStreamSink(right, "orders"), ["1"])
    (message,) = access.run(RabbitStreamSource(right, "orders", Json(int)))
    assert message == 1
    for tls, said in (
        (Tls(files.wrong_ca), "fails: the certificate .* is not trusted"),
        (None, "expects TLS"),
    ):
        wrong = broker(server, tls=tls)
        for part in (RabbitStreamSource(wrong, "orders"), RabbitStreamSink(wrong, "orders")):
            text = access.refuse(part, said, records=["1"])
            assert place in text and "tls=Tls(" in text
