"""Messages that cannot be decoded, in jobs that are killed: each comes out once, as each record."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BAD_MESSAGES,
    CheckpointingMode,
    FileSink,
    JsonLines,
    RestartStrategies,
    StreamExecutionEnvironment,
)
from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.formats import Json, MessageDecoder, SchemaContext
from penstock.dataflow.source import Read, ReaderContext, SourceReader
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.parts import PartedSource

COUNT = 20_000


def message(index: int) -> bytes:
    """Every seventh message is bad, and so are a thousand in succession."""
    bad = index % 7 == 0 or 5_000 <= index < 6_000
    return b"{%d" % index if bad else b'{"n": %d}' % index


BAD = {index for index in range(COUNT) if not message(index).endswith(b"}")}


class Messages(PartedSource):
    """A source of messages with a schema."""

    schema = Json(on_error="side_output")

    @property
    def side_output_tags(self) -> Any:
        return side_output_tags(self.schema.on_error)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _Reader(super().create_reader(context), self.schema)


class _Reader(SourceReader):
    def __init__(self, reader: SourceReader, schema: Any) -> None:
        self._reader = reader
        self._decoder = MessageDecoder(schema, SchemaContext("numbers"))

    def open(self, split: Any, position: Any) -> None:
        self._reader.open(split, position)

    def close(self) -> None:
        self._reader.close()

    def read(self, max_records: int) -> Read:
        read = self._reader.read(max_records)
        messages = read.records
        decoded = self._decoder.decode(messages, lambda index: f"at {messages[index]!r}")
        side = self._decoder.take_side_output()
        return read._replace(records=decoded.records, side_output=side)


def job(settings: Settings, mode: CheckpointingMode) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms, mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = Messages(settings.gate, settings.parts, message, settings.count, settings.rate)
    good = env.from_source(source, None, "messages").uid("messages")
    bad = good.get_side_output(BAD_MESSAGES)
    # One is counted in keyed state in other tasks, and the other in the chain of the source.
    numbers = bad.key_by(lambda one: one.message).count().uid("count")
    numbers.map(lambda pair: [int(pair[0][1:]), pair[1]]).sink_to(
        FileSink(settings.folder / "bad", JsonLines())
    ).uid("bad")
    good.map(lambda value: value["n"]).sink_to(FileSink(settings.output, JsonLines())).uid("good")
    return env


@pytest.mark.parametrize("mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
def test_bad_messages_come_out_once_whoever_is_killed(
    tmp_path: Path, mode: CheckpointingMode
) -> None:
    seed = 7
    settings = Settings(tmp_path, COUNT, 20_000, parts=6)
    killer = Killer(
        random.Random(seed),
        kills=5,
        targets=("worker", "jobmanager", "both"),
        gate=settings.gate,
    )
    run_to_the_end(settings, killer, job=lambda settings: job(settings, mode))
    assert len(killer.killed) >= 5
    good = Counter(committed(settings.output))
    assert compared(good, set(range(COUNT)) - BAD) == (0, 0), f"seed {seed}"
    bad = Counter(map(tuple, committed(tmp_path / "bad")))
    assert compared(bad, {(index, 1) for index in BAD}) == (0, 0), f"seed {seed}"
