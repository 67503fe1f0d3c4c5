"""The methods that are built from others: what they emit, and what they refuse."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from penstock import (
    GraphError,
    JobError,
    OutputTag,
    Row,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TimeDomain,
    TumblingEventTimeWindows,
    Types,
    Watermark,
    WatermarkGenerator,
    WatermarkStrategy,
)


class Visit(NamedTuple):
    user: str
    day: int
    seconds: int


class Punctual(WatermarkGenerator):
    """Emits a watermark after each record."""

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(Watermark(event_timestamp))

    def on_periodic_emit(self, output: Any) -> None:
        pass


VISITS = [
    Visit("ann", 1, 5),
    Visit("bob", 1, 7),
    Visit("ann", 2, 3),
    Visit("ann", 1, 9),
    Visit("bob", 1, 2),
]


def _env() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.set_in_process().set_parallelism(2)


def _stream(records: list[Any] = VISITS) -> Any:
    return _env().from_collection(records).set_parallelism(1)


def _timed(records: list[Any]) -> Any:
    """A stream of records whose last item is their event time."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda record, _: record[-1])
    return _stream(records).assign_timestamps_and_watermarks(strategy).set_parallelism(1)


def _collect(stream: Any) -> list[Any]:
    return sorted(stream.execute_and_collect(), key=repr)


# ---- key_by on fields


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ((0,), {"ann": 3, "bob": 2}),
        (("user",), {"ann": 3, "bob": 2}),
        ((0, 1), {("ann", 1): 2, ("ann", 2): 1, ("bob", 1): 2}),
        (("user", "day"), {("ann", 1): 2, ("ann", 2): 1, ("bob", 1): 2}),
        ((("user", 1),), {("ann", 1): 2, ("ann", 2): 1, ("bob", 1): 2}),
        ((("user",),), {("ann",): 3, ("bob",): 2}),
        ((-1,), {5: 1, 7: 1, 3: 1, 9: 1, 2: 1}),
    ],
)
def test_a_key_of_fields(fields, keys):
    assert dict(_collect(_stream().key_by(*fields).count())) == keys


@pytest.mark.parametrize(
    "record", [{"user": "ann", "day": 1}, Row(user="ann", day=1), Visit("ann", 1, 0)]
)
def test_fields_have_names_in_records_of_each_kind(record):
    assert _collect(_stream([record]).key_by("user", "day").count()) == [(("ann", 1), 1)]


def test_key_by_takes_the_type_of_a_key_as_before():
    counted = _stream().key_by(lambda visit: visit.user, Types.STRING()).count()
    again = counted.key_by(0, Types.STRING()).count()
    assert _collect(again)[-1] == ("bob", 2)
    assert _collect(_stream().key_by("user", key_type=Types.STRING()).count())[-1] == ("bob", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5,), "key_by takes a function or a KeySelector"),
        ((True,), "positions .int. and names"),
        (("user", True), "positions .int. and names"),
        ((lambda r: r, "user"), "takes one function, or positions and names"),
        (((),), "a tuple of at least one field"),
        ((("user",), "day"), "and then no more fields"),
        ((("user", None),), "names .str. of fields, and got None"),
    ],
)
def test_keys_that_are_refused(arguments, message):
    with pytest.raises(GraphError, match=message):
        _stream().key_by(*arguments)


# ---- functions of keyed streams


def test_map_with_state_gives_each_key_a_state_of_its_own():
    def add(total: int, visit: Visit) -> tuple[int, Any]:
        total += visit.seconds
        return total, (visit.user, total)

    mapped = _stream().key_by("user").map_with_state(add, 0)
    assert _collect(mapped) == [("ann", 17), ("ann", 5), ("ann", 8), ("bob", 7), ("bob", 9)]


def test_an_initial_state_is_copied_for_each_key():
    def add(seen: list[int], visit: Visit) -> tuple[list[int], Any]:
        seen.append(visit.seconds)
        return seen, (visit.user, seen)

    initial: list[int] = []
    expected = [
        ("ann", [5, 3, 9]),
        ("ann", [5, 3]),
        ("ann", [5]),
        ("bob", [7, 2]),
        ("bob", [7]),
    ]
    assert _collect(_stream().key_by(0).map_with_state(add, initial)) == expected
    assert _collect(_stream().key_by(0).map_with_state(add, list)) == expected
    assert initial == []


