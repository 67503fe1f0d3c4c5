"""Single tasks restart while the others keep their state, and no record is lost or doubled.

Goal: a failed task and those upstream of it restart from a snapshot, and the others drop what they
have processed before. Whatever the others do with records, the output is that of an undisturbed
run.

Method: the simulated cluster kills workers at times after snapshots. Each kind of receiver is in a
program of its own, behind sources that distribute their records in each way. The tests count the
restarts of single tasks, so that a test that only restarts whole jobs fails.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    CoMapFunction,
    DataStream,
    FileSink,
    GeneratorSource,
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    Watermark,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.source import ReaderContext, SourceReader, SplitEnumerator
from penstock.runtime.jobmanager.attempt.task_restarts import TaskRestarts
from penstock.runtime.network.step_logs import READ
from penstock.runtime.operators.state.random_numbers import RandomNumbers
from penstock.runtime.operators.state.routing_positions import RoutingPositions
from penstock.runtime.task.activities.repeatable import RepeatableResults
from penstock.runtime.task.source_reads import SourceReads
from penstock.runtime.task.task_steps import TaskSteps
from penstock.testing.simulation import Fault, Schedule, Simulation
from tests.simulation.paced import paced_simulation
from tests.simulation.random_jobs.functions import LaterByWatermark
from tests.simulation.random_jobs.shapes import SHAPES, Choices
from tests.simulation.test_other_parallelism import (
    keyed_broadcast_state,
)
from tests.sizes import sized

RECORDS, KEYS = 240, 7
SEEDS, MOST_SEEDS = sized(3, 40), 40
Build = Callable[[StreamExecutionEnvironment, DataStream], DataStream]


def _shape(name: str) -> Build:
    choices = Choices(keys=KEYS, hook=False, mutable=True, source_times=False)
    return lambda env, stream: SHAPES[name].build(env, stream, choices)


def _apart(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """Between the source and the keyed state are tasks of one input channel."""
    several = stream.flat_map(lambda i: [i] * (i % 3)).disable_chaining()
    return several.map(lambda i: i % KEYS).key_by(lambda key: key).count()


def _two_inputs(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    other = env.from_source(GeneratorSource(lambda i: -i, RECORDS // 2), None, "others")
    one, two = stream.key_by(lambda i: i % KEYS), other.key_by(lambda i: i % KEYS)
    return one.connect(two).map(_CountsBoth())


class _CountsBoth(CoMapFunction):
    """Counts the records of both inputs for each key."""

    def open(self, context: RuntimeContext) -> None:
        self.counts = [
            context.get_state(ValueStateDescriptor(name)) for name in ("first", "second")
        ]

    def _count(self, which: int, value: int) -> tuple[int, int, int]:
        count = (self.counts[which].value() or 0) + 1
        self.counts[which].update(count)
        return which, value % KEYS, count

    def map1(self, value: int) -> tuple[int, int, int]:
        return self._count(0, value)

    def map2(self, value: int) -> tuple[int, int, int]:
        return self._count(1, value)


def _to_all(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.broadcast().map(lambda i: i + 1)


def _to_one(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.global_().map(lambda i: i + 1)


def _custom(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    chosen = stream.partition_custom(lambda key, count: key * 5 % count, lambda i: i % KEYS)
    return chosen.map(lambda i: i * 2)


def _in_turns(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.rebalance().map(lambda i: i * 2)


def _to_some_in_turns(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.rescale().map(lambda i: i * 2).set_parallelism(6)


def _by_chance(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.shuffle().map(lambda i: i * 2)


def _positions(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """A counting task sends its records in turns, and its side output by chance."""
    odd = OutputTag("odd")
    counted = stream.key_by(lambda i: i % KEYS).process(_CountsAndTells(odd))
    told = counted.get_side_output(odd).shuffle().map(lambda record: record)
    return counted.rebalance().map(lambda record: record).union(told.rebalance())


class _CountsAndTells(KeyedProcessFunction):
    """Counts the records of each key, and tells of odd counts."""

    def __init__(self, tag: OutputTag) -> None:
        self.tag = tag

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value % KEYS, count
        if count % 2:
            yield self.tag, (value % KEYS, -count)


def _two_steps(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """If a task of the first step fails, those of the second one continue."""
    first = stream.key_by(lambda i: i % KEYS).count()
    return first.key_by(lambda pair: pair[1] % 3).count()


def _keyed_then_loop(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """If a task of the keyed step fails, the tasks of the loop continue."""
    return _shape("loop")(env, _counted(stream))


def _counted(stream: DataStream) -> DataStream:
    """Replace each number by another one, which depends on those before it of the same key."""
    counted = stream.key_by(lambda i: i % KEYS).count()
    return counted.map(lambda pair: pair[0] + KEYS * pair[1])


def _beside_a_loop(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """If a task of the loop fails, the tasks that count continue, since nothing leaves the loop."""
    back = env.create_feedback("back")
    seen = stream.map(lambda i: (i, i % 4)).union(back).key_by(lambda pair: sum(pair) % KEYS)
    seen = seen.process(_Numbered())
    again = seen.filter(lambda seen: seen[1] > 0).map(lambda seen: (seen[0], seen[1] - 1))
    back.close_with(again.rebalance().map(lambda pair: pair))
    seen.map(lambda seen: (seen[0] + seen[1]) % KEYS * 1000 + seen[2]).sink_to(FileSink("looped"))
    return stream.key_by(lambda i: i % KEYS).count()


def _beside_a_loop_behind_steps(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """If a task of the loop fails, the counts in front of it repeat their steps."""
    return _beside_a_loop(env, _counted(stream))


def _loops_apart(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """The subtasks of a loop send each other nothing, so one of them restarts alone."""
    back = env.create_feedback("back")
    seen = stream.map(lambda i: (i, i % 4)).union(back).map(lambda pair: pair)
    back.close_with(seen.filter(lambda pair: pair[1] > 0).map(lambda pair: (pair[0], pair[1] - 1)))
    return seen


class _Numbered(KeyedProcessFunction):
    """Numbers the records of each key."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[tuple[int, int, int]]:
        self.count.update((self.count.value() or 0) + 1)
        yield *value, self.count.value()


