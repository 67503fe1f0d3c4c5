"""Programs give the results that they give in PyFlink 2.3."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    GlobalWindows,
    JobError,
    ProcessWindowFunction,
    PurgingTrigger,
    Row,
    RowKind,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimeWindow,
    TimeWindowSerializer,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
    WindowAssigner,
)
from penstock.dataflow.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    KeyedProcessFunction,
    KeySelector,
    Partitioner,
    ProcessFunction,
)
from penstock.dataflow.state import AggregatingStateDescriptor, ReducingStateDescriptor

TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda value, _: value
)


def collection(values: Iterable[Any]) -> DataStream:
    return StreamExecutionEnvironment.get_execution_environment().from_collection(list(values))


def times(*values: int) -> DataStream:
    return collection(values).assign_timestamps_and_watermarks(TIMED)


def run(stream: DataStream) -> list[Any]:
    with stream.execute_and_collect(in_process=True) as found:
        return list(found)


class WithTime(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value, ctx.timestamp()


def add(first: int, second: int) -> int:
    return first + second


# ---- the time of the results of windows


def test_a_window_by_count_has_the_time_of_its_last_record():
    sums = times(10, 20, 30, 40).key_by(lambda value: 0).count_window(2).reduce(add)
    assert run(sums.process(WithTime())) == [(30, 20), (70, 40)]
    sliding = times(10, 20, 30, 40).count_window_all(3, 1).reduce(add)
    assert run(sliding.process(WithTime())) == [(60, 30), (90, 40)]


def test_a_window_by_count_without_event_time_gives_none():
    sums = collection([1, 2, 3, 4]).key_by(lambda value: 0).count_window(2).reduce(add)
    assert run(sums.process(WithTime())) == [(3, None), (7, None)]


def test_an_event_time_window_behind_a_window_by_count_is_of_use():
    pairs = times(*range(0, 100, 10)).count_window_all(2).reduce(add)
    counts = pairs.window_all(TumblingEventTimeWindows.of(40))
    found = counts.apply(lambda window, sums: [(window.start, list(sums))])
    assert run(found) == [(0, [10, 50]), (40, [90, 130]), (80, [170])]


def test_a_global_window_has_the_time_of_the_record_that_fires_it():
    windows = times(10, 20, 30, 40).window_all(GlobalWindows.create())
    sums = windows.trigger(PurgingTrigger.of(CountTrigger.of(2))).reduce(add)
    assert run(sums.process(WithTime())) == [(30, 20), (70, 40)]


def test_an_early_firing_has_the_time_of_the_timer():
    windows = times(10, 50, 90, 130).window_all(TumblingEventTimeWindows.of(100))
    sums = windows.trigger(ContinuousEventTimeTrigger.of(30)).reduce(add)
    found = run(sums.process(WithTime()))
    assert {time for _, time in found} >= {30, 60, 90, 99, 199}
    assert found[-1] == (130, 199)


# ---- None as a result


class OddMap(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value if value % 2 else None

    def map2(self, value: Any) -> Any:
        return None


class OddLists(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return [value] if value % 2 else None

    def map2(self, value: Any) -> Any:
        return None


class OddFlatMap(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any:
        return [value] if value % 2 else None

    def flat_map2(self, value: Any) -> Any:
        return None


def connected(keyed: bool, timed: bool) -> Any:
    first = times(*range(6)) if timed else collection(range(6))
    second = first.get_execution_environment().from_collection([7])
    streams = first.connect(second)
    return streams.key_by(lambda value: 0, lambda value: 0) if keyed else streams


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_none_of_a_co_map_function_is_no_record(keyed: bool, timed: bool):
    assert run(connected(keyed, timed).map(OddMap())) == [1, 3, 5]
    assert run(connected(keyed, timed).map(OddLists())) == [[1], [3], [5]]
    found = run(connected(keyed, timed).map(OddMap()).process(WithTime()))
    assert found == [(value, value if timed else None) for value in (1, 3, 5)]


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_none_of_a_co_flat_map_function_is_no_record(keyed: bool, timed: bool):
    assert run(connected(keyed, timed).flat_map(OddFlatMap())) == [1, 3, 5]


class Nothing(AggregateFunction):
    """Has None as its accumulator, and must not be asked for a result."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return None

    def get_result(self, accumulator: Any) -> Any:
        raise AssertionError(accumulator)

    def merge(self, a: Any, b: Any) -> Any:
        raise AssertionError((a, b))


