"""Jobs with two inputs, run inside the process: every kind of function, and its context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    GraphError,
    JobError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkStrategy,
)

RULES = MapStateDescriptor("rules")
TOTAL = ValueStateDescriptor("total")
ODD = OutputTag("odd")


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_restart_strategy(RestartStrategies.no_restart())
    return env.set_parallelism(parallelism).set_in_process(True)


def two(env: StreamExecutionEnvironment) -> tuple[DataStream, DataStream]:
    return env.from_sequence(1, 10), env.from_collection(["a", "b", "c"])


class Tell(CoMapFunction):
    def map1(self, value: int) -> Any:
        return ["number", value]

    def map2(self, value: str) -> Any:
        return ["text", value]


class Repeat(CoFlatMapFunction):
    def flat_map1(self, value: int) -> Any:
        return [value] if value > 8 else []

    def flat_map2(self, value: str) -> Any:
        yield value
        yield value


class Halves(CoProcessFunction):
    def process_element1(self, value: int, ctx: CoProcessFunction.Context) -> Any:
        assert ctx.timestamp() is None
        if value % 2:
            yield ODD, value
        else:
            yield value

    def process_element2(self, value: str, ctx: CoProcessFunction.Context) -> Any:
        return [value]

    def end_input(self, ctx: Any) -> Any:
        yield "end"


def test_each_function_gets_the_records_of_both_streams() -> None:
    env = environment()
    numbers, texts = two(env)
    told = sorted(numbers.connect(texts).map(Tell()).execute_and_collect())
    assert told == [["number", n] for n in range(1, 11)] + [["text", t] for t in "abc"]
    numbers, texts = two(env)
    repeated = list(numbers.connect(texts).flat_map(Repeat()).execute_and_collect())
    assert sorted(map(str, repeated)) == ["10", "9", "a", "a", "b", "b", "c", "c"]


def test_a_process_function_has_side_outputs_and_one_end_of_both_inputs() -> None:
    numbers, texts = two(environment())
    main = numbers.connect(texts).process(Halves())
    odd = main.get_side_output(ODD).map(lambda n: f"odd {n}")
    found = sorted(map(str, main.union(odd).execute_and_collect()))
    assert found == sorted(
        [*map(str, range(2, 11, 2)), *"abc", "end", "end", *(f"odd {n}" for n in range(1, 11, 2))]
    )


def test_a_stream_is_connected_with_itself_and_with_a_union() -> None:
    numbers, texts = two(environment())
    twice = numbers.connect(numbers).map(Tell()).execute_and_collect()
    assert sorted(twice) == sorted([[w, n] for n in range(1, 11) for w in ("number", "text")])
    numbers, texts = two(environment())
    union = numbers.connect(texts.union(texts.map(str.upper))).map(Tell())
    assert sorted(t for w, t in union.execute_and_collect() if w == "text") == [*"ABCabc"]


class Sums(KeyedCoProcessFunction):
    """Adds up amounts of the first stream; the second asks for the sum of a key."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Any:
        assert ctx.get_current_key() == value[0]
        self.total.update((self.total.value() or 0) + value[1])

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + 1_000)

    def end_input(self, ctx: KeyedCoProcessFunction.Context) -> Any:
        yield ctx.get_current_key(), self.total.value()


