"""`simulate` passes correct programs, and names what is wrong with others."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
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
    ReduceFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from penstock.connectors import GeneratorSource
from penstock.dataflow.errors import GraphError
from penstock.runtime.taskmanager.state_restorer import StateRestorer
from penstock.testing.simulation import DEFAULT_FAULTS, Schedule, Simulation, simulate
from penstock.testing.simulation.simulated_job import SimulatedJob
from penstock.testing.simulation.simulation import captured
from tests.sizes import sized

LOCK = threading.Lock()
SEEDS = sized(24, 1_000)
WORDS = ["ant", "bee", "cat", "dog", "eel"]
LINES = [" ".join(random.Random(number).choices(WORDS, k=4)) for number in range(120)]


def program(build: Callable[[DataStream], Any], parallelism: int = 2) -> Callable[[], None]:
    """Return a function that executes a program that reads words."""

    def main() -> None:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        build(env.from_collection(LINES).flat_map(str.split))
        env.execute("simulated")

    return main


class CountInState(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: str, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count


class CountInAttribute(KeyedProcessFunction):
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def process_element(self, value: str, ctx: Any) -> Any:
        self.seen[value] = self.seen.get(value, 0) + 1
        yield value, self.seen[value]


def counted(function: Any) -> Callable[[], None]:
    return program(
        lambda words: words.key_by(lambda word: word).process(function).sink_to(FileSink("counts"))
    )


def test_a_correct_program_is_right_whatever_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = simulate(counted(CountInState()), seeds=SEEDS)
    report.require_right()
    assert report.seeds == SEEDS and report.records == 480
    assert f"all right: {SEEDS} seeds" in str(report)
    happened = report.happened
    kinds = ["kills of a worker", "kills of a JobManager", "stops"]
    assert all(happened[kind] for kind in kinds), happened
    assert happened["restarts"] and happened["resumes"] and happened["snapshots"] > SEEDS
    assert not list(tmp_path.iterdir())


#: A kind of faults, with what it must make happen.
HAPPENS = {
    "pause": ["pauses", "lost workers", "lost JobManagers", "restarts"],
    "slow": ["slow workers"],
    "cut": ["cuts", "restarts"],
    "clock": ["clock jumps"],
    "torn": ["stops of the machine", "lost changes of files"],
    "corrupt": ["damaged snapshots", "refused snapshots"],
    "decline": ["aborted snapshots"],
    "savepoint": ["savepoints"],
    "read": ["readers"],
}


@pytest.mark.parametrize("kind", HAPPENS)
def test_each_kind_of_faults_happens_and_a_correct_program_is_right(kind: str):
    simulation = Simulation(captured(counted(CountInState())), [kind])
    report = simulation.begin()
    seeds = iter(range(sized(60, 500)))
    # As many seeds as it takes, but some in any case.
    while report.seeds < 10 or any(not report.happened[what] for what in HAPPENS[kind]):
        list(simulation.run_all([next(seeds)], report))
        report.require_right()


def test_the_last_run_does_not_begin_with_a_damaged_snapshot(monkeypatch):
    monkeypatch.setattr(SimulatedJob, "runs", 2)
    simulation = Simulation(captured(counted(CountInState())), ["corrupt"])
    report = simulation.begin()
    seeds = iter(range(200))
    while report.happened["damaged snapshots"] < 3:
        list(simulation.run_all([next(seeds)], report))
    report.require_right()


def test_the_output_is_that_of_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def windows() -> None:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
        source = GeneratorSource(lambda number: (number % 3, number), 400)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda pair, _: 10 * pair[1]
        )
        stream = env.from_source(source, strategy, "numbers")
        sums = stream.key_by(lambda pair: pair[0]).window(
            TumblingEventTimeWindows.of(Time.milliseconds(300))
        )
        sums.reduce(lambda a, b: (a[0], a[1] + b[1])).map(list).sink_to(
            FileSink("sums", JsonLines())
        )
        env.execute("windows")

    simulation = Simulation(captured(windows))
    report = simulation.begin()
    for _ in simulation.run_all(range(8), report):
        pass
    report.require_right()
    monkeypatch.setenv("PENSTOCK_IN_PROCESS", "true")
    windows()
    written = [
        line for path in Path("sums").glob("part-*") for line in path.read_text().split("\n")
    ]
    texts = [line.replace(",", ", ") for line in written if line]
    assert sorted(
        line.rpartition(": ")[2].replace(" ", "") for line in simulation.output
    ) == sorted(text.replace(" ", "") for text in texts)


def test_a_seed_always_gives_the_same_run():
    script = (
        "from tests.testing.simulation.test_simulate import *\n"
        "simulation = Simulation(captured(counted(CountInState())))\n"
        "simulation.begin()\n"
        "print(*[line for seed in range(4) for line in simulation.run(seed).trace], sep='\\n')\n"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    ]
    assert traces[0] == traces[1] and "kill" in traces[0]


def test_state_outside_of_state_is_named_and_its_failure_is_small():
    main = counted(CountInAttribute())
    report = simulate(main, seeds=12)
    assert report.failures and "state outside of state" in report.causes[0]
    assert "attribute 'seen'" in report.causes[0]
    with pytest.raises(AssertionError, match="too many"):
        report.require_right()
    smallest = report.failures[0].result.schedule
    assert len(smallest.causes) == 1
    calm = Schedule(parallelisms=(2,), interval_seconds=smallest.interval_seconds)
    simulation = Simulation(captured(main))
    simulation.begin()
    assert simulation.failure(simulation.run_schedule(report.failures[0].result.seed, calm)) is None


class LastOfSeven(ReduceFunction):
    def reduce(self, a: Any, b: Any) -> Any:
        return (a[0] if a[1] % 7 else b[0]), a[1] + 1


def divided(words: DataStream) -> Any:
    return words.map(lambda word: 1 // (len(word) - 3)).print()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda words: words.map(lambda word: (word, time.time())), r"a clock, time\.time\(\)"),
        (
            lambda words: words.map(lambda word: (word, random.random())),
            r"random numbers \(after a failure, RuntimeContext\.get_random\(\) gives the same",
        ),
        (
            lambda words: words.map(lambda word: (word, os.urandom(8))),
            r"os\.urandom\(\) \(after a failure, RuntimeContext\.get_random\(\) gives the same",
        ),
        (
            lambda words: (
                words.rebalance()
                .map(lambda word: (word, 1))
                .key_by(lambda pair: 0)
                .reduce(LastOfSeven())
            ),
            "order of records of different channels",
        ),
        (divided, "fails without any fault"),
    ],
)
def test_programs_that_are_wrong_without_faults_are_named(build: Any, said: str):
    def built(words: DataStream) -> None:
        stream = build(words)
        if isinstance(stream, DataStream):
            stream.sink_to(FileSink("out"))

    report = simulate(program(built), seeds=5)
    assert not report.right and report.seeds == 0
    text = str(report)
    assert re.search(said, text), text
    if "time" in said or "random" in said:
        assert Path(__file__).name in text


class DrawNumber(MapFunction):
    def open(self, context: Any) -> None:
        self.random = context.get_random()

    def map(self, value: str) -> Any:
        return value, self.random.random()


def test_random_numbers_of_the_context_are_right():
    """They come again after each failure, also if there was no snapshot yet."""
    drawing = program(lambda words: words.map(DrawNumber()).sink_to(FileSink("out")), 1)
    # Another parallelism has other numbers.
    kinds = [kind for kind in DEFAULT_FAULTS if kind != "rescale"]
    report = simulate(drawing, seeds=SEEDS, faults=kinds)
    report.require_right()
    assert report.happened["restarts"] and report.happened["resumes"], report.happened


def test_random_numbers_of_the_context_are_not_said_to_differ():
    """If the program is not deterministic, they are not the cause."""

    def build(words: DataStream) -> None:
        words.map(DrawNumber()).map(lambda pair: (pair, time.time())).sink_to(FileSink("out"))

    text = str(simulate(program(build, 1), seeds=1))
    assert "a clock, time.time()" in text and "random numbers" not in text


def test_the_order_decides_which_number_a_record_gets():
    drawing = program(lambda words: words.rebalance().map(DrawNumber()).sink_to(FileSink("out")))
    assert "which of the numbers of get_random() a record gets" in str(simulate(drawing, seeds=1))


def test_an_error_of_the_program_comes_with_its_traceback():
    text = str(simulate(program(divided), seeds=1))
    assert "ZeroDivisionError" in text and "in divided" not in text and "test_simulate.py" in text


def test_a_sink_that_writes_at_once_is_a_note():
    report = simulate(program(lambda words: words.print()), seeds=12)
    assert report.right and report.repeated.total() > 0
    assert "writes at once" in str(report)


def test_sinks_of_the_same_name_are_compared_each_by_itself():
    def two(words: DataStream) -> None:
        words.print()
        words.sink_to(FileSink("out")).name("words")
        words.map(str.upper).sink_to(FileSink("out")).name("words")

    simulation = Simulation(captured(program(two)))
    assert simulation.begin().right
    kinds = {line.rpartition(": ")[0] for line in simulation.output}
    assert len(kinds) == 3 and {"words", "words (2)"} < kinds


def test_state_that_is_not_restored_is_found(monkeypatch):
    """An engine with a fault fails."""

    async def restore_nothing(self: StateRestorer, task: Any) -> None:
        del self, task

    monkeypatch.setattr(StateRestorer, "restore", restore_nothing)
    assert not simulate(counted(CountInState()), seeds=8).right


@pytest.mark.parametrize(
    ("main", "faults", "said"),
    [
        (program(lambda words: words.map(str.upper)), ["kill"], "has no sink"),
        (program(lambda words: words.print()), ["earthquake"], "no fault 'earthquake'"),
        (lambda: None, ["kill"], "no program was executed"),
        (
            program(lambda words: words.map(lambda _: LOCK.locked()).print()),
            ["kill"],
            "cannot be sent to a worker",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(main: Any, faults: list[str], said: str):
    with pytest.raises(GraphError, match=said):
        simulate(main, faults=faults)


def test_an_endless_source_is_refused():
    def endless() -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_source(GeneratorSource(lambda number: number, None), None, "numbers").print()
        env.execute()

    with pytest.raises(GraphError, match=r"'numbers' .* does not end"):
        simulate(endless)
