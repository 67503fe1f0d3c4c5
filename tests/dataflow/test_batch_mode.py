"""Batch mode: the same programs over bounded input, with final results only."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BroadcastProcessFunction,
    Configuration,
    EventTimeSessionWindows,
    FileSink,
    GeneratorSource,
    GraphError,
    JobError,
    JsonLines,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    RestartStrategies,
    RuntimeExecutionMode,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkGenerator,
    WatermarkStrategy,
)
from penstock.dataflow.program import RunOptions, run_options

STREAMING, BATCH, AUTOMATIC = RuntimeExecutionMode
LATE = OutputTag("late")


def _env(mode: RuntimeExecutionMode = BATCH, parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.set_in_process().set_parallelism(parallelism).set_runtime_mode(mode)


def _events(count: int = 400, seed: int = 3) -> list[tuple[str, int, int]]:
    """Records (key, number, event time), out of order."""
    rng = random.Random(seed)
    return [(rng.choice("abcdefg"), i, max(0, 10 * i - rng.randrange(400))) for i in range(count)]


def _timed(env: StreamExecutionEnvironment, events: list[Any]) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(400)
    strategy = strategy.with_timestamp_assigner(lambda event, _: event[2])
    return env.from_collection(events).assign_timestamps_and_watermarks(strategy)


def _collect(stream: Any) -> list[Any]:
    return sorted(stream.execute_and_collect(), key=repr)


# ---- final results


def test_running_aggregations_emit_the_last_value_of_each_key():
    events = _events()
    counts = Counter(key for key, _, _ in events)
    sums: Counter[str] = Counter()
    for key, number, _ in events:
        sums[key] += number

    def pairs(env: StreamExecutionEnvironment) -> Any:
        return env.from_collection(events).map(lambda event: event[:2]).key_by(0)

    assert _collect(pairs(_env()).count()) == sorted(counts.items())
    assert _collect(pairs(_env()).sum(1)) == sorted(sums.items())
    summed = pairs(_env()).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert _collect(summed) == sorted(sums.items())
    best = pairs(_env()).max_by(1).map(lambda pair: pair[1])
    assert sorted(best.execute_and_collect()) == sorted(
        max(number for key, number, _ in events if key == name) for name in counts
    )
    assert len(_collect(pairs(_env()).top_k(2, 1))) == len(counts)


def test_a_reduced_value_that_is_mutable():
    lists = _env().from_collection(_events(50)).map(lambda event: [event[0], [event[1]]])
    joined = lists.key_by(0).reduce(lambda a, b: [a[0], a[1] + b[1]])
    found = dict(joined.execute_and_collect())
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(50))


@pytest.mark.parametrize("batches", [False, True])
def test_columns_have_one_row_for_each_group(batches: bool):
    pytest.importorskip("pyarrow")
    """Of rows and of Arrow batches; a value that becomes a float is one in all rows."""
    events = [(key, n / 2 if n > 300 else n, at) for key, n, at in _events()]
    names = ("key", "number", "at")
    rows = _timed(_env(), events).map(lambda event: dict(zip(names, event, strict=True)))
    columns = rows.map_batches(lambda batch: batch, timestamps="at") if batches else rows
    totals = columns.group_by("key").agg(n=("*", "count"), total=("number", "sum"))
    found = _collect(totals)
    for key in "abcdefg":
        numbers = [n for name, n, _ in events if name == key]
        assert [row for row in found if row["key"] == key] == [
            {"key": key, "n": len(numbers), "total": sum(numbers)}
        ]
    # A row has the time of the last row of its group, so a window may follow.
    last = {name: max(at for one, _, at in events if one == name) for name in "abcdefg"}
    window = totals.key_by("key").window(TumblingEventTimeWindows.of(10)).process(Started())
    assert dict(window.execute_and_collect()) == {key: at // 10 * 10 for key, at in last.items()}


class Started(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        assert len(list(elements)) == 1
        yield key, context.window().start


WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.window(TumblingEventTimeWindows.of(150)).reduce(_add),
    "sliding": lambda s: s.window(SlidingEventTimeWindows.of(300, 50)).reduce(_add),
    "inverse": lambda s: s.window(SlidingEventTimeWindows.of(300, 50)).reduce(_add, inverse=_less),
    "sessions": lambda s: s.window(EventTimeSessionWindows.with_gap(35)).reduce(_add),
    "lists": lambda s: s.window(TumblingEventTimeWindows.of(150)).process(Numbers()),
    "history": lambda s: s.join_history(60, lambda e, past: (e, sorted(past))),
}


def _add(one: Any, other: Any) -> Any:
    return (one[0], one[1] + other[1])


def _less(one: Any, leaving: Any) -> Any:
    return (one[0], one[1] - leaving[1])


class Numbers(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().start, sorted(element[1] for element in elements)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_have_the_results_of_the_stream(name: str):
    def run(mode: RuntimeExecutionMode) -> list[Any]:
        keyed = _timed(_env(mode, 1), _events()).map(lambda e: (e[0], e[1])).key_by(0)
        return _collect(WINDOWS[name](keyed))

    streamed = run(STREAMING)
    assert len(streamed) > 20
    assert run(BATCH) == streamed
    assert run(AUTOMATIC) == streamed


class Punctual(WatermarkGenerator):
    """Emits a watermark after each record, so that most others are late."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        raise AssertionError("there are no watermarks before the end")

    def on_periodic_emit(self, output: Any) -> None:
        raise AssertionError("there are no watermarks before the end")


