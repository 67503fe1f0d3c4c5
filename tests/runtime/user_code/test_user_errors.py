"""What user code raises ends the job with its own traceback, the operator and the record."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    DataStream,
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import JobError
from penstock.dataflow.nested_jobs import running_as
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.runtime.jobmanager.job_settings import JobOutcome
from penstock.runtime.taskmanager import channel_factory
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import program, run_program

RAISED = [GeneratorExit(), KeyboardInterrupt(), BaseException("x"), ValueError("x")]


class Fails:
    """Raises at one place, as a function of every kind."""

    def __init__(self, place: str, error: BaseException) -> None:
        self.place, self.error = place, error

    def reach(self, place: str) -> None:
        if place == self.place:
            raise self.error


class FailingMap(MapFunction, Fails):
    def open(self, context: Any) -> None:
        self.reach("open")

    def map(self, value: Any) -> Any:
        if value == 3:
            self.reach("map")
        return value


class FailingProcess(ProcessFunction, Fails):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value == 3:
            self.reach("process_element")
        yield value

    def end_input(self, ctx: Any) -> Any:
        self.reach("end_input")
        yield from ()


class FailingReader(SourceReader, Fails):
    def open(self, split: Split, position: Any) -> None:
        self.reach("open reader")

    def read(self, max_records: int) -> Read:
        self.reach("read")
        self.reach("read in a thread")
        return Read([1, 2, 3], 3, finished=True)

    @property
    def blocking(self) -> bool:  # type: ignore[override]
        return self.place == "read in a thread"


class FailingEnumerator(ListEnumerator):
    fails: Fails

    def next_split(self, subtask: int) -> Split | None:
        self.fails.reach("next_split")
        return super().next_split(subtask)


class FailingSource(Source, Fails):
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        self.reach("create_enumerator")
        enumerator = FailingEnumerator([Split("a")])
        enumerator.fails = Fails(self.place, self.error)
        return enumerator

    def create_reader(self, context: ReaderContext) -> SourceReader:
        self.reach("create_reader")
        return FailingReader(self.place, self.error)


class FailingWriter(SinkWriter, Fails):
    def write(self, records: list[Any]) -> None:
        self.reach("write")

    def flush(self) -> None:
        self.reach("flush")

    def prepare(self, snapshot: int) -> Callable[[], list[Any]]:
        self.reach("prepare")
        return self.seal

    def seal(self) -> list[Any]:
        self.reach("seal")
        return []


class FailingSink(Sink, Fails):
    def create_writer(self, context: WriterContext) -> SinkWriter:
        self.reach("create_writer")
        return FailingWriter(self.place, self.error)


PLACES = {
    "open": ("mapped", None),
    "map": ("mapped", "3"),
    "process_element": ("processed", "3"),
    "end_input": ("processed", None),
    "create_enumerator": ("read", None),
    "next_split": ("read", None),
    "create_reader": ("read", None),
    "open reader": ("read", None),
    "read": ("read", None),
    "read in a thread": ("read", None),
    "key": ("key of counted", "3"),
    "partitioner": ("partitioner of placed", "3"),
    "create_writer": ("written", None),
    "write": ("written", None),
    "flush": ("written", None),
    "prepare": ("written", None),
    "seal": ("written", None),
}


def error_of(build: Callable[[StreamExecutionEnvironment], Any]) -> JobError:
    blob = program(build, JobConfig(name="j"))
    with running_as("a worker"):  # so that a KeyboardInterrupt is not the tests' own
        ran = run_program(blob)
    assert not ran.crashes
    assert isinstance(ran.outcome, JobError), ran
    return ran.outcome


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *[(place, SystemExit(3)) for place in PLACES],
        *[(place, error) for place in ("map", "seal") for error in RAISED],
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_whatever_user_code_raises_is_reported_with_its_place(
    place: str, error: BaseException
) -> None:
    def key(value: int) -> int:
        if value == 3:
            Fails(place, error).reach("key")
        return value

    def partition(key: int, count: int) -> int:
        if key == 3:
            Fails(place, error).reach("partitioner")
        return 0

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(FailingSource(place, error), None, "read")
        stream = stream.map(FailingMap(place, error)).name("mapped")
        stream = stream.process(FailingProcess(place, error)).name("processed")
        stream = stream.partition_custom(partition, lambda v: v).map(lambda v: v).name("placed")
        stream = stream.key_by(key).reduce(lambda a, b: a).name("counted")
        stream.sink_to(FailingSink(place, error)).name("written").uid("written")

    found = error_of(build)
    operator, record = PLACES[place]
    assert (found.operator, found.record) == (operator, record)
    assert found.user_traceback is not None
    first, *_, last = found.user_traceback.strip().splitlines()
    assert first == "Traceback (most recent call last):"
    assert last.split(":")[0] == type(error).__name__
    frames = [line for line in found.user_traceback.splitlines() if line.startswith("  File ")]
    assert frames and all("/penstock/" not in line for line in frames), found.user_traceback


def test_an_interrupt_of_a_process_that_takes_them_is_not_user_codes() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_collection([3]).map(FailingMap("map", KeyboardInterrupt())).print()

    ran = run_program(program(build, JobConfig(name="j")))
    assert [str(crash) for crash in ran.crashes]


class FailingClose(MapFunction):
    def map(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        raise SystemExit("in close")


def test_an_error_in_close_after_the_jobs_end_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection([1]).map(lambda v: v).map(FailingClose()).name("closing")
        stream.sink_to(FailingSink("", ValueError()))

    ran = run_program(program(build, JobConfig(name="j")))
    assert isinstance(ran.outcome, JobOutcome), ran
    assert not ran.crashes
    said = capsys.readouterr().err
    assert said.startswith("after the job's end: Traceback (most recent call last):")
    assert "SystemExit: in close" in said
    assert "operator: closing" in said


# ---- hints


class ReturnsNumber(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return 7


class ReturnsNumberByKey(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return 0.5


class EndsWithNumber(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def end_input(self, ctx: Any) -> Any:
        return 7


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (lambda s: s.flat_map(lambda v: 5), "flat_map returned an int"),
        (lambda s: s.process(ReturnsNumber()), "process_element returned an int"),
        (lambda s: s.process(EndsWithNumber()), "end_input returned an int"),
        (
            lambda s: s.key_by(lambda v: v).process(ReturnsNumberByKey()),
            "process_element returned a float",
        ),
    ],
)
def test_a_function_that_returns_one_record_is_told_to_yield_it(
    build: Callable[[DataStream], DataStream], hint: str
) -> None:
    found = error_of(lambda env: build(env.from_collection([1, 2])).print())
    assert found.message.endswith(f": {hint}; yield it, or return a list")


def test_a_users_own_error_of_that_kind_has_no_hint() -> None:
    found = error_of(lambda env: env.from_collection([1]).flat_map(lambda v: [*v]).print())
    assert found.message == "TypeError in operator 'Flat Map'"


# ---- errors of Penstock, raised through user code


class AsksForState(MapFunction):
    def open(self, context: Any) -> None:
        self.state = context.get_state(ValueStateDescriptor("seen"))

    def map(self, value: Any) -> Any:
        return value


def test_an_error_of_penstock_shows_the_users_frames_and_ends_with_its_message() -> None:
    found = error_of(lambda env: env.from_collection([1]).map(AsksForState()).name("m").print())
    assert found.user_traceback is not None
    assert "in open" in found.user_traceback
    assert "/penstock/" not in found.user_traceback
    assert "GraphError" not in str(found)
    assert found.message.startswith("operator 'm' asked for state 'seen', but keyed state exists")
    assert found.operator == "m"


# ---- text that cannot be encoded


def test_lone_surrogates_in_an_error_its_record_and_the_operators_name_are_shown() -> None:
    def fail(value: str) -> None:
        raise ValueError("bad \udc80 \ud800")

    found = error_of(
        lambda env: env.from_collection(["\udcff"]).map(fail).name("odd\udc80").print()
    )
    assert found.user_traceback is not None
    assert found.user_traceback.strip().endswith(r"ValueError: bad \udc80 \ud800")
    assert (found.operator, found.record) == (r"odd\udc80", r"'\udcff'")
    str(found).encode()


def test_an_exit_in_a_function_makes_the_program_fail() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1, 0]).map(lambda v: sys.exit(0) if v == 0 else v).name("m").print()
    with pytest.raises(JobError, match="SystemExit: 0") as caught:
        env.execute("exits")
    assert (caught.value.operator, caught.value.record) == ("m", "0")


def test_a_job_runs_in_a_folder_whose_name_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir("job")
    env.from_collection([1, 2]).name("\udcff").uid("\udcff").sink_to(FileSink("out", JsonLines()))
    env.execute("\udcff")
    # There may be a snapshot between the two records, and so two files.
    files = (folder / "out").glob("part-*")
    assert sorted(line for file in files for line in file.read_text().splitlines()) == ["1", "2"]


# ---- records that do not fit into a frame


def test_a_record_above_the_limit_names_the_operator_and_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_factory, "MAX_BATCH_BYTES", 1000)
    config = JobConfig(name="j", parallelism=2)

    def large(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(range(100)).map(lambda n: "x" * 2000).name("large")
        stream.rebalance().map(len).print()

    ran = run_program(program(large, config))
    assert isinstance(ran.outcome, JobError), ran
    assert not ran.crashes
    assert ran.outcome.operator == "large"
    assert "the limit is 1,000 bytes; emit it in parts" in ran.outcome.message
    assert ran.outcome.user_traceback is None


def test_a_batch_above_the_limit_of_records_below_it_is_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_factory, "MAX_BATCH_BYTES", 1000)
    LEDGERS[33] = Ledger()

    def many(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(range(100)).map(lambda n: (n, "x" * 300 + str(n)))
        stream.rebalance().map(lambda pair: pair[0]).rebalance().sink_to(LedgerSink(33))

    ran = run_program(program(many, JobConfig(name="j", parallelism=2)))
    assert isinstance(ran.outcome, JobOutcome), ran
    assert LEDGERS[33].output() == Counter(range(100))