class Restarting(AggregateFunction):
    """Collects records, and forgets those up to 3."""

    def create_accumulator(self) -> Any:
        return ("new",)

    def add(self, value: Any, accumulator: Any) -> Any:
        return None if value == 3 else (*accumulator, value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


ALL = [
    TumblingEventTimeWindows.of(100),
    EventTimeSessionWindows.with_gap(50),
    GlobalWindows.create(),
]


@pytest.mark.parametrize("assigner", ALL, ids=repr)
def test_a_window_whose_accumulator_is_none_emits_nothing(assigner: Any):
    def windows(*values: int) -> Any:
        windows = times(*values).key_by(lambda value: 0).window(assigner)
        return windows.trigger(CountTrigger.of(4)) if assigner is ALL[2] else windows

    assert run(windows(1, 2, 3, 4).aggregate(Nothing())) == []
    assert run(windows(1, 2, 3, 4).aggregate(Restarting())) == [("new", 4)]
    assert run(windows(1, 2, 4, 3).aggregate(Restarting())) == []
    apply = windows(1, 2, 3, 4).aggregate(Restarting(), lambda key, window, found: list(found))
    assert run(apply) == [("new", 4)]
    assert run(windows(1, 2, 3, 4).reduce(lambda a, b: None if b == 3 else a + b)) == [4]


def test_a_reduce_function_that_returns_none_starts_anew():
    def reduced(mode: RuntimeExecutionMode) -> Any:
        stream = collection([1, 2, 3, 4, 5])
        stream.get_execution_environment().set_runtime_mode(mode)
        keyed = stream.key_by(lambda value: 0)
        return run(keyed.reduce(lambda a, b: None if b == 3 else a + b).map(str))

    assert reduced(RuntimeExecutionMode.STREAMING) == ["1", "3", "None", "4", "9"]
    assert reduced(RuntimeExecutionMode.BATCH) == ["9"]


class States(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        aggregating = AggregatingStateDescriptor("aggregating", Restarting())
        self.aggregating = runtime_context.get_aggregating_state(aggregating)
        reducing = ReducingStateDescriptor("reducing", lambda a, b: None if b == 3 else a + b)
        self.reducing = runtime_context.get_reducing_state(reducing)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.aggregating.add(None if value == 6 else value)
        self.reducing.add(value)
        yield self.aggregating.get(), self.reducing.get()


def test_none_removes_the_value_of_a_reducing_or_aggregating_state():
    found = run(collection([1, 3, 4, 5, 6, 7]).key_by(lambda value: 0).process(States()))
    assert found == [
        (("new", 1), 1),
        (None, None),
        (("new", 4), 4),
        (("new", 4, 5), 9),
        (None, 15),
        (("new", 7), 22),
    ]


# ---- functions that the engine calls


class OneWindow(WindowAssigner):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        # It ends long after the test. Otherwise it could be cleaned up between two records.
        return [TimeWindow(0, 10**15)]

    def get_default_trigger(self, env: Any) -> Any:
        assert isinstance(env, StreamExecutionEnvironment)
        return CountTrigger.of(2)

    def get_window_serializer(self) -> Any:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return False


def test_the_default_trigger_of_an_assigner_gets_the_environment():
    windows = collection([1, 2, 3, 4]).key_by(lambda value: 0).window(OneWindow())
    assert run(windows.reduce(add)) == [3, 10]


class ByIndex(KeySelector):
    closed = 0

    def open(self, runtime_context: Any) -> None:
        assert not hasattr(self, "index"), "opened twice"
        self.index = 0
        self.subtask = runtime_context.get_index_of_this_subtask()

    def get_key(self, value: Any) -> Any:
        return value[self.index]

    def close(self) -> None:
        del self.index
        ByIndex.closed += 1


def test_key_selectors_are_opened_and_closed(monkeypatch: pytest.MonkeyPatch):
    rows = [("a", 1), ("a", 2), ("b", 3)]
    for mode in (RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH):
        for parallelism in (1, 2):
            monkeypatch.setattr(ByIndex, "closed", 0)
            stream = collection(rows)
            stream.get_execution_environment().set_parallelism(parallelism).set_runtime_mode(mode)
            sums = run(stream.key_by(ByIndex()).sum(1))
            assert {("a", 3), ("b", 3)} <= set(sums)
            assert ByIndex.closed == parallelism
    assert sorted(run(collection(rows).key_by(ByIndex()).count_window(1).sum(1))) == rows
    other = collection(rows)
    second = other.get_execution_environment().from_collection([(0, "a", 4)])
    joined = other.connect(second).key_by(ByIndex(), lambda row: row[1]).map(FirstItem())
    assert sorted(run(joined)) == [("a", 1), ("a", 2), ("b", 3)]


class FirstItem(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return None


class Shifted(Partitioner):
    def open(self, runtime_context: Any) -> None:
        self.shift = 1

    def partition(self, key: Any, num_partitions: int) -> int:
        return (key + self.shift) % num_partitions


class Place(ProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.place = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value, self.place


def test_partitioners_are_opened():
    stream = collection([(1,), (2,)])
    stream.get_execution_environment().set_parallelism(2)
    parts = stream.partition_custom(Shifted(), ByIndex()).process(Place())
    assert sorted(run(parts)) == [((1,), 0), ((2,), 1)]


# ---- types


def test_records_of_a_declared_type_are_printed_as_flink_prints_them(
    capfd: pytest.CaptureFixture[str],
):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    row = Types.ROW_NAMED(["b", "a"], [Types.INT(), Types.STRING()])
    env.from_collection([(1, "x"), Row.of_kind(RowKind.DELETE, 2, None)], row).print("row")
    pair = Types.TUPLE([Types.STRING(), Types.DOUBLE()])
    env.from_collection([("x", 1.5)], pair).print("tuple")
    env.from_collection([True], Types.BOOLEAN()).print("boolean")
    env.from_collection([0]).map(lambda value: Row(1, "x")).print("untyped")
    numbers = env.from_collection([1.0, 1e16], Types.DOUBLE())
    numbers.print("double")
    numbers.key_by(lambda value: 0).reduce(lambda a, b: "other").print("reduced")
    env.execute(in_process=True)
    assert sorted(capfd.readouterr().out.splitlines()) == [
        "boolean> true",
        "double> 1.0",
        "double> 1.0E16",
        "reduced> 1.0",
        "reduced> other",
        "row> +I[1,x]",
        "row> -D[2,None]",
        "tuple> (x,1.5)",
        "untyped> <Row(1, 'x')>",
    ]


def test_bytes_are_a_primitive_array_of_bytes():
    texts = collection(["ab"])
    data = texts.map(lambda text: text.encode(), Types.PRIMITIVE_ARRAY(Types.BYTE()))
    assert run(data) == [b"ab"]


# ---- plans and errors


def test_a_union_of_keyed_streams_keeps_the_partitioning_by_key():
    first = collection([1, 2, 3])
    env = first.get_execution_environment().set_parallelism(2)
    second = env.from_collection([4, 5])
    union = first.key_by(lambda value: value % 2).union(second.key_by(lambda value: value % 2))
    union.add_sink(print)
    nodes = json.loads(env.get_execution_plan())["nodes"]
    sources = {node["id"] for node in nodes if node["pact"] == "Data Source"}
    [sink] = [node for node in nodes if node["pact"] == "Data Sink"]
    assert {before["id"] for before in sink["predecessors"]} == sources
    assert {before["ship_strategy"] for before in sink["predecessors"]} == {"HASH"}


def test_a_record_without_event_time_has_none_and_keys_must_not_change():
    assert run(collection([1]).process(WithTime())) == [(1, None)]
    lists = collection([([1], 1)]).key_by(lambda row: row[0]).sum(1)
    with pytest.raises(JobError, match=r"a builtins\.list can't be a key: it can change"):
        run(lists)
    numbers = collection([(1, 1), (1.0, 1), (True, 1)]).key_by(lambda row: row[0]).sum(1)
    assert [count for _, count in run(numbers)] == [1, 2, 3]


class Changing(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield [element[0] for element in elements]
        for element in elements:
            element[0] += 100


def test_later_firings_do_not_see_what_a_window_function_has_changed():
    keyed = collection([1, 2, 3]).map(lambda value: [value]).key_by(lambda value: 0)
    windows = keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(1))
    assert run(windows.process(Changing())) == [[1], [1, 2], [1, 2, 3]]