def test_no_record_is_late_and_watermark_generators_are_not_used():
    strategy = WatermarkStrategy.for_generator(Punctual)
    strategy = strategy.with_timestamp_assigner(lambda event, _: event[2])
    events = _events(60)
    timed = _env().from_collection(events).assign_timestamps_and_watermarks(strategy)
    window = timed.key_by(0).window(TumblingEventTimeWindows.of(100))
    counted = window.side_output_late_data(LATE).process(Numbers())
    both = counted.flat_map(lambda r: r[2]).union(counted.get_side_output(LATE))
    assert sorted(both.execute_and_collect()) == list(range(60))


def test_windows_by_processing_time_fire_at_the_end():
    keyed = _env().from_collection(_events(60)).key_by(0)
    window = keyed.window(TumblingProcessingTimeWindows.of(3_600_000 * 24 * 365))
    counted = window.process(Numbers()).flat_map(lambda r: r[2])
    assert sorted(counted.execute_and_collect()) == list(range(60))


# ---- process functions


class Watching(KeyedProcessFunction):
    """Emits what it sees: order, times and state of each key."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self.pages = runtime_context.get_map_state(MapStateDescriptor("pages"))
        self.running: list[Any] = []

    def process_element(self, event: Any, ctx: Any) -> Any:
        key = ctx.get_current_key()
        assert key not in self.running[:-1], "all records of a key come together"
        if not self.running or self.running[-1] != key:
            self.running.append(key)
        timers = ctx.timer_service()
        assert timers.current_watermark() < 0
        self.seen.update([*(self.seen.value() or []), event[1:]])
        self.pages.put(event[1] % 5, event[1])
        timers.register_event_time_timer(7)
        timers.register_event_time_timer(9)
        timers.delete_event_time_timer(9)
        timers.register_processing_time_timer(timers.current_processing_time() + 10**10)
        yield LATE, event[1]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        if timestamp == 7:
            ctx.timer_service().register_event_time_timer(8)  # which is ignored
            yield "timer", ctx.get_current_key(), self.seen.value()
        else:
            assert timestamp > 8
            ctx.timer_service().register_processing_time_timer(timestamp + 1)

    def end_input(self, ctx: Any) -> Any:
        yield "end", ctx.get_current_key(), sorted(self.pages.keys())


@pytest.mark.parametrize("memory", [512 * 1024 * 1024, 1])
def test_a_process_function_gets_one_key_after_the_other_in_order_of_time(
    memory: int, monkeypatch: pytest.MonkeyPatch
):
    from penstock.runtime.operators.batch import record_sorter, sorted_input

    if memory == 1:
        monkeypatch.setattr(record_sorter, "_PAGE", 20)
        monkeypatch.setattr(record_sorter.RecordSorter, "_estimated_limit", lambda *_: 50)
        monkeypatch.setattr(sorted_input, "HOOK_BATCH", 3)
    events = _events(300)
    watched = _timed(_env(), events).key_by(0).process(Watching())
    both = watched.union(watched.get_side_output(LATE).map(lambda number: ("side", number)))
    found = list(both.execute_and_collect())
    assert sorted(r[1] for r in found if r[0] == "side") == list(range(300))
    lists = {key: seen for kind, key, *seen in found if kind == "timer"}
    for key in "abcdefg":
        mine = sorted((e[1:] for e in events if e[0] == key), key=lambda pair: (pair[1], pair[0]))
        [seen] = lists[key]
        assert [pair[1] for pair in seen] == [pair[1] for pair in mine]
        assert sorted(seen) == sorted(mine)
    ends = {key: pages for kind, key, *pages in found if kind == "end"}
    assert ends == {key: [[0, 1, 2, 3, 4]] for key in "abcdefg"}


def test_state_of_earlier_keys_is_gone():
    """The state of a key is removed, so a job with many keys needs little memory."""
    from penstock.snapshot.state import KeyedBackend

    sizes: list[int] = []
    clear = KeyedBackend.clear

    def measured(self: KeyedBackend) -> None:
        sizes.append(sum(1 for name in self.tables.names for _ in self.scan(name)))
        clear(self)
        assert not any(list(self.scan(name)) for name in self.tables.names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedBackend, "clear", measured)
        numbers = _env().from_sequence(1, 20_000).key_by(lambda n: n % 10_000)
        mapped = numbers.map_with_state(lambda count, n: (count + 1, count), 0)
        assert Counter(mapped.execute_and_collect()) == {0: 10_000, 1: 10_000}
    assert len(sizes) >= 8
    assert max(sizes) < 3_000


class Enrich(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.seen.update([*(self.seen.value() or []), ("first", value[1])])
        ctx.timer_service().register_event_time_timer(10**9)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        self.seen.update([*(self.seen.value() or []), ("second", value[1])])
        ctx.timer_service().register_event_time_timer(10**9)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.seen.value()


def test_two_keyed_inputs_are_merged_by_key_and_time():
    env = _env()
    first = _timed(env, [("a", 3, 30), ("b", 1, 10), ("a", 1, 10)])
    second = _timed(env, [("b", 2, 5), ("a", 2, 20)])
    merged = first.key_by(0).connect(second.key_by(0)).process(Enrich())
    assert _collect(merged) == [
        ("a", [("first", 1), ("second", 2), ("first", 3)]),
        ("b", [("second", 2), ("first", 1)]),
    ]


RULES = MapStateDescriptor("rules")


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.get_broadcast_state(RULES).get(value % 10)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)


class KeyedRules(KeyedBroadcastProcessFunction):
    process_element = Rules.process_element
    process_broadcast_element = Rules.process_broadcast_element


@pytest.mark.parametrize("keyed", [False, True])
def test_a_broadcast_stream_is_read_before_the_other_one(keyed: bool):
    env = _env()
    rules = env.from_collection([(digit, f"rule {digit}") for digit in range(10)])
    rules = rules.map(lambda rule: rule).broadcast(RULES)
    numbers: Any = env.from_collection(list(range(50)))
    stream = numbers.key_by(lambda n: n % 7) if keyed else numbers
    found = _collect(stream.connect(rules).process(KeyedRules() if keyed else Rules()))
    assert found == sorted(((n, f"rule {n % 10}") for n in range(50)), key=repr)


# ---- settings


def test_the_mode_is_set_by_a_configuration_and_by_options():
    config = Configuration().set_string("execution.runtime-mode", "batch")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    assert env.config.runtime_mode is BATCH
    with pytest.raises(GraphError, match="it is STREAMING, BATCH or AUTOMATIC"):
        env.configure(Configuration().set_string("execution.runtime-mode", "fast"))
    with pytest.raises(GraphError, match="a runtime mode is a RuntimeExecutionMode, not 'BATCH'"):
        env.set_runtime_mode("BATCH")  # type: ignore[arg-type]
    counted = _env(STREAMING).from_collection(["a", "b", "a"]).key_by(str).count()
    with run_options(RunOptions(runtime_mode=BATCH)):
        assert _collect(counted) == [("a", 2), ("b", 1)]
    assert _collect(counted) == [("a", 1), ("a", 2), ("b", 1)]


def test_unbounded_input_is_refused_with_the_name_of_the_source():
    env = _env()
    endless = env.from_source(GeneratorSource(lambda i: i), None, "ticks")
    with pytest.raises(GraphError, match=r"'ticks' \(GeneratorSource\) is unbounded: give each"):
        endless.union(env.from_collection([1])).execute_and_collect()
    env.set_runtime_mode(AUTOMATIC)
    assert len(endless.execute_and_collect(limit=3)) == 3


def test_loops_are_refused():
    env = _env()
    loop = env.from_collection([3, 5]).iterate()
    smaller = loop.map(lambda n: n - 1)
    loop.close_with(smaller.filter(lambda n: n > 0))
    with pytest.raises(GraphError, match="batch mode has no loops, and the program has 'iter"):
        smaller.execute_and_collect()
    env.set_runtime_mode(AUTOMATIC)
    assert sorted(smaller.execute_and_collect()) == [0, 0, 1, 1, 2, 2, 3, 4]


# ---- failures


class FailOnce(MapFunction):
    """Fails in the middle of the input, once for each marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def map(self, value: Any) -> Any:
        if value == 700 and not self.marker.exists():
            self.marker.touch()
            raise ValueError("once")
        return value


