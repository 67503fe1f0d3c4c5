"""Jobs between two RabbitMQ streams that are killed: each record once, and in order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Json, SimpleStringSchema, StreamExecutionEnvironment
from penstock.connectors.rabbitmq import RabbitBroker, RabbitStreamSink, RabbitStreamSource
from penstock.connectors.rabbitmq.amqp_body import encode_body
from penstock.testing.servers.rabbitmq import RabbitServer
from tests.connectors.endless import run_until
from tests.connectors.rabbitmq.streams import bodies, create_stream, publish
from tests.processes.harness import Killer, wait_until

#: The number of messages of each stream that come at a time.
PORTION = 200


@pytest.fixture
def broker(rabbitmq_server: RabbitServer) -> RabbitBroker:
    return RabbitBroker(rabbitmq_server.host, rabbitmq_server.port, unreachable_seconds=60)


def job(
    folder: Path, broker: RabbitBroker, sources: list[str], out: str
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    source = RabbitStreamSource(broker, sources, Json())
    pairs = env.from_source(source, None, "rabbitmq").uid("rabbitmq").map(tuple).uid("pairs")
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (b[0], a[1] + b[1]))
    texts = counted.uid("count").map(lambda pair: f"{pair[0]}/{pair[1]}").uid("texts")
    texts.sink_to(RabbitStreamSink(broker, out, SimpleStringSchema())).uid("out")
    return env


def kill_job(folder: Path, broker: RabbitBroker, rng: random.Random, kills: int) -> tuple[int, int]:
    """Kill a job, and return the numbers of lost and doubled records."""
    sources = [create_stream(broker) for _ in range(2)]
    out = create_stream(broker)
    published = 0

    def feed(killed: int) -> None:
        nonlocal published
        while published < killed + 1:
            for index, stream in enumerate(sources):
                keys = [f"{index}-{rng.randrange(7)}" for _ in range(PORTION)]
                publish(broker, stream, [encode_body(json.dumps([k, 1]).encode()) for k in keys])
                for key in keys:
                    expected[key] = expected.get(key, 0) + 1
            published += 1

    expected: dict[str, int] = {}
    killer = Killer(rng, kills=kills, targets=("worker", "jobmanager", "both"))
    run_until(
        lambda: len(bodies(broker, out)) >= 2 * PORTION * (kills + 1),
        lambda: job(folder, broker, sources, out),
        killer,
        feed,
    )
    found = bodies(broker, out)
    wanted = {f"{key}/{n + 1}" for key, count in expected.items() for n in range(count)}
    assert set(found) <= wanted
    for key in expected:
        counts = [int(one.partition("/")[2]) for one in found if one.startswith(f"{key}/")]
        assert counts == sorted(counts), "the order of a key is kept"
    return len(wanted - set(found)), len(found) - len(set(found))


def test_each_record_passes_a_job_once(broker, tmp_path):
    assert kill_job(tmp_path, broker, random.Random(1), kills=0) == (0, 0)


@pytest.mark.connectors
@pytest.mark.parametrize("seed", [1, 2])
def test_each_record_counts_once_and_comes_out_once_whoever_is_killed(broker, tmp_path, seed):
    assert kill_job(tmp_path, broker, random.Random(seed), kills=6) == (0, 0)


@pytest.mark.connectors
def test_a_broker_that_restarts_loses_and_doubles_nothing(tmp_path):
    with RabbitServer(tmp_path / "server") as server:
        broker = RabbitBroker(server.host, server.port, unreachable_seconds=120)
        source, out = create_stream(broker), create_stream(broker)
        texts = [f"{n}" for n in range(3 * PORTION)]
        restarts = 0

        def feed(_: int) -> None:
            nonlocal restarts
            if restarts < 3:
                first = restarts * PORTION
                part = texts[first : first + PORTION]
                messages = [encode_body(json.dumps([text, 1]).encode()) for text in part]
                if restarts:
                    server.kill() if restarts == 2 else server.stop()
                    server.start()
                wait_until(lambda: stored(broker, source, messages), "it stores", every=0.3)
                restarts += 1

        run_until(
            lambda: restarts == 3 and len(bodies(broker, out)) >= len(texts),
            lambda: job(tmp_path, broker, [source], out),
            Killer(random.Random(1), kills=1),
            feed,
        )
        assert sorted(bodies(broker, out)) == sorted(f"{text}/1" for text in texts)


def stored(broker: RabbitBroker, stream: str, messages: list[bytes]) -> bool:
    from rstream.exceptions import ServerError

    try:
        publish(broker, stream, messages, at_once=len(messages))
    except (OSError, ServerError):
        return False
    return True


def test_the_example_writes_totals(broker, tmp_path):
    orders, totals = create_stream(broker), create_stream(broker)
    example = Path(__file__).parents[3] / "examples" / "connectors" / "rabbitmq_totals.py"
    command = [sys.executable, str(example), "--port", str(broker.port), "--folder", str(tmp_path)]
    contents = [json.dumps({"product": "tea", "quantity": n}).encode() for n in (2, 3)]
    publish(broker, orders, list(map(encode_body, contents)))
    with subprocess.Popen([*command, "--orders", orders, "--totals", totals]) as program:
        try:
            wait_until(lambda: len(bodies(broker, totals)) == 2, "the totals are there", every=0.5)
        finally:
            program.terminate()
    assert list(map(json.loads, bodies(broker, totals))) == [
        {"product": "tea", "total": 2},
        {"product": "tea", "total": 5},
    ]