def test_a_function_of_map_with_state_that_returns_no_pair():
    stream = _stream().key_by("user").map_with_state(lambda state, visit: state, 0)
    with pytest.raises(JobError, match=r"map_with_state returns \(next state, result\), not 0"):
        list(stream.execute_and_collect())


def test_track_ends_states_by_event_time():
    events = _timed([("a", 1, 0), ("b", 2, 5), ("a", 3, 30), ("a", 4, 80), ("b", 5, 200)])
    tracked = events.key_by(0).track(
        lambda key, event: [event[1]],
        lambda key, numbers, event: [*numbers, event[1]],
        timeout=Time.milliseconds(40),
    )
    assert _collect(tracked) == sorted(
        [("a", [1]), ("a", [1, 3]), ("a", None), ("a", [4]), ("a", None)]
        + [("b", [2]), ("b", None), ("b", [5]), ("b", None)],
        key=repr,
    )


def test_track_ends_a_state_whose_end_is_the_time_0():
    events = _timed([("a", 1, -1000), ("a", 2, 5000)])
    tracked = events.key_by(0).track(lambda key, event: 1, lambda key, n, event: n + 1, 1000)
    assert list(tracked.execute_and_collect()) == [("a", 1), ("a", None), ("a", 1), ("a", None)]


def test_track_does_not_move_an_end_at_the_time_0_back():
    events = _timed([("a", 1, -1000), ("a", 2, -5000), ("a", 3, -500)])
    tracked = events.key_by(0).track(lambda key, event: 1, lambda key, n, event: n + 1, 1000)
    assert list(tracked.execute_and_collect()) == [("a", 1), ("a", 2), ("a", 3), ("a", None)]


def test_track_without_a_timeout_needs_no_event_time():
    tracked = (
        _stream()
        .key_by("user")
        .track(
            lambda user, visit: None if visit.seconds == 7 else visit.seconds,
            lambda user, seconds, visit: None if visit.seconds == 9 else seconds + visit.seconds,
        )
    )
    assert _collect(tracked) == [("ann", 5), ("ann", 8), ("ann", None), ("bob", 2)]


def test_track_by_processing_time_registers_timers():
    tracked = (
        _stream()
        .key_by("user")
        .track(
            lambda user, visit: 1,
            lambda user, count, visit: count + 1,
            Time.hours(1),
            TimeDomain.PROCESSING_TIME,
        )
    )
    assert _collect(tracked) == [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1), ("bob", 2)]


def test_each_record_is_joined_with_its_past():
    payments = _timed([("a", 1, 0), ("b", 2, 5), ("a", 3, 30), ("a", 4, 80), ("a", 5, 80)])
    sums = payments.key_by(0).join_history(50, lambda r, past: (r[1], sum(p[1] for p in past)))
    assert _collect(sums) == [(1, 0), (2, 0), (3, 1), (4, 3), (5, 7)]


def test_late_records_of_a_join_with_history_go_to_a_side_output():
    strategy = WatermarkStrategy.for_generator(Punctual)
    strategy = strategy.with_timestamp_assigner(lambda record, _: record[-1])
    late = OutputTag("late")
    payments = _stream([("a", 1, 10), ("a", 2, 3), ("a", 3, 12)])
    payments = payments.assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    joined = payments.key_by(0).join_history(50, None, late)
    both = joined.map(len).union(joined.get_side_output(late))
    assert _collect(both) == [("a", 2, 3), 2, 2]


def test_top_k_emits_what_has_changed():
    best = _stream().key_by("user").top_k(2, by="seconds")
    names = best.map(lambda pair: (pair[0], [visit.seconds for visit in pair[1]]))
    assert _collect(names) == [
        ("ann", [5, 3]),
        ("ann", [5]),
        ("ann", [9, 5]),
        ("bob", [7, 2]),
        ("bob", [7]),
    ]


def test_top_k_of_windows():
    numbers = _timed([("a", 1, 0), ("a", 3, 10), ("b", 7, 70), ("a", 2, 80), ("a", 5, 110)])
    window = TumblingEventTimeWindows.of(100)
    best = numbers.key_by(0).window(window).top_k(2, 1)
    assert _collect(best.map(lambda records: [record[1] for record in records])) == [
        [3, 2],
        [5],
        [7],
    ]
    first = numbers.map(lambda record: record[1]).window_all(window).top_k(1)
    assert _collect(first) == [[5], [7]]


