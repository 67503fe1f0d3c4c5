"""Kafka with wrong credentials or wrong TLS: a job ends at once, and says what to do.

noida-db, the broker of the tests, accepts each password by the mechanism PLAIN, knows no other
mechanism, and has no TLS. So here an unknown mechanism stands for a wrong password, and a server of
the test, which only makes handshakes, for a broker with TLS.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.formats import Json
from penstock.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaSink,
    KafkaSource,
)
from penstock.connectors.kafka.client import KafkaConnection
from penstock.connectors.kafka.topic_client import TopicClient
from penstock.dataflow.errors import JobError, Recoverability
from penstock.testing.servers.kafka import KafkaServer
from tests.connectors.access import SECRET, WRONG, Access, access
from tests.connectors.certificates import Certificates, make_certificates

__all__ = ["access"]


def source(servers: str, topic: str, properties: dict[str, Any]) -> Any:
    latest = KafkaOffsetsInitializer.latest()
    return KafkaSource(servers, topic, Json(), stopping_offsets=latest, properties=properties)


def sink(servers: str, topic: str, properties: dict[str, Any]) -> Any:
    return KafkaSink(servers, topic, Json(), properties=properties)


def sender(servers: str, topic: str, properties: dict[str, Any]) -> Any:
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE
    return KafkaSink(servers, topic, Json(), guarantee=guarantee, properties=properties)


def direct(servers: str, topic: str, properties: dict[str, Any]) -> Any:
    return KafkaSink(servers, topic, Json(), exactly_once_mode="direct", properties=properties)


parts = pytest.mark.parametrize("make", [source, sink, direct, sender])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def handshakes(files: Certificates) -> Iterator[str]:
    """Run a server that makes handshakes of TLS, and then ends the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
            pass

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def login(mechanism: str, password: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "sasl.password": password,
    }


@parts
def test_a_refused_login_ends_the_job(make: Any, kafka_server: KafkaServer, access: Access):
    topic = kafka_server.create_topic()
    access.run(make(kafka_server.address, topic, login("PLAIN", SECRET)))
    part = make(kafka_server.address, topic, login("SCRAM-SHA-256", WRONG))
    text = access.refuse(part, "SASL authentication error", "check the credentials")
    assert kafka_server.address in text


@parts
def test_tls_needs_the_right_authority(
    make: Any, handshakes: str, files: Certificates, access: Access
):
    wrong = {"security.protocol": "SSL", "ssl.ca.location": files.wrong_ca}
    for properties, said in (
        (wrong, "certificate verify failed"),
        ({}, "expects TLS"),
        (login("PLAIN", SECRET), "expects TLS"),
    ):
        text = access.refuse(make(handshakes, "orders", properties), said, "ssl.ca.location")
        assert handshakes in text


def test_a_file_that_is_missing_is_named(access: Access, tmp_path: Path):
    wrong = {"security.protocol": "SSL", "ssl.ca.location": f"{tmp_path}/none.pem"}
    access.refuse(source("127.0.0.1:1", "orders", wrong), "ssl.ca.location|none.pem")


def test_brokers_without_tls_are_reported(
    kafka_server: KafkaServer, files: Certificates, monkeypatch: pytest.MonkeyPatch
):
    module = "penstock.connectors.kafka.topic_client"
    monkeypatch.setattr(f"{module}.REQUEST_SECONDS", 2.0)
    properties = {"security.protocol": "SSL", "ssl.ca.location": files.ca}
    client = TopicClient(KafkaConnection(kafka_server.address, properties), None)
    # On a slow machine, the client has not tried yet, or has seen only that the connection ends.
    for _ in range(30):
        with pytest.raises(JobError) as caught:
            client.topics(["orders"], None)
        # It may also be a broker that restarts, so that the job tries again later.
        assert caught.value.recoverability is Recoverability.ENVIRONMENT
        if "connecting to a PLAINTEXT broker listener" in str(caught.value):
            break
    else:
        pytest.fail(str(caught.value))
    client.close()
