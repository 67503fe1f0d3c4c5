"""Jobs that read from MQTT and are killed: nothing is lost, and doubles come only after a kill."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import FileSink, JsonLines, SimpleStringSchema, StreamExecutionEnvironment
from penstock.connectors.mqtt import MqttBroker, MqttSink, MqttSource
from penstock.dataflow.sink import WriterContext
from penstock.testing.servers.mosquitto import MosquittoServer
from tests.connectors.endless import run_until
from tests.connectors.mqtt.test_mqtt_sink import Subscriber
from tests.processes.harness import Killer, committed, wait_until

#: The number of messages that are published at a time.
PORTION = 100


class Publisher:
    """Publishes portions of numbers, one for each kill and one more, and never waits for a job."""

    def __init__(self, broker: MqttBroker, topic: str, portions: int) -> None:
        self.portions, self.published = portions, 0
        sink = MqttSink(broker, topic)
        self.writer = sink.create_writer(WriterContext("uid", "name", 0, 1, 0, "lineage"))
        self.writer.open()

    def publish(self, kills: int) -> None:
        while self.published < min(kills + 1, self.portions):
            first = self.published * PORTION
            self.writer.write([str(number) for number in range(first, first + PORTION)])
            finish = self.writer.prepare(1)
            assert finish is not None
            finish()
            self.published += 1

    @property
    def wanted(self) -> set[int]:
        return set(range(self.portions * PORTION))


def job(
    folder: Path, broker: MqttBroker, name: str, shares: int = 1, out: str | None = None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    source = MqttSource(
        broker, f"{name}/in", name, SimpleStringSchema(), shares=shares, receive_maximum=1000
    )
    numbers = env.from_source(source, None, "mqtt").uid("mqtt").map(int).uid("numbers")
    if out is not None:
        numbers.map(str).uid("texts").sink_to(MqttSink(broker, out)).uid("out")
    else:
        numbers.sink_to(FileSink(folder / "out", JsonLines())).uid("files")
    return env


def subscribe(broker: MqttBroker, name: str, shares: int = 1) -> None:
    """Begin the sessions before the first message: MQTT has no earlier ones."""
    from penstock.dataflow.source import ReaderContext

    source = MqttSource(broker, f"{name}/in", name, shares=shares)
    enumerator = source.create_enumerator(1)
    while (split := enumerator.next_split(0)) is not None:
        subscribed = threading.Event()
        reader: Any = source.create_reader(ReaderContext("uid", 0, 1))
        reader._on_subscribe = lambda *_, event=subscribed: event.set()
        reader.open(split, None)
        assert subscribed.wait(60)
        reader.close()


@pytest.fixture
def name() -> str:
    return f"test{uuid.uuid4().hex}"


@pytest.fixture
def broker(mosquitto_server: MosquittoServer) -> MqttBroker:
    return MqttBroker(mosquitto_server.host, mosquitto_server.port)


def test_without_a_failure_each_message_comes_once_also_over_a_stop(name, broker, tmp_path):
    subscribe(broker, name)
    publisher = Publisher(broker, f"{name}/in", 2)
    for portions in (1, 2):
        publisher.publish(portions - 1)
        enough = range(portions * PORTION)
        run_until(
            lambda wanted=set(enough): set(committed(tmp_path / "out")) >= wanted,
            lambda: job(tmp_path, broker, name),
            Killer(random.Random(1), kills=0),
            resume=portions > 1,
        )
        assert sorted(committed(tmp_path / "out")) == list(enough)
    publisher.writer.close()


@pytest.mark.connectors
@pytest.mark.parametrize(("seed", "shares"), [(1, 1), (2, 2), (3, 1)])
def test_nothing_is_lost_whoever_is_killed(name, broker, tmp_path, seed, shares):
    seen, lost = kill_job(name, broker, tmp_path, random.Random(seed), kills=6, shares=shares)
    assert lost == 0 and seen


def kill_job(
    name: str, broker: MqttBroker, folder: Path, rng: random.Random, kills: int, shares: int = 1
) -> tuple[Counter[int], int]:
    """Kill a job, and return how often each message came, and the number of lost ones."""
    subscribe(broker, name, shares)
    publisher = Publisher(broker, f"{name}/in", kills + 1)
    killer = Killer(rng, kills=kills, targets=("worker", "jobmanager", "both"))
    run_until(
        # The last portion is published after the last kill, and what was lost does not come later.
        lambda: max(publisher.wanted) in committed(folder / "out"),
        lambda: job(folder, broker, name, shares),
        killer,
        publisher.publish,
    )
    publisher.writer.close()
    seen = Counter(committed(folder / "out"))
    assert seen.keys() <= publisher.wanted
    return seen, len(publisher.wanted - seen.keys())


@pytest.mark.connectors
def test_a_sink_publishes_all_whoever_is_killed_and_while_the_broker_restarts(name, tmp_path):
    received: Counter[int] = Counter()
    with MosquittoServer(tmp_path / "server") as server:
        broker = MqttBroker(server.host, server.port)
        subscribe(broker, name)
        publisher = Publisher(broker, f"{name}/in", 5)
        collector = MqttSource(broker, f"{name}/out", f"{name}-collector")
        stop = collecting(collector, received)
        killer = Killer(random.Random(4), kills=4, targets=("worker", "jobmanager"))
        restarts: list[int] = []

        def feed(kills: int) -> None:
            if kills > len(restarts):
                restarts.append(kills)
                server.stop()
                server.start()
            publisher.publish(kills)

        run_until(
            lambda: publisher.wanted <= received.keys(),
            lambda: job(tmp_path, broker, name, out=f"{name}/out"),
            killer,
            feed,
        )
        stop()
        publisher.writer.close()
        assert restarts
        assert received.keys() == publisher.wanted


def collecting(source: MqttSource, into: Counter[int]) -> Any:
    from penstock.dataflow.source import ReaderContext

    reader: Any = source.create_reader(ReaderContext("uid", 0, 1))
    split = source.create_enumerator(1).next_split(0)
    assert split is not None
    reader.open(split, None)
    reader.read(1)

    def collect() -> None:
        while not reader._closed:
            read = reader.read(1000)
            into.update(int(message.payload) for message in read.records)
            reader.snapshot_completed(read.position)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()

    def stop() -> None:
        reader.close()
        thread.join()

    return stop


def test_the_example_publishes_alerts(name, broker, tmp_path):
    received: list[bytes] = []
    example = Path(__file__).parents[3] / "examples" / "connectors" / "mqtt_alerts.py"
    command = [sys.executable, str(example), "--port", str(broker.port), "--client-id", name]
    with (
        Subscriber(broker, f"alerts/{name}") as alerts,
        subprocess.Popen([*command, "--folder", str(tmp_path / "job")]) as program,
    ):
        sink = MqttSink(broker, f"rooms/{name}/temperature")
        writer = sink.create_writer(WriterContext("uid", "name", 0, 1, 0, "lineage"))
        writer.open()

        def alert() -> bool:
            # The session begins some time after the program.
            writer.write([json.dumps({"room": name, "celsius": 31})])
            received[:] = [content for _, content in alerts.messages]
            return bool(received)

        try:
            wait_until(alert, "an alert has come", every=0.2)
        finally:
            program.send_signal(signal.SIGINT)
            writer.close()
    assert json.loads(received[0]) == {"room": name, "alert": "it is hot"}
