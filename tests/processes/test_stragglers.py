"""Tasks that are slower than their peers, made so in one way each: the report names the cause."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import MapFunction, RuntimeContext, StreamExecutionEnvironment
from penstock.dataflow.source import ListEnumerator, Read, Source, SourceReader, Split
from penstock.dataflow.streams import DataStream
from tests.processes.harness import run, wait_until


class Endless(Source):
    """Splits that a task reads one after the other, and that never end.

    Arguments:
        names: the names of the splits. Each record is the name of its split.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def create_enumerator(self, parallelism: int) -> ListEnumerator:
        return ListEnumerator([Split(name) for name in self.names])

    def create_reader(self, context: Any) -> SourceReader:
        return _Endless()


class _Endless(SourceReader):
    def open(self, split: Split, position: Any) -> None:
        self.name = split.id

    def read(self, max_records: int) -> Read:
        return Read([self.name] * max_records, None)


class SlowSubtask(MapFunction):
    """Needs longer for each record in subtask 1."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.slow = runtime_context.get_index_of_this_subtask() == 1

    def map(self, value: Any) -> Any:
        pause(0.01 if self.slow else 0.0001)
        return value


def pause(seconds: float) -> None:
    """Take so much time for a record, without a processor."""
    threading.Event().wait(seconds)


def environment(folder: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2).enable_checkpointing(60_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.config.straggler_window_seconds = 2.0
    return env


def found(
    folder: Path,
    cause: str,
    build: Callable[[StreamExecutionEnvironment], DataStream],
    caplog: pytest.LogCaptureFixture,
) -> tuple[str, dict[str, Any]]:
    """Run a job until a straggler with a cause is found; return the warning and its values."""
    env = environment(folder)
    build(env).filter(lambda _: False).print()
    job = env.execute_async()
    try:
        said = f"It looks like {cause}"

        def text() -> str | None:
            return next((one for one in caplog.messages if said in one), None)

        warning = wait_until(text, f"a warning: {said}")
        job.stop_with_savepoint().result()
        [first, *_] = [
            straggler
            for straggler in job.get_job_execution_result().result().stragglers
            if straggler["cause"] == cause
        ]
        return warning, first
    finally:
        job.cancel().result()


def test_a_hot_key_is_named_with_its_share(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def slow(a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
        pause(0.002)
        return a[0], a[1] + b[1]

    def build(env: StreamExecutionEnvironment) -> DataStream:
        numbers = env.from_generator(lambda i: ("hot" if i % 10 else f"cold {i % 70}", 1), None)
        return numbers.key_by(lambda pair: pair[0]).reduce(slow).name("Count")

    text, straggler = found(tmp_path, "hot key", build, caplog)
    assert straggler["key"] == "'hot'"
    assert 0.8 < straggler["share"] <= 1
    assert "Count" in straggler["operator"]
    assert "the key 'hot' is" in text
    assert ".key_by(lambda pair: (pair[0], KEY(pair[1])))" in text


def test_a_slow_split_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def work(name: str) -> str:
        pause(0.01 if name == "slow" else 0.0005)
        return name

    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_source(Endless("fast", "slow"), None, "numbers").map(work)

    text, straggler = found(tmp_path, "slow split", build, caplog)
    assert straggler["splits"] == ["slow"]
    assert "it reads split 'slow'" in text


def test_a_task_that_is_blocked_names_the_task_that_blocks_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def build(env: StreamExecutionEnvironment) -> DataStream:
        names = env.from_source(Endless("a", "b"), None, "names")
        return names.map(SlowSubtask()).start_new_chain().name("Slow")

    text, straggler = found(tmp_path, "blocked downstream", build, caplog)
    assert straggler["subtask"] == 1
    assert "its output waited for 'Slow" in text
    assert text.endswith("(subtask 1)")


class Collects(MapFunction):
    """Keeps many objects in subtask 1, and lets the garbage collector visit all of them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        slow = runtime_context.get_index_of_this_subtask() == 1
        self.kept = [[number] for number in range(200_000)] if slow else []

    def map(self, value: Any) -> Any:
        if self.kept:
            gc.collect()
        else:
            pause(0.0001)
        return value


def test_garbage_collection_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_source(Endless("a", "b"), None, "names").map(Collects())

    text, straggler = found(tmp_path, "garbage collection", build, caplog)
    assert straggler["subtask"] == 1
    assert "Python's garbage collector took" in text


class Parts(Source):
    """Splits of one record each: a number, in order."""

    def __init__(self, count: int) -> None:
        self.count = count

    def create_enumerator(self, parallelism: int) -> ListEnumerator:
        return ListEnumerator([Split(str(number), number) for number in range(self.count)])

    def create_reader(self, context: Any) -> SourceReader:
        return _Part()


class _Part(SourceReader):
    def open(self, split: Split, position: Any) -> None:
        self.number = split.payload

    def read(self, max_records: int) -> Read:
        return Read([self.number], None, finished=True)


class WaitsForOthers(MapFunction):
    """Holds the record 0 until the other subtask has had all other records.

    Arguments:
        folder: the folder in which each record leaves a file.
        count: the number of records.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, number: int) -> int:
        (self.folder / f"{number}-{self.subtask}").touch()
        never = threading.Event()
        while number == 0 and len(list(self.folder.iterdir())) < self.count:
            never.wait(0.01)
        return number


def test_a_reader_with_a_slow_split_leaves_all_others_to_its_peers(tmp_path: Path):
    env = environment(tmp_path)
    (folder := tmp_path / "read").mkdir()
    numbers = env.from_source(Parts(20), None, "numbers")
    numbers.map(WaitsForOthers(folder, 20)).filter(lambda _: False).print()
    run(env)
    subtasks: dict[str, list[int]] = {"0": [], "1": []}
    for path in folder.iterdir():
        number, subtask = path.name.split("-")
        subtasks[subtask].append(int(number))
    assert sorted(map(len, subtasks.values())) == [1, 19]
    assert [0] in subtasks.values()
