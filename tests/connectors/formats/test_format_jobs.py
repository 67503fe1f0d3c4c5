"""Jobs with formats: the example, and a schema registry that cannot be reached for a while."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BAD_MESSAGES,
    PollingSource,
    RuntimeExecutionMode,
    SplitPoller,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats import (
    Avro,
    Json,
    MessageDecoder,
    MessageEncoder,
    Registered,
    SchemaContext,
    SchemaRegistry,
)
from penstock.testing.servers import FakeSchemaRegistry
from tests.processes.harness import wait_until

SCHEMA = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
COUNT = 1_000


def test_the_example_adds_up_orders_and_keeps_what_is_none() -> None:
    example = Path(__file__).parents[3] / "examples/connectors/typed_orders.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines[:3] == ["ann 3.5", "ann 7.5", "bob 2.25"]
    assert [line.startswith("not an order {") for line in lines[3:]] == [True, True]
    assert "Expected `float`, got `str` - at `$.amount`" in lines[3] + lines[4]


def test_workers_get_the_types_that_a_program_defines_itself(tmp_path: Path) -> None:
    program = Path(__file__).with_name("own_types.py")
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['17.5', 'x']"] * 2 + ["[3]"] * 2
    assert "1 bad line was skipped" in done.stderr


class Messages(PollingSource[Any]):
    """Gives messages of a list, decoded by a schema."""

    def __init__(self, messages: list[bytes], schema: Any) -> None:
        self.messages, self.schema = messages, schema

    @property
    def side_output_tags(self) -> Any:
        return side_output_tags(self.schema.on_error)

    def splits(self) -> list[str]:
        return ["messages"]

    def create_poller(self, split: Any) -> SplitPoller[Any]:
        return _Poller(self)


class _Poller(SplitPoller[Any]):
    def __init__(self, source: Messages) -> None:
        self.messages = source.messages
        self.decoder = MessageDecoder(source.schema, SchemaContext("numbers"))

    def seek(self, position: Any) -> None:
        self.next = position or 0

    def poll(self, max_records: int) -> list[Any] | None:
        first, self.next = self.next, self.next + max_records
        part = self.messages[first : self.next]
        decoded = self.decoder.decode(part, lambda index: f"{first + index}")
        return decoded.records if part else None

    def take_side_output(self) -> Any:
        return self.decoder.take_side_output()

    def position(self) -> Any:
        return self.next


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("blocking", [False, True])
def test_bad_messages_of_a_polled_source_come_out_in_any_mode(
    mode: RuntimeExecutionMode, blocking: bool
) -> None:
    # Two thousand bad ones in succession: reads without any record of the stream.
    messages = [b'{"n": %d}' % n if n < 900 or n > 2900 else b"%d!" % n for n in range(3_000)]
    source = Messages(messages, Json(on_error="side_output"))
    source.blocking = blocking
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(mode)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: value["n"]
    )
    good = env.from_source(source, strategy)
    bad = good.get_side_output(BAD_MESSAGES)
    counts = bad.map(lambda one: int(one.place)).key_by(lambda n: n % 2).count()
    lasts = (
        good.key_by(lambda value: value["n"] % 2)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(1_000)))
        .reduce(lambda a, b: b)
        .map(lambda value: value["n"])
    )
    found = list(counts.union(lasts).execute_and_collect())
    assert sorted(one for one in found if isinstance(one, int)) == [898, 899, 2998, 2999]
    pairs = [one for one in found if isinstance(one, tuple)]
    assert dict(sorted(pairs)) == {0: 1_001, 1: 1_000}


def test_a_job_waits_for_a_registry_that_cannot_be_reached() -> None:
    with FakeSchemaRegistry() as fake:
        registry = SchemaRegistry(fake.url, retries=0)
        write = Registered(Avro(SCHEMA), registry)
        numbers = [{"n": n} for n in range(COUNT)]
        messages = MessageEncoder(write, SchemaContext("numbers")).encode(numbers)
        before = len(fake.requests)
        back = threading.Event()

        def come_back() -> None:
            with fake.outage():
                back.set()
                # Each restart of the job asks once.
                wait_until(lambda: len(fake.requests) >= before + 2, "the job has asked twice")

        thread = threading.Thread(target=come_back)
        thread.start()
        back.wait()
        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(100)
        stream = env.from_source(Messages(messages, Registered(Avro(), registry)))
        found = sorted(record["n"] for record in stream.execute_and_collect())
        thread.join()
    assert found == list(range(COUNT))
    assert len(fake.requests) >= before + 3