class KeyedTell(CoMapFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def map1(self, value: Any) -> Any:
        self.total.update((self.total.value() or 0) + value[1])
        return [value[0], self.total.value()]

    def map2(self, value: str) -> Any:
        self.total.update((self.total.value() or 0) + 1_000)
        return [value, self.total.value()]


def keyed(env: StreamExecutionEnvironment) -> Any:
    amounts = env.from_collection([(word, n) for n in range(1, 21) for word in "abcdef"])
    return amounts.key_by(lambda pair: pair[0]), env.from_collection([*"abcg"]).key_by(lambda k: k)


EXPECTED = {**dict.fromkeys("abc", 1_210), **dict.fromkeys("def", 210), "g": 1_000}


def test_both_streams_of_a_keyed_function_share_the_state_of_a_key() -> None:
    amounts, keys = keyed(environment())
    assert dict(amounts.connect(keys).process(Sums()).execute_and_collect()) == EXPECTED


def test_connected_streams_can_be_keyed_after_they_are_connected() -> None:
    amounts, keys = keyed(environment(3))
    same = [stream.map(lambda record: record).rebalance() for stream in (amounts, keys)]
    connected = same[0].connect(same[1])
    again = connected.key_by(lambda pair: pair[0], lambda key: key)
    assert dict(again.process(Sums()).execute_and_collect()) == EXPECTED


def test_a_map_of_keyed_streams_has_keyed_state() -> None:
    amounts, keys = keyed(environment())
    last: dict[str, int] = {}
    for key, total in amounts.connect(keys).map(KeyedTell()).execute_and_collect():
        last[key] = max(total, last.get(key, 0))
    assert last == EXPECTED


class Apply(BroadcastProcessFunction):
    """Holds records back until the rule "go" has come, so that the result is the same each time."""

    def open(self, runtime_context: Any) -> None:
        self.held: list[int] = []

    def process_element(self, value: int, ctx: Any) -> Any:
        state = ctx.get_broadcast_state(RULES)
        assert not hasattr(state, "put")
        if "go" in state:
            yield self.applied(value, state)
        else:
            self.held.append(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        state = ctx.get_broadcast_state(RULES)
        state.put(*value)
        if value[0] == "go":
            for held in self.held:
                yield self.applied(held, state)

    def applied(self, value: int, state: Any) -> Any:
        return [value, sorted(key for key, limit in state.items() if value > limit)]


def test_broadcast_records_reach_every_subtask() -> None:
    env = environment(3)
    rules = env.from_collection([("big", 7), ("huge", 9), ("go", 0)]).set_parallelism(1)
    numbers = env.from_sequence(1, 10)
    found = dict(numbers.connect(rules.broadcast(RULES)).process(Apply()).execute_and_collect())
    assert found == {
        n: sorted(["go", *(["big"] if n > 7 else []), *(["huge"] if n > 9 else [])])
        for n in range(1, 11)
    }


class Scale(KeyedBroadcastProcessFunction):
    """Sums up per key; a broadcast factor multiplies the sums of all keys."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value[1])

    def process_broadcast_element(self, value: int, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES)["factor"] = value
        changed: list[Any] = []

        def scale(key: Any, state: Any) -> None:
            changed.append(key)
            state.update(state.value() * value)

        ctx.apply_to_keyed_state(TOTAL, scale)
        assert len(set(changed)) == len(changed)

    def end_input(self, ctx: Any) -> Any:
        factor = ctx.get_broadcast_state(RULES)["factor"]
        yield ctx.get_current_key(), self.total.value(), factor


class LastOf(ProcessFunction):
    """Emits its value when all of its input has ended."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return []

    def end_input(self, ctx: Any) -> Any:
        yield 10


def test_a_broadcast_record_changes_the_state_of_all_keys() -> None:
    env = environment(2)
    amounts = env.from_collection([(word, n) for n in range(1, 21) for word in "abcdef"])
    factor = env.from_collection([3]).set_parallelism(1)
    scaled = amounts.key_by(lambda p: p[0]).connect(factor.broadcast(RULES)).process(Scale())
    found = {key: (total, seen) for key, total, seen in scaled.execute_and_collect()}
    assert found.keys() == set("abcdef")
    # The factor came in the middle of the amounts: of each key, a first part is multiplied.
    parts = {sum(range(1, n + 1)) * 3 + sum(range(n + 1, 21)) for n in range(21)}
    assert all(total in parts and seen == 3 for total, seen in found.values())


class Careless(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value: Any, ctx: Any) -> Any:
        return []

    def process_broadcast_element(self, value: int, ctx: Any) -> Any:
        self.total.update(1)


class Unknown(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(MapStateDescriptor("ruels"))

    def process_broadcast_element(self, value: int, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES)[1] = 2


class Scalar(CoProcessFunction):
    def process_element1(self, value: int, ctx: Any) -> Any:
        return []

    def process_element2(self, value: int, ctx: Any) -> Any:
        return value


def failure(stream: DataStream) -> str:
    with pytest.raises((JobError, GraphError)) as caught:
        list(stream.execute_and_collect())
    return str(caught.value)


def test_errors_of_functions_say_what_to_do() -> None:
    env = environment(1)
    numbers, texts = two(env)
    broadcast = texts.broadcast(RULES)
    careless = numbers.key_by(lambda n: n).connect(broadcast).process(Careless()).name("careless")
    found = failure(careless)
    assert "apply_to_keyed_state" in found and "careless" in found
    numbers, texts = two(env)
    found = failure(numbers.connect(texts.broadcast(RULES)).process(Unknown()))
    assert "asked for broadcast state 'ruels', and has only 'rules'" in found
    numbers, _ = two(env)
    found = failure(numbers.connect(numbers).process(Scalar()))
    assert "process_element2 returned an int; yield it, or return a list" in found


def test_records_in_flight_keep_their_input_in_an_unaligned_snapshot(tmp_path: Path) -> None:
    env = environment(2)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    env.enable_checkpointing(5)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    failed = tmp_path / "failed"

    class Fail(CoMapFunction):
        def map1(self, value: int) -> Any:
            return 1, value

        def map2(self, value: int) -> Any:
            if value == 3_000 and not failed.exists():
                failed.touch()
                raise ValueError("once")
            return 2, value

    one, other = env.from_sequence(1, 4_000), env.from_sequence(1, 4_000).rebalance()
    found = sorted(one.connect(other).map(Fail()).execute_and_collect())
    assert found == [(side, n) for side in (1, 2) for n in range(1, 4_001)]
    assert failed.exists()


class Expire(KeyedCoProcessFunction):
    """Joins an order with its payment; a timer reports an order that is not paid in time."""

    def open(self, runtime_context: Any) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order"))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.order.update(value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        if self.order.value() is not None:
            self.order.clear()
            yield "paid", value[0], ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        if self.order.value() is not None:
            yield "expired", ctx.get_current_key(), timestamp


def timed(env: StreamExecutionEnvironment, records: list[Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda record, _: record[1]
    )
    return env.from_collection(records).assign_timestamps_and_watermarks(strategy)


def test_timers_of_two_keyed_inputs_fire_when_both_watermarks_have_passed() -> None:
    env = environment(1)
    orders = timed(env, [("a", 100), ("b", 105), ("c", 110)])
    # The payments come later than all orders, which must not expire while payments may come.
    payments = timed(env, [("a", 105), ("c", 119), ("b", 200)])
    joined = orders.connect(payments).key_by(lambda r: r[0], lambda r: r[0]).process(Expire())
    found = list(joined.execute_and_collect())
    kinds = {(kind, key) for kind, key, _ in found}
    # Whichever stream was read first: a payment that finds its order pays it.
    assert {key for _, key in kinds} == {"a", "b", "c"}
    for kind, key, time in found:
        assert kind == "paid" or time == {"a": 110, "b": 115, "c": 120}[key]
    assert ("paid", "b") not in kinds or ("expired", "b") not in kinds


class Remind(KeyedBroadcastProcessFunction):
    """Sets a timer for each record; a timer emits the newest broadcast word."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value[1] + 1)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        assert ctx.timestamp() == value[1]
        with pytest.raises(GraphError, match="used a timer"):
            ctx.timer_service().register_event_time_timer(1)
        ctx.get_broadcast_state(RULES).put("word", value[0])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        state = ctx.get_broadcast_state(RULES)
        assert not hasattr(state, "put")
        yield ctx.get_current_key(), timestamp, state.get("word")


def test_timers_read_broadcast_state_when_both_watermarks_have_passed() -> None:
    env = environment(1)
    keyed = timed(env, [("a", 1), ("b", 2), ("a", 3)]).key_by(lambda r: r[0])
    words = timed(env, [("first", 1_000), ("last", 2_000)]).broadcast(RULES)
    found = sorted(keyed.connect(words).process(Remind()).execute_and_collect())
    # The words are all there at the end; a timer waits at least for the watermark of the first.
    assert [(key, time) for key, time, _ in found] == [("a", 2), ("a", 4), ("b", 3)]
    assert all(word in ("first", "last") for _, _, word in found)


class Growing(CoFlatMapFunction):
    """Emits the same list again and again, and changes it in between."""

    def open(self, runtime_context: Any) -> None:
        self.seen: list[Any] = []

    def flat_map1(self, value: int) -> Any:
        self.seen.append(value)
        yield self.seen

    def flat_map2(self, value: str) -> Any:
        self.seen.clear()
        return [self.seen]


class GrowingState(KeyedCoProcessFunction):
    """Emits the list that it also keeps in its state."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element1(self, value: int, ctx: Any) -> Any:
        seen = self.seen.value() or []
        seen.append(value)
        self.seen.update(seen)
        yield seen

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return []


def test_a_record_that_a_function_changes_later_is_copied() -> None:
    env = environment(1)
    numbers = env.from_sequence(1, 5)
    none = env.from_collection(["x"]).filter(lambda text: False)
    grown = numbers.connect(none).flat_map(Growing()).execute_and_collect()
    assert sorted(grown) == [list(range(1, n + 1)) for n in range(1, 6)]
    numbers, none = env.from_sequence(1, 5), env.from_collection([0]).filter(bool)
    keyed = numbers.connect(none).key_by(lambda n: 0, lambda n: 0).process(GrowingState())
    assert sorted(keyed.execute_and_collect()) == [list(range(1, n + 1)) for n in range(1, 6)]
