"""Webhooks in, webhooks out, and kills: each request that was confirmed has its effect once."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import uuid
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from penstock import FileSink, Json, JsonLines, SimpleStringSchema, StreamExecutionEnvironment
from penstock.connectors.http import HttpSink, SseSource, WebhookSource
from penstock.testing.connectors.http_fakes import FakeEventServer, FakeReceiver
from tests.connectors.endless import run_until
from tests.processes.harness import PATIENCE, Killer, committed, wait_until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Clients:
    """Programs that send webhooks until each is confirmed, with idempotency keys or without.

    Arguments:
        port: the port of the endpoint.
        count: the number of clients.
        allowed: the number of requests of each client that may be sent now; None is all.
    """

    def __init__(self, port: int, count: int = 4) -> None:
        self.port, self.count = port, count
        self.allowed = 10
        self.confirmed: list[list[int]] = [[] for _ in range(count)]
        self.refused = 0
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def allow(self, kills: int) -> None:
        self.allowed = 10 * (kills + 1)

    def _send(self, client: int) -> None:
        number = 0
        while not self.stopped.wait(0.005):
            if number >= self.allowed:
                continue
            content = number * self.count + client
            connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            try:
                headers = {"Idempotency-Key": f"key-{content}"}
                connection.request("POST", "/", json.dumps(content), headers)
                if connection.getresponse().status == 202:
                    self.confirmed[client].append(content)
                    number += 1
                else:
                    self.refused += 1
            except (OSError, HTTPException):
                self.refused += 1
            finally:
                connection.close()

    @property
    def sent(self) -> Counter[int]:
        return Counter(content for contents in self.confirmed for content in contents)

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()


def env_for(folder: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    return env


def webhook_job(folder: Path, port: int, url: str) -> StreamExecutionEnvironment:
    env = env_for(folder)
    source = WebhookSource(folder / "log", port, Json(), segment_bytes=500)
    numbers = env.from_source(source, None, "webhooks").uid("webhooks")
    numbers = numbers.key_by(lambda number: number % 7).map(lambda number: number).uid("same")
    numbers.sink_to(HttpSink(url, Json(), batch_records=3, parallel=2)).uid("out")
    return env


def kill_job(folder: Path, rng: random.Random, kills: int) -> tuple[Counter[int], Counter[int]]:
    """Kill a job; return the confirmed requests and those that came out."""

    def answer(_: Any) -> int:
        return rng.choice([200] * 12 + [0, 503])

    with FakeReceiver(answer) as receiver:
        port = free_port()
        clients = Clients(port)
        killer = Killer(rng, kills=kills, targets=("worker", "worker", "jobmanager", "both"))

        def done() -> bool:
            return clients.sent.total() == clients.allowed * clients.count and (
                sum(len(json.loads(one.body)) for one in list(receiver.accepted))
                >= clients.sent.total()
            )

        try:
            run_until(done, lambda: webhook_job(folder, port, receiver.url), killer, clients.allow)
        finally:
            clients.stop()
        received = Counter(
            number for request in receiver.accepted for number in json.loads(request.body)
        )
        return clients.sent, received


@pytest.mark.connectors
@pytest.mark.parametrize("seed", [1, 2])
def test_each_confirmed_webhook_comes_out_once_whoever_is_killed(tmp_path, seed):
    sent, received = kill_job(tmp_path, random.Random(seed), kills=6)
    assert sent.total() >= 7 * 40 and set(sent.values()) == {1}
    assert received == sent


@pytest.mark.connectors
@pytest.mark.parametrize("seed", [1])
def test_events_of_a_server_that_keeps_them_count_once_whoever_is_killed(tmp_path, seed):
    sse_job(tmp_path, random.Random(seed), kills=5)


def sse_job(folder: Path, rng: random.Random, kills: int) -> None:
    """Kill a job that reads events, and cut its connections; check that each counts once."""
    with FakeEventServer() as server:
        killer = Killer(rng, kills=kills, targets=("worker", "jobmanager", "both"))
        url = server.url

        def job() -> StreamExecutionEnvironment:
            env = env_for(folder)
            source = SseSource(url, SimpleStringSchema(), resumes=True)
            texts = env.from_source(source, None, "events").uid("events")
            texts.map(int).uid("numbers").sink_to(FileSink(folder / "out", JsonLines())).uid("out")
            return env

        def feed(kills: int) -> None:
            if rng.random() < 0.3:
                server.cut()
            wanted = 50 * (kills + 1)
            server.append(*map(str, range(len(server.events), wanted)))

        run_until(lambda: len(committed(folder / "out")) >= 50 * (kills + 1), job, killer, feed)
        assert sorted(committed(folder / "out")) == list(range(50 * (kills + 1)))
        assert server.connections > kills


def test_without_a_kill_webhooks_pass_through_a_job(tmp_path):
    sent, received = kill_job(tmp_path, random.Random(1), kills=0)
    assert sent.total() == 40 and received == sent


def test_the_example_passes_orders_on(tmp_path):
    example = Path(__file__).parents[3] / "examples" / "connectors" / "webhooks.py"
    port = free_port()
    with FakeReceiver() as receiver:
        command = [sys.executable, str(example), "--port", str(port), "--to", receiver.url]
        with subprocess.Popen([*command, "--folder", str(tmp_path)]) as program:

            def send() -> bool:
                connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                try:
                    order = json.dumps({"customer": "ann", "amount": 70})
                    headers = {"Authorization": "Bearer example", "Idempotency-Key": key}
                    connection.request("POST", "/orders", order, headers)
                    return connection.getresponse().status == 202
                except (OSError, HTTPException):
                    return False
                finally:
                    connection.close()

            try:
                for _ in range(2):
                    key = uuid.uuid4().hex
                    wait_until(send, "the order is accepted", every=0.1)
                wait_until(lambda: receiver.accepted, "a bonus has come")
            finally:
                program.terminate()
    assert json.loads(receiver.accepted[0].body) == {"customer": "ann", "bonus_for": 140}
