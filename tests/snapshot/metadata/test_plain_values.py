"""Values of sources and sinks that would be decoded as other values are refused."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config import JobConfig, RestartStrategies
from penstock.dataflow.errors import JobError
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.snapshot.metadata.plain_values import pack_plain, unpack_plain
from tests.simulation.run_program import program, run_program

Place = namedtuple("Place", "file line")


class Color(IntEnum):
    RED = 1


NOT_PLAIN = {
    "a tuple": ("file", 7),
    "a tuple within": {"at": [("file", 7)]},
    "a named tuple": Place("file", 7),
    "an IntEnum": Color.RED,
    "a large number": 1 << 64,
    "a dict of another class": OrderedDict(a=1),
}


class Reader(SourceReader):
    def __init__(self, position: Any) -> None:
        self.position = position
        self.count = 0

    def open(self, split: Split, position: Any) -> None:
        pass

    def read(self, max_records: int) -> Read:
        self.count += 1
        return Read([self.count], self.position, self.count == 50, 0.01)


class Numbers(Source):
    """Reads a few numbers, with a payload and a position of one's own."""

    def __init__(self, payload: Any = None, position: Any = 1) -> None:
        self.payload, self.position = payload, position

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ListEnumerator([Split("a", self.payload)])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return Reader(self.position)


class Committing(Sink, Committer):
    """Commits nothing, under a payload of one's own."""

    exactly_once = True

    def __init__(self, payload: Any) -> None:
        self.payload = payload

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return Writer(self.payload)

    def create_committer(self) -> Committer:
        return self

    def commit(self, committables: list[Committable]) -> None:
        pass


class Writer(SinkWriter):
    def __init__(self, payload: Any) -> None:
        self.payload = payload

    def write(self, records: list[Any]) -> None:
        pass

    def prepare(self, snapshot: int) -> Callable[[], list[Any]]:
        return lambda: [self.payload]


def error_of(source: Source, sink: Sink, folder: Path) -> JobError:
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(source, None, "the source").sink_to(sink).name("the sink")

    config = JobConfig(
        name="j",
        checkpoint_dir=str(folder),
        checkpoint_interval_seconds=0.1,
        restart=RestartStrategies.no_restart(),
    )
    ran = run_program(program(build, config))
    assert isinstance(ran.outcome, JobError), ran
    assert not ran.crashes
    return ran.outcome


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
@pytest.mark.parametrize("place", ["payload", "position", "committable"])
def test_a_value_that_would_come_back_as_another_is_refused(
    place: str, value: Any, tmp_path: Path
) -> None:
    source = Numbers(**{place: value}) if place != "committable" else Numbers()
    error = error_of(source, Committing(value if place == "committable" else 1), tmp_path)
    assert error.operator == ("the sink" if place == "committable" else "the source")
    assert error.message.endswith(
        "use str, int (64 bits), float, bool, None, bytes, list and dict only"
    )
    assert error.user_traceback is None


def test_a_plain_value_comes_back_as_it_is() -> None:
    value = ["\udcff.txt", {"a": [None, True, 1.5, b"\xff", (1 << 64) - 1]}]
    assert unpack_plain(pack_plain(value)) == value
