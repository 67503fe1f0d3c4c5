"""What a program says about windows: the operation that its operator gets, and bad input."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    AllWindowFunction,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    DataStream,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    GraphError,
    KeyedStream,
    NeverTrigger,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    ReduceFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowFunction,
)
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.windows import WindowOperation
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_codec import ValueCodec

HOUR = TumblingEventTimeWindows.of(Time.hours(1))
SLIDING = SlidingEventTimeWindows.of(Time.hours(1), Time.minutes(1))
SESSIONS = EventTimeSessionWindows.with_gap(Time.minutes(30))


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class Average(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


class WithoutMerge(Average):
    merge = AggregateFunction.merge


class PanesWithoutMerge(WithoutMerge):
    merges_panes = True


class Process(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield key, context.window(), list(elements)


class ProcessAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield context.window(), list(elements)


class Apply(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        yield key, window, list(inputs)


class ApplyAll(AllWindowFunction):
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        yield window, list(inputs)


@pytest.fixture
def stream() -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([1, 2]).set_parallelism(1)


@pytest.fixture
def keyed(stream: DataStream) -> KeyedStream:
    return stream.key_by(lambda value: value % 2)


def operation(stream: DataStream) -> WindowOperation:
    operator = stream._outputs[0].operator
    assert operator.spec.name == "keyed_window"
    assert isinstance(operator.function, WindowOperation)
    return operator.function


def test_a_window_has_the_default_trigger_of_its_assigner(keyed: KeyedStream):
    made = operation(keyed.window(HOUR).reduce(lambda a, b: a + b))
    assert isinstance(made.trigger, EventTimeTrigger) and made.has_default_trigger
    assert made.assigner is HOUR and made.keyed
    assert (made.evictor, made.allowed_lateness, made.late_tag) == (None, 0, None)
    assert made.window_function is None and made.inverse is None
    assert made.aggregator(1, 2) == 3


def test_settings_come_with_the_window(keyed: KeyedStream):
    tag, trigger, evictor = OutputTag("late"), CountTrigger.of(5), CountEvictor.of(3)
    windows = keyed.window(HOUR).trigger(trigger).evictor(evictor)
    made = operation(
        windows.allowed_lateness(Time.seconds(5)).side_output_late_data(tag).process(Process())
    )
    assert (made.trigger, made.evictor) == (trigger, evictor)
    assert (made.allowed_lateness, made.late_tag) == (5000, tag)
    assert not made.has_default_trigger
    assert windows.get_execution_environment() is keyed.get_execution_environment()


def test_lateness_is_also_a_number_of_milliseconds(keyed: KeyedStream):
    assert operation(keyed.window(HOUR).allowed_lateness(7).sum()).allowed_lateness == 7


@pytest.mark.parametrize("function", [Process(), Apply(), lambda key, window, records: records])
def test_an_aggregate_is_combined_with_a_window_function(keyed: KeyedStream, function: Any):
    for made in (
        operation(keyed.window(SESSIONS).aggregate(Average(), function)),
        operation(keyed.window(SESSIONS).reduce(Sum(), function)),
    ):
        assert type(made.window_function) is type(function)
        assert made.aggregator is not None


def test_each_operator_has_functions_of_its_own(keyed: KeyedStream):
    average, process = Average(), Process()
    first = operation(keyed.window(HOUR).aggregate(average, process))
    second = operation(keyed.window(HOUR).aggregate(average, process))
    assert first.aggregator is not second.aggregator
    assert first.window_function is not process
    assert first.functions == [first.aggregator, first.window_function]


def test_records_are_given_to_apply_and_process(keyed: KeyedStream, stream: DataStream):
    assert isinstance(operation(keyed.window(HOUR).process(Process())).window_function, Process)
    assert isinstance(operation(keyed.window(HOUR).apply(Apply())).window_function, Apply)
    everything = stream.window_all(HOUR)
    assert isinstance(operation(everything.process(ProcessAll())).window_function, ProcessAll)
    assert isinstance(operation(everything.apply(ApplyAll())).window_function, ApplyAll)
    plain = operation(everything.apply(lambda window, records: records))
    assert callable(plain.window_function) and not plain.keyed


def test_fields_of_a_window_are_combined(keyed: KeyedStream):
    windows = keyed.window(HOUR)
    first, second = (1, 5, "a"), (0, 7, "b")

    def combined(stream: DataStream) -> Any:
        return operation(stream).aggregator.reduce(first, second)

    assert combined(windows.sum(1)) == (1, 12, "a")
    assert combined(windows.min(0)) == (0, 5, "a")
    assert combined(windows.max(1)) == (1, 7, "a")
    assert combined(windows.min_by(0)) == second
    assert combined(windows.max_by(0)) == first


def test_a_window_of_all_records_has_one_subtask(stream: DataStream):
    result = stream.window_all(TumblingProcessingTimeWindows.of(5)).reduce(Sum())
    operator = result._outputs[0].operator
    assert operator.parallelism == 1
    assert operator.key_selector("anything") is None
    with pytest.raises(GraphError, match="a window of all records has one subtask"):
        result.set_parallelism(2)
    stream.get_execution_environment().set_parallelism(3)
    result.print()
    env = stream.get_execution_environment()
    graph = compile_graph(env._program().graph, env.config)
    window = next(link for link in graph.links if link.partitioning is Partitioning.GLOBAL)
    assert graph.chains[window.target].parallelism == 1


def test_count_windows_slide_or_tumble(keyed: KeyedStream, stream: DataStream):
    assert isinstance(operation(keyed.count_window(3).sum()).assigner, CountTumblingWindowAssigner)
    made = operation(keyed.count_window(3, 2).sum())
    assert isinstance(made.assigner, CountSlidingWindowAssigner)
    assert made.has_default_trigger
    assert isinstance(made.trigger, PurgingTrigger)
    assert not operation(stream.count_window_all(3).sum()).keyed
    assert isinstance(operation(stream.count_window_all(4, 2).sum()).assigner.slide, int)  # type: ignore[attr-defined]


def test_the_name_has_no_lengths_so_that_the_uid_stays(keyed: KeyedStream):
    result = keyed.window(HOUR).reduce(Sum())
    assert result.get_name() == "Window: TumblingEventTimeWindows"


def test_an_operation_can_be_sent_to_workers(keyed: KeyedStream):
    windows = (
        keyed.window(SLIDING).side_output_late_data(OutputTag("late")).evictor(CountEvictor(3))
    )
    made = operation(windows.aggregate(Average(), Process()))
    copied = pickle.loads(pickle.dumps(made))
    assert repr(copied.assigner) == repr(made.assigner)
    assert copied.has_default_trigger


def test_late_data_is_a_side_output(keyed: KeyedStream):
    tag = OutputTag("late")
    result = keyed.window(HOUR).side_output_late_data(tag).reduce(Sum())
    assert result.get_side_output(tag)._outputs[0].tag == "late"


def test_what_leaves_a_sliding_window_can_be_subtracted(keyed: KeyedStream):
    made = operation(keyed.window(SLIDING).reduce(Sum(), inverse=lambda a, b: a - b))
    assert made.inverse(5, 3) == 2


BAD: list[tuple[Any, str]] = [
    (lambda k, s: k.window(None), "a window takes a window assigner, not None"),
    (lambda k, s: k.window(TumblingEventTimeWindows), r"write TumblingEventTimeWindows.of\(...\)"),
    (lambda k, s: k.window(EventTimeSessionWindows), r"EventTimeSessionWindows.with_gap\(...\)"),
    (lambda k, s: k.window(GlobalWindows), r"write GlobalWindows.create\(...\)"),
    (lambda k, s: s.window_all(5), "a window takes a window assigner, not 5"),
    (lambda k, s: k.count_window(0), "at least 1"),
    (lambda k, s: k.count_window(5, -1), "at least 1"),
    (lambda k, s: k.window(HOUR).trigger(CountTrigger), "an object of class Trigger"),
    (lambda k, s: k.window(SESSIONS).trigger(NeverTrigger()), "NeverTrigger does not support that"),
    (lambda k, s: k.window(HOUR).evictor(5), "an object of class Evictor"),
    (lambda k, s: k.window(HOUR).allowed_lateness(-1), "allowed_lateness must not be negative"),
    (lambda k, s: k.window(HOUR).allowed_lateness("5 s"), "write 5000"),
    (lambda k, s: k.window(HOUR).side_output_late_data("late"), r"write OutputTag\('late'\)"),
    (lambda k, s: k.window(HOUR).reduce(5), "reduce takes a function or a ReduceFunction"),
    (lambda k, s: k.window(HOUR).reduce(lambda a: a), "reduce calls its function as"),
    (lambda k, s: k.window(HOUR).reduce(Sum), "an instance, not the class"),
    (lambda k, s: k.window(HOUR).reduce(Sum(), ProcessAll()), "window function takes a function"),
    (lambda k, s: k.window(HOUR).reduce(Sum(), lambda records: []), r"\(key, window, inputs\)"),
    (lambda k, s: k.window(HOUR).aggregate(Sum()), "an object of class AggregateFunction"),
    (lambda k, s: k.window(HOUR).aggregate(Average), "an object of class AggregateFunction"),
    (lambda k, s: k.window(SESSIONS).aggregate(WithoutMerge()), r"needs a method merge\(self, a"),
    (lambda k, s: k.window(HOUR).aggregate(PanesWithoutMerge()), "says merges_panes = True"),
    (
        lambda k, s: k.window(HOUR).process(ProcessAll()),
        "a WindowedStream takes an object of class",
    ),
    (lambda k, s: s.window_all(HOUR).process(Process()), "an AllWindowedStream takes an object of"),
    (lambda k, s: k.window(HOUR).process(Apply()), "of class ProcessWindowFunction"),
    (lambda k, s: k.window(HOUR).apply(Process()), r"give Process to process\(...\)"),
    (lambda k, s: k.window(HOUR).apply(ApplyAll()), "apply takes a function or a WindowFunction"),
    (lambda k, s: s.window_all(HOUR).apply(lambda k, w, r: r), r"as \(window, inputs\)"),
    (lambda k, s: k.window(SLIDING).reduce(Sum(), inverse=5), "inverse takes a function"),
    (
        lambda k, s: k.window(SESSIONS).reduce(Sum(), inverse=Sum()),
        "inverse is for sliding windows",
    ),
    (
        lambda k, s: k.window(SLIDING).evictor(CountEvictor(3)).reduce(Sum(), inverse=Sum()),
        "inverse works without an evictor",
    ),
    (
        lambda k, s: k.window(SLIDING).trigger(CountTrigger(3)).reduce(Sum(), inverse=Sum()),
        "with the default trigger only",
    ),
    (lambda k, s: k.window(TumblingProcessingTimeWindows.of(0)), "at least 1 ms"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_input_is_refused(make: Any, message: str, keyed: KeyedStream, stream: DataStream):
    with pytest.raises(GraphError, match=message):
        make(keyed, stream)


@pytest.mark.parametrize("window", [TimeWindow(-5, 5), CountWindow(3), GlobalWindow()], ids=repr)
def test_a_window_can_be_emitted_and_kept(window: Any, keyed: KeyedStream):
    made = keyed.window(HOUR).process(Process())
    graph = made.get_execution_environment()._program().graph
    classes = record_classes(graph, [])
    assert type(window) in classes
    codec = ValueCodec(TypeRegistry(classes))
    copied = codec.decode(codec.encode((window, [window])))
    assert copied == (window, [window]) and type(copied[0]) is type(window)


def test_a_window_that_never_fires_is_noted(keyed: KeyedStream, caplog: pytest.LogCaptureFixture):
    keyed.window(GlobalWindows.create()).sum()
    assert "a window of GlobalWindows never emits a result" in caplog.text
    caplog.clear()
    keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(5)).sum()
    assert not caplog.text
