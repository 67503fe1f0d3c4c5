"""Window joins and co-groups as programs write them, and wrong programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from penstock import (
    CoGroupFunction,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    FlatJoinFunction,
    GlobalWindows,
    GraphError,
    JobError,
    JoinFunction,
    KeySelector,
    PurgingTrigger,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WatermarkStrategy,
)

LEFT = [("a", 1), ("b", 2), ("a", 12), ("c", 33)]
RIGHT = [("a", 3, "x"), ("a", 4, "y"), ("b", 12, "z"), ("c", 31, "w")]
TUMBLING = TumblingEventTimeWindows.of(10)


def timed(env: StreamExecutionEnvironment, records: list[Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: record[1]
    )
    return env.from_collection(records).assign_timestamps_and_watermarks(strategy)


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def streams() -> tuple[DataStream, DataStream]:
    env = environment()
    return timed(env, LEFT), timed(env, RIGHT)


def run(stream: DataStream) -> list[Any]:
    with stream.execute_and_collect(in_process=True) as found:
        return sorted(found)


def joined(window: Any = TUMBLING) -> Any:
    left, right = streams()
    return left.join(right).where(lambda r: r[0]).equal_to(lambda r: r[0]).window(window)


def grouped(window: Any = TUMBLING) -> Any:
    left, right = streams()
    return left.co_group(right).where(lambda r: r[0]).equal_to(lambda r: r[0]).window(window)


def pairs(windows_of: Any) -> list[Any]:
    """Return a pair for each window that both records belong to."""
    return sorted(
        (left, right)
        for left in LEFT
        for right in RIGHT
        for window in windows_of(left[1])
        if left[0] == right[0] and window in windows_of(right[1])
    )


def test_records_of_one_key_and_window_are_joined() -> None:
    assert run(joined().apply(lambda a, b: (a, b))) == pairs(lambda time: [time // 10])


def test_sliding_windows_join_a_pair_in_each_common_window() -> None:
    windows = SlidingEventTimeWindows.of(10, 5)
    found = run(joined(windows).apply(lambda a, b: (a, b)))
    assert found == pairs(lambda time: range(time // 5 * 5, time - 10, -5))


class Names(JoinFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.mark = "!"

    def join(self, first: Any, second: Any) -> Any:
        return first[0] + second[2] + self.mark


class Twice(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        return [second[2]] * 2 if second[2] != "y" else None


class Outer(CoGroupFunction):
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any]:
        names = [record[2] for record in second] or ["none"]
        for record in first:
            for name in names:
                yield record[0], name


class First(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value[0]


def test_rich_functions_join_and_group() -> None:
    assert run(joined().apply(Names())) == ["ax!", "ay!", "cw!"]
    assert run(joined().apply(Twice())) == ["w", "w", "x", "x"]
    assert run(grouped().apply(Outer())) == [
        ("a", "none"),
        ("a", "x"),
        ("a", "y"),
        ("b", "none"),
        ("c", "w"),
    ]


def test_a_generator_function_joins_flat() -> None:
    def letters(first: Any, second: Any) -> Any:
        yield from (first[0], second[2])

    assert run(joined().apply(letters)) == ["a", "a", "c", "w", "x", "y"]


def test_sessions_of_both_streams_are_one() -> None:
    found = run(
        grouped(EventTimeSessionWindows.with_gap(10)).apply(lambda a, b: [(len(a), len(b))])
    )
    assert found == [(1, 1), (1, 1), (2, 2)]


def test_a_trigger_counts_records_of_both_streams() -> None:
    windows = grouped(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2)))
    found = run(windows.apply(lambda a, b: [len(a) + len(b)]))
    assert found == [2, 2, 2, 2]


def test_streams_are_joined_by_processing_time_in_windows_that_a_trigger_ends() -> None:
    windows = joined(TumblingProcessingTimeWindows.of(3_600_000))
    found = run(windows.trigger(CountTrigger.of(4)).apply(lambda a, b: (a[1], b[1])))
    assert found == [(1, 3), (1, 4), (12, 3), (12, 4)]


def test_key_selectors_may_be_objects_with_declared_types() -> None:
    left, right = streams()
    fields = left.join(right).where(0).equal_to(0).window(TUMBLING)
    assert run(fields.apply(Names())) == ["ax!", "ay!", "cw!"]
    left, right = streams()
    keyed = left.join(right).where(First(), Types.STRING()).equal_to(First(), Types.STRING())
    assert run(keyed.window(TUMBLING).apply(Names())) == ["ax!", "ay!", "cw!"]


def test_an_operator_behind_a_join_has_the_time_of_the_window() -> None:
    again = joined().apply(lambda a, b: (a[0], 1)).key_by(lambda r: r[0]).window(TUMBLING)
    assert run(again.reduce(lambda a, b: (a[0], a[1] + b[1]))) == [("a", 2), ("c", 1)]


# ---- wrong programs


def test_a_join_takes_a_stream_of_its_environment() -> None:
    left, _ = streams()
    with pytest.raises(GraphError, match="join takes a stream, not 3"):
        left.join(3)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="co_group takes a stream of the same environment"):
        left.co_group(streams()[0])


def test_the_keys_of_both_streams_are_needed() -> None:
    left, right = streams()
    pair: Any = left.join(right)
    for call in ("equal_to", "window", "apply"):
        with pytest.raises(GraphError, match=r"first needs the keys.*where\("):
            getattr(pair, call)
    where: Any = pair.where(lambda r: r[0])
    for call in ("window", "apply"):
        with pytest.raises(GraphError, match="key of the second stream is missing"):
            getattr(where, call)
    with pytest.raises(GraphError, match="joined in windows: call window"):
        where.equal_to(lambda r: r[0]).apply  # noqa: B018
    with pytest.raises(GraphError, match=r"where takes a function"):
        pair.where(1.5)
    with pytest.raises(GraphError, match=r"equal_to takes a function"):
        where.equal_to(None)
    assert pair.where("name").equal_to(0) is not None


def number_of(record: Any) -> int:
    return record[1]  # type: ignore[no-any-return]


def name_of(record: Any) -> str:
    return record[0]  # type: ignore[no-any-return]


def test_declared_key_types_are_compared() -> None:
    left, right = streams()
    with pytest.raises(GraphError, match=r"different types, STRING and INT, which are never equal"):
        left.join(right).where(First(), Types.STRING()).equal_to(lambda r: r[1], Types.INT())
    with pytest.raises(GraphError, match=r"different types, str and int"):
        left.join(right).where(name_of).equal_to(number_of)
    with pytest.raises(GraphError, match=r"different types, int and str"):
        left.join(right).where(number_of).equal_to(lambda r: r, key_type=str)
    left.join(right).where(number_of, Types.LONG()).equal_to(lambda r: r[1], Types.DOUBLE())
    left.join(right).where(number_of).equal_to(lambda r: r[0])


def test_keys_are_compared_while_the_job_runs() -> None:
    left, right = streams()
    pair = left.join(right).where(lambda r: r[0]).equal_to(lambda r: r[1])
    with pytest.raises(JobError, match=r"keys of different types: '.' \(str\) in the first stre"):
        run(pair.window(TUMBLING).apply(lambda a, b: (a, b)))


@pytest.mark.parametrize(
    "keys", [(None, "a"), (1, 2.5), (("a", 1), ("b", 2)), (("a", 1), ("b", None))]
)
def test_keys_of_similar_types_are_accepted(keys: tuple[Any, Any]) -> None:
    env = environment()
    left, right = (timed(env, [(key, 1), (key, 2)]) for key in keys)
    pair = left.join(right).where(lambda r: r[0]).equal_to(lambda r: r[0])
    assert run(pair.window(TUMBLING).apply(lambda a, b: (a, b))) == []


@pytest.mark.parametrize("method", ["join", "co_group"])
def test_apply_takes_a_function_of_its_kind(method: str) -> None:
    windows = joined() if method == "join" else grouped()
    with pytest.raises(GraphError, match="calls its function as"):
        windows.apply(lambda record: record)
    with pytest.raises(GraphError, match="an instance, not the class"):
        windows.apply(Names if method == "join" else Outer)
    with pytest.raises(GraphError, match="apply of a "):
        windows.apply(Outer() if method == "join" else Names())


def test_windows_are_checked() -> None:
    with pytest.raises(GraphError, match="a window takes a window assigner"):
        joined(10)
    with pytest.raises(GraphError, match="takes an object of class Trigger"):
        joined().trigger(3)
    with pytest.raises(GraphError, match="must not be negative"):
        joined().allowed_lateness(-1)


def test_event_time_windows_need_timestamps_on_both_sides() -> None:
    env = environment()
    left, right = timed(env, LEFT), env.from_collection(RIGHT)
    pair = left.join(right).where(lambda r: r[0]).equal_to(lambda r: r[0])
    with pytest.raises(GraphError, match="no operator before it gives the records of its second"):
        run(pair.window(TUMBLING).apply(lambda a, b: (a, b)))


def test_a_co_group_that_returns_no_iterable_is_explained() -> None:
    with pytest.raises(JobError, match="co_group returned an int; yield it, or return a list"):
        run(grouped().apply(lambda a, b: len(a)))