def _written(folder: Path) -> list[Any]:
    return [json.loads(line) for p in folder.glob("part-*") for line in p.read_text().splitlines()]


def test_a_failed_job_starts_from_the_beginning_and_publishes_once(tmp_path: Path):
    env = _env().set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1))
    numbers = env.from_sequence(1, 1_000).map(FailOnce(tmp_path / "failed"))
    numbers.sink_to(FileSink(tmp_path / "all", JsonLines()))
    numbers.key_by(lambda n: n % 10).count().sink_to(FileSink(tmp_path / "counts", JsonLines()))
    result = env.execute()
    assert len(result.restarts) == 1
    assert sorted(_written(tmp_path / "all")) == list(range(1, 1_001))
    assert sorted(_written(tmp_path / "counts")) == [[digit, 100] for digit in range(10)]


def test_a_job_that_fails_publishes_nothing(tmp_path: Path):
    env = _env().set_restart_strategy(RestartStrategies.no_restart())
    numbers = env.from_sequence(1, 1_000).map(FailOnce(tmp_path / "failed"))
    numbers.sink_to(FileSink(tmp_path / "all", JsonLines()))
    with pytest.raises(JobError, match="once"):
        env.execute()
    assert _written(tmp_path / "all") == []


class FailInOrder(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [1 // value]


def test_an_error_in_sorted_input_names_the_record():
    failing = _env().from_collection([3, 0, 5]).key_by(lambda n: n).process(FailInOrder())
    with pytest.raises(JobError, match="ZeroDivisionError in operator 'Keyed Process'") as caught:
        list(failing.execute_and_collect())
    assert caught.value.record == "0"


def test_a_batch_job_has_one_snapshot_and_does_not_resume_in_the_middle(tmp_path: Path):
    def job(mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        env = _env(mode).enable_checkpointing(10)
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
        numbers = env.from_sequence(1, 5_000).key_by(lambda n: n % 5).count()
        numbers.uid("count").sink_to(FileSink(tmp_path / "out", JsonLines())).uid("out")
        return env

    result = job(BATCH).execute()
    assert [one["kind"] for one in result.snapshots] == ["final"]
    assert sorted(_written(tmp_path / "out")) == [[digit, 1_000] for digit in range(5)]
    with run_options(RunOptions(resume="newest")):
        assert job(BATCH).execute().snapshots == []  # it had ended before
    assert len(_written(tmp_path / "out")) == 5


def test_a_batch_job_does_not_resume_from_a_snapshot_of_a_stream(tmp_path: Path):
    def job(mode: RuntimeExecutionMode) -> Any:
        env = _env(mode).enable_checkpointing(10)
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
        count = None if mode is STREAMING else 1_000
        source = GeneratorSource(lambda i: i, count, 1_000)
        return env.from_source(source).uid("numbers").map(lambda n: n).uid("same")

    assert len(job(STREAMING).execute_and_collect(limit=20)) == 20
    options = RunOptions(resume="newest", allow_dropped=True)
    with run_options(options), pytest.raises(GraphError, match="cannot resume from snapshot"):
        list(job(BATCH).execute_and_collect())


def test_a_stop_publishes_nothing(tmp_path: Path):
    env = _env()
    source = GeneratorSource(lambda i: i, 10**9, 1_000)
    numbers = env.from_source(source)
    numbers.sink_to(FileSink(tmp_path / "out", JsonLines()))
    records = numbers.key_by(lambda n: n % 3).count().execute_and_collect()
    records.close()
    assert _written(tmp_path / "out") == []