KINDS: dict[str, Build] = {
    "keyed state of all kinds": _shape("states"),
    "timers": _shape("timers"),
    "event timers": _shape("event timers"),
    "random numbers": _shape("random numbers"),
    "requests in flight": _shape("requests"),
    "two inputs": _two_inputs,
    "keyed broadcast state": keyed_broadcast_state,
    "tasks apart": _apart,
    "to all": _to_all,
    "to one": _to_one,
    "custom": _custom,
    "in turns": _in_turns,
    "to some in turns": _to_some_in_turns,
    "by chance": _by_chance,
    "positions": _positions,
    "two steps": _two_steps,
    "a loop": _shape("loop"),
    "a keyed task, then a loop": _keyed_then_loop,
    "beside a loop": _beside_a_loop,
    "loops apart": _loops_apart,
}


class _InTurns(GeneratorSource):
    """A source of which each task reads two splits in turns; none of them always has records."""

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        number = 2 * parallelism
        return SubtaskEnumerator([[i, number] for i in range(number)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        reader = super().create_reader(context)
        rng, read = random.Random(next(_READERS)), reader.read
        reader.read = lambda most: read(rng.randrange(most + 1))  # type: ignore[method-assign]
        return reader


_READERS = itertools.count()


class _Each(WatermarkGenerator):
    """Emits a watermark behind each third number, so it cuts batches into pieces."""

    def on_event(self, event: int, event_timestamp: int, output: WatermarkOutput) -> None:
        if event % 3 == 0:
            output.emit_watermark(Watermark(event_timestamp - 1))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        pass


EACH = WatermarkStrategy.for_generator(_Each).with_timestamp_assigner(lambda i, _: i)


def simulation_of(
    build: Build,
    source: type[GeneratorSource] = GeneratorSource,
    batch_records: int = 3,
    strategy: WatermarkStrategy | None = None,
) -> Simulation:
    """Return the simulation of a job whose tasks restart alone."""

    def main() -> None:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
        env.config.inline_threshold = 0
        env.config.batch_records, env.config.channel_batches = batch_records, 1
        env.config.restart_scope = RestartScope.TASK
        stream = env.from_source(source(lambda i: i, RECORDS), strategy, "numbers")
        build(env, stream).sink_to(FileSink("out"))
        env.execute()

    return paced_simulation(main)


def kill_workers(simulation: Simulation, enough: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Return what has happened under some seeds. The output must be right.

    Under a seed, a kill may hit a job that has just begun, or one that ends. So more seeds follow
    until enough has happened.
    """
    happened = Counter[str]()
    for seed in range(MOST_SEEDS):
        if seed >= SEEDS and enough(happened):
            break
        faults = (
            Fault("worker", "snapshot", 2, seed % 7 * 0.003),
            Fault("worker", "snapshot", 4, seed % 5 * 0.007),
        )
        schedule = Schedule(faults, (3,), interval_seconds=0.03, delay_seconds=0.004)
        result = simulation.run_schedule(seed, schedule)
        assert simulation.failure(result) is None, f"seed {seed}: {simulation.failure(result)}"
        happened += result.happened
    return happened


SINGLE = "restarts of single tasks"


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_restart_lose_and_double_nothing(kind: str) -> None:
    happened = kill_workers(simulation_of(KINDS[kind]), lambda happened: happened[SINGLE] >= 3)
    assert happened[SINGLE] >= 3, happened


def test_random_numbers_that_do_not_come_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests with random numbers would prove nothing."""
    monkeypatch.setattr(RandomNumbers, "save", lambda self: None)
    with pytest.raises(AssertionError, match="seed"):
        kill_workers(simulation_of(_shape("random numbers")), lambda happened: True)


@pytest.mark.parametrize("build", [_in_turns, _by_chance], ids=["in turns", "by chance"])
def test_positions_that_are_not_restored_are_seen(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests with `rebalance` and `shuffle` would prove nothing."""
    monkeypatch.setattr(RoutingPositions, "save", lambda self: None)
    with pytest.raises(AssertionError, match="seed"):
        kill_workers(simulation_of(build), lambda happened: True)


#: What a task in the middle may do, with tasks behind it that continue.
IN_THE_MIDDLE = (
    "requests",
    "batched requests",
    "process",
    "states",
    "timers",
    "event timers",
    "tumbling",
    "sessions",
    "sliding",
    "purged",
    "random numbers",
    "side outputs",
    "keyed broadcast state",
)


def _then_keyed(build: Build) -> Build:
    """Pass the output of a program through another keyed task."""

    def built(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        keyed = build(env, stream).key_by(lambda record: zlib.crc32(repr(record).encode()) % 5)
        return keyed.map(lambda record: record)

    return built


def _three_steps(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """The tasks of the third step must know the steps of the first one, too."""
    return _two_steps(env, stream).key_by(lambda pair: pair[1] % 5).count()


def _marked(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """Tasks behind a shuffle make watermarks, and some are idle for a while."""
    env.get_config().set_auto_watermark_interval(5)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(20).with_idleness(20)
    shuffled = stream.key_by(lambda i: i % 5).map(lambda i: i)
    timed = shuffled.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda i, _: i)
    )
    return timed.key_by(lambda i: i % KEYS).process(LaterByWatermark())


class _Numbering(AsyncFunction):
    """Returns another number at each call, after a time that is drawn."""

    def __init__(self) -> None:
        self.draws = random.Random(5)

    async def async_invoke(self, value: int) -> list[tuple[int, int]]:
        await trio.sleep(self.draws.choice([0.0, 0.001, 0.005, 0.02]))
        return [(value, next(_CALLS))]


_CALLS = itertools.count()


def _numbered(ordered: bool) -> Build:
    """The result of a request decides which task gets it, so another result would be seen."""

    def built(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
        wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
        sent = stream.key_by(lambda i: i % KEYS).map(lambda i: i).key_by(lambda i: i % 5)
        results = wait(sent, _Numbering(), 60_000, 4, run_in="trio")
        return results.key_by(lambda pair: pair[1] % 7).map(lambda pair: pair[0])

    return built


def _numbered_with_watermarks(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """Watermarks wait for requests, and decide when a task behind them in another chain emits."""
    env.get_config().set_auto_watermark_interval(5)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(20)
    timed = stream.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda i, _: i)
    )
    sent = timed.key_by(lambda i: i % KEYS)
    results = AsyncDataStream.unordered_wait(sent, _Numbering(), 60_000, 4, run_in="trio")
    later = results.key_by(lambda pair: pair[1] % 7).map(lambda pair: pair[0])
    return later.key_by(lambda i: i % KEYS).process(LaterByWatermark())


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the numbers of tasks that repeat steps, and of the repeated steps."""
    counts = Counter[str]()
    begin = TaskSteps.__init__

    def counting(self: TaskSteps, log: Any, to_repeat: Any, *others: Any) -> None:
        counts["tasks"] += bool(to_repeat)
        counts["steps"] += len(to_repeat)
        begin(self, log, to_repeat, *others)

    monkeypatch.setattr(TaskSteps, "__init__", counting)
    return counts


@pytest.mark.parametrize(
    "build",
    [_two_inputs, _three_steps, _positions, _marked, *map(_shape, IN_THE_MIDDLE)],
    ids=["two inputs", "three steps", "positions", "watermarks", *IN_THE_MIDDLE],
)
def test_tasks_behind_a_restarted_one_continue(build: Build, repeated: Counter[str]) -> None:
    """The restarted one takes its input, and fires its timers, in the same order as before."""
    simulation = simulation_of(_then_keyed(build))
    kill_workers(simulation, lambda happened: repeated["tasks"] >= 3)
    assert repeated["tasks"] >= 3 and repeated["steps"] >= 3, repeated


def test_a_loop_continues_without_the_keyed_tasks_in_front_of_it(repeated: Counter[str]) -> None:
    simulation = simulation_of(_keyed_then_loop)
    kill_workers(simulation, lambda happened: repeated["tasks"] >= 3)
    assert repeated["tasks"] >= 3 and repeated["steps"] >= 3, repeated


@pytest.mark.parametrize(
    "build",
    [_beside_a_loop, _beside_a_loop_behind_steps, _loops_apart],
    ids=["beside", "behind steps", "apart"],
)
def test_tasks_of_a_loop_restart_while_others_continue(
    build: Build, monkeypatch: pytest.MonkeyPatch, repeated: Counter[str]
) -> None:
    loops = Counter[str]()
    returned = TaskRestarts._returned

    def counting(self: TaskRestarts, replacement: Any, *others: Any) -> None:
        tasks, plan = replacement.tasks.tasks, self._plan
        loops["restarts"] += any(plan.loop_of(chain) is not None for chain, _ in tasks)
        returned(self, replacement, *others)

    monkeypatch.setattr(TaskRestarts, "_returned", counting)
    happened = kill_workers(simulation_of(build), lambda happened: loops["restarts"] >= 3)
    assert loops["restarts"] >= 3, loops
    # All restarted tasks come back at the first attempt.
    assert happened["restarts"] <= happened["kills of a worker"], happened
    assert (repeated["steps"] > 0) is (build is _beside_a_loop_behind_steps), repeated


def _batches(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    rows = stream.map(lambda i: {"number": i})
    chosen = rows.partition_custom(lambda key, count: key % count, lambda row: row["number"])
    return chosen.map_batches(lambda batch: batch).map(lambda row: row["number"])


def _batches_in_turns(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    """The columns of a task with several inputs go to others in turns, row by row."""
    rows = stream.map(lambda i: {"number": i})
    chosen = rows.partition_custom(lambda key, count: key % count, lambda row: row["number"])
    columns = chosen.map_batches(lambda batch: batch).rebalance()
    return columns.map_batches(lambda batch: batch).map(lambda row: row["number"])


def _windows_over_columns(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    rows = stream.map(lambda i: {"key": i % KEYS, "number": i / 7})
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(RECORDS)
    timed = rows.assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda row, _: round(row["number"] * 7))
    )
    windows = timed.group_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(20)))
    found = windows.agg(n=("*", "count"), most=("number", "max"))
    return found.map(lambda row: (row["key"], row["n"], round(row["most"] * 7)))


@pytest.mark.parametrize(
    "build",
    [_batches, _batches_in_turns, _windows_over_columns],
    ids=["batches", "batches in turns", "windows"],
)
def test_tasks_behind_restarted_ones_with_columns_continue(
    build: Build, repeated: Counter[str]
) -> None:
    """The restarted one gets the same batches, from parts that other batches bring."""
    pytest.importorskip("pyarrow")
    simulation = simulation_of(_then_keyed(build))
    kill_workers(simulation, lambda happened: repeated["tasks"] >= 3)
    assert repeated["tasks"] >= 3 and repeated["steps"] >= 3, repeated


def _later(env: StreamExecutionEnvironment, stream: DataStream) -> DataStream:
    return stream.key_by(lambda i: i % KEYS).process(LaterByWatermark())


@pytest.mark.parametrize(
    ("build", "strategy"),
    [(_to_all, None), (_by_chance, None), (_apart, None), (_positions, None), (_later, EACH)],
    ids=["to all", "by chance", "apart", "positions", "watermarks"],
)
def test_tasks_repeat_the_order_of_splits_that_they_read_in_turns(
    build: Build, strategy: WatermarkStrategy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = Counter[str]()
    begin = SourceReads.__init__

    def counting(self: SourceReads, log: Any, to_repeat: Any, *others: Any) -> None:
        splits = [step[1] for step in to_repeat if step[0] == READ]
        repeated["tasks"] += bool(splits)
        repeated["turns"] += sum(one != other for one, other in itertools.pairwise(splits))
        begin(self, log, to_repeat, *others)

    monkeypatch.setattr(SourceReads, "__init__", counting)

    def enough(happened: Counter[str]) -> bool:
        return happened[SINGLE] >= 3 and repeated["tasks"] >= 3 and repeated["turns"] >= 10

    happened = kill_workers(simulation_of(build, _InTurns, strategy=strategy), enough)
    assert enough(happened), (happened, repeated)


class _Greedy(_InTurns):
    """Its readers return more records than they are asked for."""

    def create_reader(self, context: ReaderContext) -> SourceReader:
        reader = GeneratorSource.create_reader(self, context)
        rng, read = random.Random(next(_READERS)), reader.read
        reader.read = lambda most: read(most + rng.randrange(4))  # type: ignore[method-assign]
        return reader


def test_readers_that_return_too_many_records_lose_and_double_nothing() -> None:
    """The order cannot always be repeated; then all tasks of the region restart."""
    happened = kill_workers(simulation_of(_to_all, _Greedy), lambda happened: True)
    assert happened["restarts"] >= 3, happened


def test_an_order_of_splits_that_is_not_repeated_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test before would prove nothing."""
    monkeypatch.setattr(SourceReads, "turn", None)
    monkeypatch.setattr(SourceReads, "taken", lambda self, split, count: None)
    monkeypatch.setattr(SourceReads, "report", _report_at_once)
    with pytest.raises(AssertionError, match="seed"):
        kill_workers(simulation_of(_to_all, _InTurns), lambda happened: True)


def _report_at_once(reads: SourceReads) -> None:
    reads._left.clear()
    if reads._repeats:
        reads._repeats = False
        reads._repeated()


@pytest.mark.parametrize(
    "build",
    [_numbered(True), _numbered(False), _numbered_with_watermarks],
    ids=["ordered", "unordered", "watermarks"],
)
def test_results_of_requests_are_repeated(
    build: Build, repeated: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Counter[str]()
    repeat = RepeatableResults.repeat

    def counting(self: RepeatableResults, places: list[int], *others: Any) -> None:
        results["requests"] += len(places)
        repeat(self, places, *others)

    monkeypatch.setattr(RepeatableResults, "repeat", counting)

    def enough(happened: Counter[str]) -> bool:
        often = happened[SINGLE] >= 3 and repeated["tasks"] >= 3
        return often and results["requests"] >= 20

    # The numbers of the results, and so the keys, depend on the tests that have run before.
    happened = kill_workers(simulation_of(build), enough)
    assert enough(happened), (happened, repeated, results)