def test_reduce_by_window():
    numbers = _timed([("a", 1, 0), ("a", 2, 60), ("b", 7, 70), ("a", 4, 110)])

    def add(one: Any, other: Any) -> Any:
        return (one[0], one[1] + other[1], max(one[2], other[2]))

    def less(one: Any, leaving: Any) -> Any:
        return (one[0], one[1] - leaving[1], one[2])

    def sums(stream: Any) -> list[Any]:
        return _collect(stream.map(lambda record: record[:2]))

    expected = [("a", 1), ("a", 3), ("a", 4), ("a", 6), ("b", 7), ("b", 7)]
    keyed = numbers.key_by(0)
    assert sums(keyed.reduce_by_window(add, 100, 50)) == expected
    assert sums(keyed.reduce_by_window(add, 100, 50, less)) == expected
    assert sums(keyed.reduce_by_window(add, Time.milliseconds(100))) == [
        ("a", 3),
        ("a", 4),
        ("b", 7),
    ]
    of_all = numbers.map(lambda record: ("all", *record[1:])).reduce_by_window(add, 100)
    assert sums(of_all) == [("all", 10), ("all", 4)]


# ---- functions of all streams


def test_distinct_keeps_the_first_of_equal_records():
    assert _collect(_stream([3, 1, 3, 3, 2, 1]).distinct()) == [1, 2, 3]
    assert _collect(_stream().distinct("user")) == [VISITS[0], VISITS[1]]
    ttl = StateTtlConfig.new_builder(Time.hours(1)).build()
    assert _collect(_stream().distinct(lambda v: v.day, ttl)) == [VISITS[0], VISITS[2]]
    assert _collect(_stream().key_by(0).distinct(1, Time.hours(1))) == [VISITS[0], VISITS[2]]


def test_a_sample_is_given_by_its_seed():
    numbers = list(range(1_000))
    sample = _collect(_stream(numbers).sample(0.2, seed=4))
    assert 100 < len(sample) < 300
    assert _collect(_stream(numbers).sample(0.2, seed=4)) == sample
    assert _collect(_stream(numbers).sample(0.2, seed=5)) != sample
    assert _collect(_stream(numbers).sample(1.0)) == sorted(numbers, key=repr)
    assert _collect(_stream(numbers).sample(0)) == []


# ---- what is refused


def _times(stream: Any) -> Any:
    return stream.key_by(0).track(lambda k, e: 1, lambda k, s, e: 1, 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.sample(1.5), "fraction of a sample is a number from 0 to 1, not 1.5"),
        (lambda s: s.sample(True), "from 0 to 1, not True"),
        (lambda s: s.sample(0.5, "x"), "seed of a sample is a whole number"),
        (lambda s: s.distinct(1.5), "distinct takes a function, or positions"),
        (lambda s: s.distinct(ttl=0), "time to live"),
        (lambda s: s.key_by(0).top_k(0), "k must be at least 1"),
        (lambda s: s.key_by(0).top_k(1, ["x"]), "top_k takes a function, or positions"),
        (lambda s: s.key_by(0).map_with_state(len, 0), r"calls its function as \(state, record\)"),
        (lambda s: s.key_by(0).map_with_state(max, None), "initial state other than None"),
        (lambda s: s.key_by(0).track(len, len), r"calls its function as \(key, event\)"),
        (lambda s: s.key_by(0).track(lambda k, e: 1, len), r"as \(key, state, event\)"),
        (
            lambda s: s.key_by(0).track(lambda k, e: 1, lambda k, s, e: 1, 5, "event"),
            "time_domain is a TimeDomain, not 'event'",
        ),
        (lambda s: s.key_by(0).track(lambda k, e: 1, lambda k, s, e: 1, 0), "at least 1 ms"),
        (lambda s: s.key_by(0).join_history(-1), "past must not be negative"),
        (lambda s: s.key_by(0).join_history(1, len), r"as \(record, earlier records\)"),
        (lambda s: s.key_by(0).join_history(1, None, "late"), "late_tag is an OutputTag"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(GraphError, match=message):
        make(_stream())


@pytest.mark.parametrize(
    "make",
    [
        _times,
        lambda s: s.key_by(0).join_history(5),
        lambda s: s.reduce_by_window(max, 5),
        lambda s: s.key_by(0).reduce_by_window(max, 5),
    ],
)
def test_event_time_is_needed_when_the_program_is_built(make):
    stream = _stream()
    with pytest.raises(GraphError, match="needs event time, and no operator before it gives"):
        make(stream).execute_and_collect()
