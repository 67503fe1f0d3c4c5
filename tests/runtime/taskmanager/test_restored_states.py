"""A resumed program must have the states of its snapshot, and may have them under other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    BroadcastProcessFunction,
    CheckpointedFunction,
    EventTimeSessionWindows,
    GraphError,
    JobError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
)
from penstock.dataflow.state import StateDescriptor
from penstock.testing import OperatorHarness

VALUE, LIST, MAP = ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor


class Keeps(KeyedProcessFunction):
    """Counts in value states, and emits the counts.

    Arguments:
        states: the descriptors of its states.
        late: the descriptors of states that it requests with a record.
    """

    def __init__(self, *states: StateDescriptor, late: tuple[StateDescriptor, ...] = ()) -> None:
        self.descriptors, self.late = states, late

    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context
        self.states = list(map(self.get, self.descriptors))

    def get(self, descriptor: StateDescriptor) -> Any:
        return {
            VALUE: self.context.get_state,
            LIST: self.context.get_list_state,
            MAP: self.context.get_map_state,
        }[type(descriptor)](descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        found = []
        for state in [*self.states, *map(self.get, self.late)]:
            if hasattr(state, "add"):
                state.add(value)
                found.append(list(state.get()))
            elif hasattr(state, "put"):
                state.put(value, (state.get(value) or 0) + 1)
                found.append(dict(state.items()))
            else:
                state.update((state.value() or 0) + 1)
                found.append(state.value())
        yield found[0] if len(found) == 1 else found


def piece(function: Any) -> Callable[[Any], Any]:
    return lambda stream: stream.key_by(lambda value: value).process(function).uid("keeps")


def harness(function: Any, **options: Any) -> OperatorHarness:
    return OperatorHarness(piece(function), **options)


def snapshot_of(function: Any, records: Any = "aab", **options: Any) -> Any:
    with harness(function, **options) as one:
        for record in records:
            one.process_element(record)
        return one.snapshot()


def resumed(function: Any, snapshot: Any, **options: Any) -> Any:
    """Return what the function emits for a record "a" after it is resumed."""
    with harness(function, snapshot=snapshot, **options) as one:
        one.process_element("a")
        (found,) = one.extract_output_values()
        return found


# ---- states that are gone


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_state_that_is_gone_is_refused_and_said_to_be_renamed(parallelism: int) -> None:
    snapshot = snapshot_of(Keeps(VALUE("stat")), parallelism=2)
    with pytest.raises(GraphError) as caught:
        harness(Keeps(VALUE("stats")), snapshot=snapshot, parallelism=parallelism)
    message = str(caught.value)
    assert message.startswith("the program does not fit the snapshot:\n  keeps (Keyed Process")
    assert "'stat' is gone" in message
    assert "'stats' is new. Was it renamed? Then give its descriptor aliases=['stat']" in message
    assert "--allow-dropped" in message


def test_a_state_of_several_may_be_gone_only_if_that_is_allowed() -> None:
    snapshot = snapshot_of(Keeps(VALUE("count"), MAP("seen")))
    with pytest.raises(GraphError, match="'seen' is gone"):
        harness(Keeps(VALUE("count")), snapshot=snapshot)
    assert resumed(Keeps(VALUE("count")), snapshot, allow_dropped=True) == 3


def test_a_dropped_state_is_not_in_later_snapshots() -> None:
    snapshot = snapshot_of(Keeps(VALUE("count"), MAP("seen")))
    with harness(Keeps(VALUE("count")), snapshot=snapshot, allow_dropped=True) as one:
        later = one.snapshot()
    assert resumed(Keeps(VALUE("count")), later) == 3
    assert resumed(Keeps(VALUE("count"), MAP("seen")), later) == [3, {"a": 1}]


def test_a_state_without_values_may_be_gone() -> None:
    snapshot = snapshot_of(Keeps(VALUE("count"), MAP("seen")), records="")
    assert resumed(Keeps(VALUE("count")), snapshot) == 1


def test_a_state_of_another_kind_is_refused_even_if_states_may_be_dropped() -> None:
    snapshot = snapshot_of(Keeps(VALUE("count")))
    with pytest.raises((GraphError, JobError), match="is a value state in the snapshot"):
        harness(Keeps(LIST("count")), snapshot=snapshot, allow_dropped=True)
    with pytest.raises(GraphError, match="'counts' is new, but is a list state and no value"):
        harness(Keeps(LIST("counts")), snapshot=snapshot)
    assert resumed(Keeps(LIST("counts")), snapshot, allow_dropped=True) == ["a"]


def test_a_new_state_is_accepted() -> None:
    snapshot = snapshot_of(Keeps(VALUE("count")))
    assert resumed(Keeps(VALUE("count"), VALUE("new")), snapshot) == [3, 1]


# ---- states that are requested late


def test_states_that_the_program_requests_late_are_kept_until_it_does() -> None:
    program = Keeps(VALUE("count"), late=(VALUE("late"),))
    snapshot = snapshot_of(program)
    with harness(program, snapshot=snapshot) as one:
        again = one.snapshot()  # the state was not requested in this run
    assert resumed(program, again) == [3, 3]
    assert resumed(Keeps(VALUE("count"), VALUE("late")), again) == [3, 3]


def test_a_state_that_is_requested_in_open_now_is_missed_later() -> None:
    early = Keeps(VALUE("count"), VALUE("late"))
    with harness(early, snapshot=snapshot_of(Keeps(VALUE("count"), late=(VALUE("late"),)))) as one:
        snapshot = one.snapshot()
    with pytest.raises(GraphError, match="'late' is gone"):
        harness(Keeps(VALUE("count")), snapshot=snapshot)


def test_a_state_that_is_requested_late_only_now_is_refused_with_advice() -> None:
    snapshot = snapshot_of(Keeps(VALUE("count")))
    with pytest.raises(GraphError, match="request it in open"):
        harness(Keeps(late=(VALUE("count"),)), snapshot=snapshot)


# ---- former names


@pytest.mark.parametrize("kind", [VALUE, LIST, MAP])
@pytest.mark.parametrize("late", [False, True])
def test_a_renamed_state_is_found_by_its_alias(kind: Any, late: bool) -> None:
    def program(descriptor: StateDescriptor) -> Keeps:
        return Keeps(late=(descriptor,)) if late else Keeps(descriptor)

    expected = {VALUE: 3, LIST: ["a", "a", "a"], MAP: {"a": 3}}[kind]
    snapshot = snapshot_of(program(kind("stat")), parallelism=3)
    renamed = program(kind("stats", aliases=["older", "stat"]))
    assert resumed(renamed, snapshot, parallelism=2) == expected
    with harness(renamed, snapshot=snapshot, parallelism=2) as one:
        later = one.snapshot()
    assert resumed(renamed, later, parallelism=1) == expected
    if not late:
        assert resumed(program(kind("stats")), later) == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_late_state_that_only_some_subtasks_renamed_is_put_together(parallelism: int) -> None:
    snapshot = snapshot_of(Keeps(late=(VALUE("stat"),)), "abcdefgh", parallelism=2)
    renamed = Keeps(late=(VALUE("stats", aliases=["stat"]),))
    with harness(renamed, snapshot=snapshot, parallelism=2) as one:
        one.process_element("a")
        mixed = one.snapshot()
    keyed = [handle.keyed for handle in mixed.manifest.handles if handle.keyed is not None]
    names = {name for handle in keyed for name in handle.states}
    assert names == {"stat", "stats"}
    with harness(renamed, snapshot=mixed, parallelism=parallelism) as one:
        for record in "abcdefgh":
            one.process_element(record)
        assert sorted(one.extract_output_values()) == [2] * 7 + [3]


def test_a_state_that_is_not_the_former_one_is_refused() -> None:
    snapshot = snapshot_of(Keeps(VALUE("one"), VALUE("other")))
    merged = Keeps(VALUE("one", aliases=["other"]))
    with pytest.raises((GraphError, JobError), match="has both a state 'one' and a state 'other'"):
        harness(merged, snapshot=snapshot)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([VALUE("a"), VALUE("b", aliases=["a"])], "'a' would be the name of two states"),
        ([VALUE("b", aliases=["a"]), VALUE("a")], "'a' would be the name of two states"),
        ([VALUE("b", aliases=["a"]), LIST("c", aliases=["a"])], "'a' would be the name of two"),
    ],
)
def test_a_name_of_two_states_is_refused(states: list[StateDescriptor], message: str) -> None:
    with pytest.raises((GraphError, JobError), match=message):
        harness(Keeps(*states))


@pytest.mark.parametrize(
    ("aliases", "error", "message"),
    [
        ("stat", TypeError, "a list of names"),
        ([""], TypeError, "non-empty string"),
        (["stats"], GraphError, "its present name"),
        (["stat", "stat"], GraphError, "a name twice"),
    ],
)
def test_wrong_aliases_are_refused(aliases: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ValueStateDescriptor("stats", aliases=aliases)


# ---- operator state and broadcast state


class Buffers(MapFunction, CheckpointedFunction):
    def __init__(self, descriptor: ListStateDescriptor | None, union: bool = False) -> None:
        self.descriptor, self.union = descriptor, union

    def initialize_state(self, context: Any) -> None:
        self.store, self.kept = context.get_operator_state_store(), []
        if self.descriptor is not None:
            get = self.store.get_union_list_state if self.union else self.store.get_list_state
            self.saved = get(self.descriptor)
            self.kept = list(self.saved.get())

    def snapshot_state(self, context: Any) -> None:
        if self.descriptor is not None:
            self.saved.update(self.kept)

    def map(self, value: Any) -> Any:
        self.kept.append(value)
        return list(self.kept)


def buffers(*arguments: Any, **options: Any) -> OperatorHarness:
    function = Buffers(*arguments)
    return OperatorHarness(lambda stream: stream.map(function).uid("buffers"), **options)


def test_operator_state_that_is_gone_is_refused_and_can_be_renamed_or_dropped() -> None:
    with buffers(LIST("kept")) as one:
        one.process_element(1)
        snapshot = one.snapshot()
    for now in (LIST("buffer"), None):
        with pytest.raises(GraphError, match="'kept' is gone"):
            buffers(now, snapshot=snapshot)
    with pytest.raises((GraphError, JobError), match="give the state another name"):
        buffers(LIST("kept"), True, snapshot=snapshot)
    with buffers(LIST("buffer", aliases=["kept"]), snapshot=snapshot) as one:
        one.process_element(2)
        assert one.extract_output_values() == [[1, 2]]
        renamed = one.snapshot()
    with buffers(LIST("buffer"), snapshot=renamed) as one:
        one.process_element(3)
        assert one.extract_output_values() == [[1, 2, 3]]
    with buffers(LIST("buffer"), snapshot=snapshot, allow_dropped=True) as one:
        one.process_element(4)
        assert one.extract_output_values() == [[4]]
        buffers(LIST("buffer"), snapshot=one.snapshot()).close()


def test_a_function_that_is_not_checkpointed_any_more_loses_its_operator_state() -> None:
    class Counts(Keeps, CheckpointedFunction):
        def initialize_state(self, context: Any) -> None:
            self.saved = context.get_operator_state_store().get_list_state(LIST("kept"))

        def snapshot_state(self, context: Any) -> None:
            self.saved.update([1])

    snapshot = snapshot_of(Counts(VALUE("count")))
    with pytest.raises(GraphError, match="'kept' is gone"):
        harness(Keeps(VALUE("count")), snapshot=snapshot)
    assert resumed(Keeps(VALUE("count")), snapshot, allow_dropped=True) == 3


def test_operator_state_that_a_running_function_requests_is_refused() -> None:
    class Greedy(Buffers):
        def map(self, value: Any) -> Any:
            return self.store.get_list_state(LIST("more"))

    with (
        OperatorHarness(Greedy(LIST("kept"))) as one,
        pytest.raises((GraphError, JobError), match="ask for it in initialize_state"),
    ):
        one.process_element(1)


class Rules(BroadcastProcessFunction):
    def __init__(self, descriptor: MapStateDescriptor) -> None:
        self.descriptor = descriptor

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ctx.get_broadcast_state(self.descriptor).get(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(self.descriptor).put(value, value * 10)


def test_broadcast_state_can_be_renamed() -> None:
    def rules(descriptor: MapStateDescriptor, **options: Any) -> OperatorHarness:
        return OperatorHarness(Rules(descriptor), broadcast_states=[descriptor], **options)

    with rules(MAP("rules")) as one:
        one.process_element2(1)
        snapshot = one.snapshot()
    with pytest.raises(GraphError, match="'rules' is gone"):
        rules(MAP("limits"), snapshot=snapshot)
    with rules(MAP("limits", aliases=["rules"]), snapshot=snapshot) as one:
        one.process_element1(1)
        assert one.extract_output_values() == [10]


# ---- timers and windows


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(100)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield timestamp


class Deaf(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(100)


def test_timers_need_a_function_that_handles_them() -> None:
    snapshot = snapshot_of(Alarm(), "a")
    with pytest.raises(GraphError, match="'timers/event-time' that have not fired"):
        harness(Deaf(), snapshot=snapshot)
    with harness(Alarm(), snapshot=snapshot) as one:
        one.process_watermark(100)
        assert one.extract_output_values() == [100]
    harness(Deaf(), snapshot=snapshot, allow_dropped=True).close()


def test_timers_that_a_function_never_handles_are_not_missed() -> None:
    with harness(Deaf(), snapshot=snapshot_of(Deaf(), "a")) as one:
        one.process_watermark(100)
        assert one.extract_output_values() == []


def seconds(number: int) -> Any:
    return TumblingEventTimeWindows.of(Time.seconds(number))


class Average(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


class Size(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield len(list(elements))


def windows(assigner: Any, function: Any = max, lateness: int = 0, **options: Any) -> Any:
    def build(stream: Any) -> Any:
        windowed = stream.key_by(lambda _: 0).window(assigner).allowed_lateness(lateness)
        if isinstance(function, AggregateFunction):
            return windowed.aggregate(function).uid("windows")
        if isinstance(function, ProcessWindowFunction):
            return windowed.process(function).uid("windows")
        return windowed.reduce(function).uid("windows")

    return OperatorHarness(build, **options)


SESSION = EventTimeSessionWindows.with_gap(Time.seconds(10))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((seconds(10),), (seconds(20),)),
        ((seconds(10),), (SESSION,)),
        ((SESSION,), (seconds(10),)),
        ((seconds(10),), (TumblingProcessingTimeWindows.of(Time.seconds(10)),)),
        ((seconds(10),), (seconds(10), Average())),
        ((seconds(10),), (seconds(10), Size())),
        ((SESSION,), (SESSION, Average())),
        ((SESSION,), (SESSION, Size())),
        ((SESSION, Size()), (seconds(10), Size())),
    ],
)
def test_windows_with_records_do_not_become_others_in_silence(before: Any, after: Any) -> None:
    with windows(*before) as one:
        one.process_element(5, 1000)
        snapshot = one.snapshot()
    with pytest.raises(GraphError, match="is gone, and its values would be lost"):
        windows(*after, snapshot=snapshot)
    with windows(*after, snapshot=snapshot, allow_dropped=True) as one:
        one.process_element(7, 2000)
        one.process_watermark(10**9)
    with windows(*before) as one:
        one.process_element(5, 1000)
        one.process_watermark(10**9)
        snapshot = one.snapshot()
    windows(*after, snapshot=snapshot).close()


def test_a_changed_gap_counts_for_new_sessions() -> None:
    with windows(SESSION) as one:
        one.process_element(5, 1000)
        snapshot = one.snapshot()
    shorter = EventTimeSessionWindows.with_gap(Time.seconds(2))
    with windows(shorter, snapshot=snapshot) as one:
        one.process_element(7, 20_000)
        one.process_watermark(22_500)
        assert one.extract_output_values() == [5, 7]
