"""`cache`: the records of a stream are computed once, and read by later executions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CachedDataStream,
    FileSink,
    GraphError,
    JobError,
    JsonLines,
    MapFunction,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.dataflow.program import RunOptions, run_options
from tests.processes.harness import committed
from tests.processes.parts import PartedSource, let_go


@dataclass(frozen=True)
class Visit:
    user: str
    seconds: int


class Computed(MapFunction):
    """Makes visits, and notes in a folder that it was called."""

    def __init__(self, folder: Path, fails_at: int = -1) -> None:
        self.folder, self.fails_at = folder, fails_at

    def map(self, value: int) -> Visit:
        if value == self.fails_at and not (self.folder / "failed").exists():
            (self.folder / "failed").touch()
            raise ValueError("once")
        (self.folder / f"{value}-{len(list(self.folder.iterdir()))}").touch()
        return Visit("abc"[value % 3], value)


def _env(in_process: bool = True) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.set_in_process(in_process).set_parallelism(2)


def _calls(folder: Path) -> int:
    return len([path for path in folder.iterdir() if path.name != "failed"])


def _seconds(stream: Any) -> list[int]:
    return sorted(visit.seconds for visit in stream.execute_and_collect())


@pytest.mark.parametrize("in_process", [True, False])
def test_later_executions_read_the_stored_records(tmp_path: Path, in_process: bool):
    env = _env(in_process)
    visits = env.from_sequence(0, 19).map(Computed(tmp_path)).cache()
    assert isinstance(visits, CachedDataStream)
    counted = visits.key_by("user").count().filter(lambda pair: pair[1] == 6)
    assert sorted(counted.execute_and_collect()) == [("a", 6), ("b", 6), ("c", 6)]
    assert _calls(tmp_path) == 20
    assert _seconds(visits) == list(range(20))
    assert _seconds(visits.filter(lambda visit: visit.user == "a")) == list(range(0, 20, 3))
    assert _calls(tmp_path) == 20
    visits.invalidate()
    assert _seconds(visits) == list(range(20))
    assert _calls(tmp_path) == 40
    assert _seconds(visits) == list(range(20))
    assert _calls(tmp_path) == 40


def test_event_times_are_stored_too():
    env = _env()
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda number, _: number * 10)
    numbers = env.from_sequence(0, 99).assign_timestamps_and_watermarks(strategy)
    cached = numbers.map(lambda n: n % 7).cache()

    def sums() -> list[int]:
        window = cached.window_all(TumblingEventTimeWindows.of(250))
        return sorted(window.reduce(lambda a, b: a + b).execute_and_collect())

    first = sums()
    assert len(first) == 4
    assert sums() == first


def test_a_cache_of_a_batch_job_and_of_a_keyed_stream():
    env = _env().set_runtime_mode(RuntimeExecutionMode.BATCH)
    counted = env.from_collection(["a", "b", "a"]).key_by(str).count().cache()
    for _ in range(2):
        assert sorted(counted.execute_and_collect()) == [("a", 2), ("b", 1)]
    keyed = env.from_collection(["a", "b", "a"]).key_by(str).cache()
    for _ in range(2):
        assert sorted(keyed.execute_and_collect()) == ["a", "a", "b"]


def test_an_execution_that_was_stopped_or_failed_stores_nothing(tmp_path: Path):
    env = _env()
    visits = env.from_sequence(0, 4_999).map(lambda n: n).cache()
    assert len(visits.take(2)) == 2
    assert len(list(visits.execute_and_collect())) == 5_000
    failing = env.from_sequence(0, 9).map(Computed(tmp_path, fails_at=7)).cache()
    env.set_restart_strategy(RestartStrategies.no_restart())
    with pytest.raises(JobError, match="once"):
        list(failing.execute_and_collect())
    assert _seconds(failing) == list(range(10))
    assert _seconds(failing) == list(range(10))


def test_a_restarted_execution_stores_each_record_once(tmp_path: Path):
    env = _env().enable_checkpointing(5)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1))
    visits = env.from_sequence(0, 999).map(Computed(tmp_path, fails_at=700)).cache()
    counted = visits.map(lambda visit: visit.seconds)
    assert sorted(counted.execute_and_collect()) == list(range(1_000))
    assert (tmp_path / "failed").exists()
    calls = _calls(tmp_path)
    assert _seconds(visits) == list(range(1_000))
    assert _calls(tmp_path) == calls


def test_a_program_that_resumes_has_not_all_records_and_computes_them_again(tmp_path: Path):
    """Its folder is another one than that of the program that failed."""
    gate, snapshots = tmp_path / "gate", []

    def fail_once(number: int) -> int:
        if number == 150 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ValueError("once")
        return number

    def let_the_rest_go(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot":
            snapshots.append(event["number"])
            if len(snapshots) == 3:
                let_go(gate)

    def run(resume: str | None) -> Any:
        env = _env().set_parallelism(1).enable_checkpointing(5)
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
        env.set_restart_strategy(RestartStrategies.no_restart())
        numbers = env.from_source(PartedSource(gate, 2, lambda i: i, 200)).uid("numbers")
        cached = numbers.map(fail_once).uid("failing").cache()
        cached.sink_to(FileSink(tmp_path / "out", JsonLines())).uid("sink")
        with run_options(RunOptions(resume=resume, progress=let_the_rest_go)):
            env.execute()
        return env, cached

    with pytest.raises(JobError, match="once"):
        run(None)
    env, cached = run("newest")
    assert sorted(committed(tmp_path / "out")) == list(range(200))
    for folder in "ab":
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / folder)
        assert sorted(cached.execute_and_collect()) == list(range(200))


def test_an_unbounded_stream_is_not_cached():
    endless = _env().from_generator(lambda i: i)
    with pytest.raises(GraphError, match=r"'Source: Generator' is unbounded: write the records"):
        endless.map(lambda i: i).cache()


def test_a_cache_whose_files_are_gone_is_an_error_that_says_what_to_do():
    import shutil

    env = _env()
    cached: Any = env.from_collection([1, 2]).cache()
    assert sorted(cached.execute_and_collect()) == [1, 2]
    source = cached._records.source()
    shutil.rmtree(source.folder)
    with pytest.raises(JobError, match=r"not on this machine any more.*call invalidate\(\)"):
        source.create_enumerator(1)
