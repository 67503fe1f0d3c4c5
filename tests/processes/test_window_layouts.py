"""The state of sliding windows keeps its layout when a job is resumed, whatever the program says.

`python -m tests.processes.test_window_layouts FOLDER` writes a snapshot of this job. The one in
`golden` is from a version that chose the layout of this class from the code of its `merge`.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    FileSink,
    JsonLines,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
)
from penstock.connectors.generator import GeneratorSource
from tests.processes.harness import committed, run, wait_until
from tests.processes.parts import PartedSource

GOLDEN = Path(__file__).parents[1] / "golden" / "sliding-windows"
COUNT, SIZE, SLIDE = 3_000, 1_000, 100


class Numbers(AggregateFunction):
    """Counts and adds the numbers of a window."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class MergedNumbers(Numbers):
    merges_panes = True


def _job(
    folder: Path, output: Path, function: Numbers, gate: Path | None = None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda number, _: number)
    # With a gate, only the first half of the numbers comes.
    source = GeneratorSource(int, COUNT) if gate is None else PartedSource(gate, 2, int, COUNT)
    numbers = env.from_source(source, strategy, "numbers").uid("numbers")
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(SIZE), Time.milliseconds(SLIDE))
    keyed = numbers.key_by(lambda number: number % 3)
    counts = keyed.window(sliding).aggregate(function, _with_window).uid("windows")
    counts.sink_to(FileSink(output, JsonLines())).uid("files")
    return env


def _with_window(key: int, window: Any, results: Any) -> Any:
    yield [key, window.start, *next(iter(results))]


def _expected() -> Counter[tuple[int, ...]]:
    found = Counter[tuple[int, ...]]()
    for start in range(SLIDE - SIZE, COUNT, SLIDE):
        for key in range(3):
            inside = [n for n in range(max(0, start), min(start + SIZE, COUNT)) if n % 3 == key]
            if inside:
                found[key, start, len(inside), sum(inside)] += 1
    return found


def _stopped(folder: Path, output: Path, function: Numbers) -> None:
    """Run the job, and stop it with a snapshot when half of the records are read."""
    client = _job(folder, output, function, folder.parent / "gate").execute_async("windows")
    wait_until(lambda: len(committed(output)) > 20, "the first windows have fired")
    client.stop_with_savepoint().result()


@pytest.mark.parametrize(("before", "after"), [(Numbers, MergedNumbers), (MergedNumbers, Numbers)])
def test_a_resumed_job_goes_on_with_the_layout_of_its_snapshot(
    tmp_path: Path, before: type[Numbers], after: type[Numbers]
) -> None:
    folder, output = tmp_path / "job", tmp_path / "output"
    _stopped(folder, output, before())
    first = Counter(map(tuple, committed(output)))
    assert 20 < first.total() < _expected().total()
    run(_job(folder, output, after()), name="windows", resume="newest")
    assert Counter(map(tuple, committed(output))) == _expected()


def test_a_snapshot_with_panes_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "golden")
    output = tmp_path / "golden" / "output"
    before = Counter(map(tuple, committed(output)))
    assert 20 < before.total() < _expected().total()
    run(
        _job(tmp_path / "golden" / "job", output, Numbers()),
        name="windows",
        resume="newest",
    )
    assert Counter(map(tuple, committed(output))) == _expected()


if __name__ == "__main__":
    _stopped(Path(sys.argv[1]) / "job", Path(sys.argv[1]) / "output", Numbers())
