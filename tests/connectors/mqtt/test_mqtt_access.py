"""Mosquitto with passwords and TLS: right ones work, and wrong ones end a job at once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.connectors.formats import Json
from penstock.connectors.mqtt import MqttBroker, MqttSink, MqttSource
from penstock.connectors.tls import Tls
from penstock.testing.servers.mosquitto import MosquittoServer
from penstock.testing.servers.server import free_port
from tests.connectors.access import SECRET, WRONG, Access, access
from tests.connectors.certificates import Certificates, make_certificates

__all__ = ["access"]


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[MosquittoServer, int, Certificates]]:
    """Start a broker that asks for a password, at a port without TLS and at one with it."""
    program = shutil.which("mosquitto_passwd")
    if (advice := MosquittoServer.missing()) is not None or program is None:
        pytest.skip(advice or "mosquitto_passwd is not installed: apt-get install mosquitto")
    server = MosquittoServer(tmp_path_factory.mktemp("mosquitto"))
    files = make_certificates(server.folder / "certificates")
    users, tls_port = server.folder / "users", free_port()
    subprocess.run([program, "-b", "-c", str(users), "ann", SECRET], check=True)
    server.settings = (
        "allow_anonymous false",
        f"password_file {users}",
        f"listener {tls_port} {server.host}",
        f"cafile {files.ca}",
        f"certfile {files.certificate}",
        f"keyfile {files.key}",
    )
    with server:
        yield server, tls_port, files


def broker(host: str, port: int, password: str = SECRET, **options: Any) -> MqttBroker:
    # Without a limit, so that only a refusal can end the job.
    given = {"username": "ann", "unreachable_seconds": 1e6, **options}
    return MqttBroker(host, port, password=password, **given)


def test_a_right_password_works_and_wrong_ones_end_the_job(guarded: Any, access: Access):
    server, _, _ = guarded
    place = server.host, server.port
    access.run(MqttSink(broker(*place), "rooms/kitchen", retain=True), ["21"])
    (message,) = access.run(MqttSource(broker(*place), "rooms/#", "heating", Json(int)))
    assert message == 21
    for wrong in (
        broker(*place, WRONG),
        broker(*place, username="nobody"),
        broker(*place, username=None),
    ):
        for part in (MqttSource(wrong, "rooms/#", "other"), MqttSink(wrong, "rooms/kitchen")):
            text = access.refuse(part, "refuses the connection: Not authorized", records=["21"])
            assert server.address in text and "correct the username" in text


# paho forgets the socket of a handshake that has failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tls_needs_the_right_authority(guarded: Any, access: Access):
    server, tls_port, files = guarded
    place = server.host, tls_port
    right = broker(*place, tls=Tls(files.ca))
    access.run(MqttSink(right, "hall/light", retain=True), ["1"])
    (message,) = access.run(MqttSource(right, "hall/#", "lights", Json(int)))
    assert message == 1
    for wrong, said in (
        (broker(*place, tls=Tls(files.wrong_ca)), "fails: the certificate .* is not trusted"),
        (broker(*place), "expects TLS"),
    ):
        for part in (MqttSource(wrong, "hall/#", "more"), MqttSink(wrong, "hall/light")):
            text = access.refuse(part, said, records=["1"])
            assert f"{server.host}:{tls_port}" in text and "tls=Tls(" in text
