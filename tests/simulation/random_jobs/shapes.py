"""What random jobs do with their input, and the output that each must have.

A shape takes a stream of whole numbers. Its output is the same in any order of its input, so that
what was lost or doubled can be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.streams import DataStream
from penstock.dataflow.time import WatermarkStrategy
from tests.simulation.random_jobs import async_functions, columns, joins, windows
from tests.simulation.random_jobs.functions import (
    LARGE,
    Count,
    CountToTheEnd,
    Draw,
    Hop,
    HopByWatermark,
    HopLater,
    HopToTheEnd,
    Later,
    LaterByWatermark,
    NewNumbers,
    SameNumbers,
    Split,
    visits,
)
from tests.simulation.random_jobs.state_functions import CountInStates, CountInStatesToTheEnd
from tests.simulation.random_jobs.two_input_functions import (
    SEEN,
    CoCount,
    CoCountToTheEnd,
    CoHop,
    CoHopToTheEnd,
    Hold,
    KeyedSeen,
    Seen,
)

__all__ = ["SHAPES", "Choices", "Shape"]


@dataclass(frozen=True)
class Choices:
    """What is drawn for a shape.

    Arguments:
        keys: how many different keys there are.
        hook: the functions emit at the end of input.
        mutable: state is changed in place.
        source_times: the sources have the event times, and watermarks for which nothing is late.
            Otherwise the shape gives event times, if it has some, and no watermark is in the way.
    """

    keys: int
    hook: bool
    mutable: bool
    source_times: bool


#: Made of the environment, the stream, and the choices.
Build = Callable[[StreamExecutionEnvironment, DataStream, Choices], DataStream]
#: The output for an input at a parallelism.
Expect = Callable[[Sequence[int], Choices, int], Counter[Any]]


@dataclass(frozen=True)
class Shape:
    """A shape of a job.

    Arguments:
        build: puts it together.
        expect: says what comes out.
        final: says what comes out in batch mode, if that is less.
        looped: it has a loop, so there is no batch mode.
        fixed: it fits no other parallelism once it has run.
        source_times: the sources have event times: always, never, or as it is drawn (None).
        weight: how often it is drawn, beside the others.
    """

    build: Build
    expect: Expect
    final: Expect | None = None
    looped: bool = False
    fixed: bool = False
    source_times: bool | None = False
    weight: int = 2


def _upto(counts: Counter[Any], hook: bool) -> Counter[Any]:
    """Running counts of each key, and its last one again."""
    expected = Counter(
        ("count", key, number + 1) for key, count in counts.items() for number in range(count)
    )
    if hook:
        expected.update(("end", key, count) for key, count in counts.items())
    return expected


def _count(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    keys = choices.keys
    counted = stream.key_by(lambda i: i % keys).count().uid("count")
    return counted.map(lambda pair: ("count", pair[0], pair[1])).uid("counted")


def _reduce(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    keys = choices.keys
    pairs = stream.map(lambda i: (i % keys, 1)).uid("pairs").key_by(lambda pair: pair[0])
    summed = pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sum")
    return summed.map(lambda pair: ("count", pair[0], pair[1])).uid("summed")


def _process(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    keys = choices.keys
    kind = CountToTheEnd if choices.hook else Count
    return stream.key_by(lambda i: i % keys).process(kind(choices.mutable)).uid("process")


def _map_with_state(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    keys = choices.keys

    def number(seen: Any, value: int) -> tuple[Any, Any]:
        if isinstance(seen, list):
            seen.append(value)
            return seen, ("count", value % keys, len(seen))
        return seen + 1, ("count", value % keys, seen + 1)

    numbered = stream.key_by(lambda i: i % keys)
    return numbered.map_with_state(number, [] if choices.mutable else 0).uid("numbered")


def _states(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    keys = choices.keys
    kind = CountInStatesToTheEnd if choices.hook else CountInStates
    return stream.key_by(lambda i: i % keys).process(kind(choices.mutable)).uid("states")


def _broadcast(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return _count(env, stream.broadcast().map(lambda i: i).uid("copies"), choices)


def _diamond(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    left = stream.map(lambda i: i).uid("left")
    right = stream.rebalance().map(lambda i: i).uid("right")
    counted = _process(env, left.union(right), choices)
    again = left.rebalance().map(lambda i: ("left", i, 0)).uid("again")
    return counted.union(again)


def _visit(
    env: StreamExecutionEnvironment,
    starts: DataStream,
    choices: Choices,
    name: str,
    back_through: int,
    kind: type[KeyedProcessFunction] | None = None,
) -> DataStream:
    """A loop that each (id, hops left) goes round; gives what was visited."""
    keys = choices.keys
    back = env.create_feedback(f"{name} again")
    kind = kind or (HopToTheEnd if choices.hook else Hop)
    hops = starts.union(back).key_by(lambda pair: pair[0] % keys).process(kind()).uid(name)
    on = hops.filter(lambda r: r[0] == "on").map(lambda r: (r[1], r[2])).uid(f"{name} on")
    for number in range(back_through):
        on = on.rebalance().map(lambda pair: pair).uid(f"{name} back {number}")
    back.close_with(on)
    # A task behind the loop has several channels, of which some have their barriers late.
    return hops.filter(lambda r: r[0] != "on").rebalance().map(lambda r: r).uid(f"{name} out")


def _starts(stream: DataStream) -> DataStream:
    return stream.map(lambda i: (i, i % 4 * 2)).uid("starts")


def _loop(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return _visit(env, _starts(stream), choices, "hop", 0)


def _timer_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    return _visit(env, _starts(stream), choices, "hop later", 1, HopLater)


def _event_timer_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda pair, _: pair[0])
    timed = _starts(stream).assign_timestamps_and_watermarks(strategy).uid("timed")
    return _visit(env, timed, choices, "hop by watermark", 1, HopByWatermark)


def _timers(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    keys = choices.keys
    return stream.key_by(lambda i: i % keys).process(Later()).uid("later")


def _event_timers(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    keys, strategy = choices.keys, WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(lambda i, _: i)
    timed = stream.assign_timestamps_and_watermarks(strategy).uid("timed")
    return timed.key_by(lambda i: i % keys).process(LaterByWatermark()).uid("later")


def _sides(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    """Numbers of which the odd ones go through a side output, to a count and further."""
    split = stream.process(Split()).uid("split")
    odd = split.get_side_output(LARGE)
    further = odd.map(lambda i: ("odd", i)).uid("odd")
    even = split.map(lambda i: ("even", i)).uid("even")
    return even.union(further.rebalance(), _count(env, odd, choices))


def _wide_loop(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return _visit(env, _starts(stream), choices, "hop", 3)


def _two_loops(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    """What comes out of one loop goes into another."""
    first = _visit(env, _starts(stream), choices, "hop", 0)
    home = first.filter(lambda r: r[0] == "visit" and r[2] == 0).uid("home")
    second = _visit(env, home.map(lambda r: (r[1], 3)).uid("once more"), choices, "skip", 1)
    return first.union(second.map(lambda r: ("second", *r)).uid("second"))


def _shared_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    """Two loops through one operator: a short way back and a long one."""
    keys = choices.keys
    short, long = env.create_feedback("short"), env.create_feedback("long")
    kind = HopToTheEnd if choices.hook else Hop
    into = _starts(stream).union(short, long)
    hops = into.key_by(lambda pair: pair[0] % keys).process(kind()).uid("hop")
    on = hops.filter(lambda r: r[0] == "on").map(lambda r: (r[1], r[2])).uid("on")
    short.close_with(on.filter(lambda pair: pair[1] % 2 == 0).uid("even"))
    odd = on.filter(lambda pair: pair[1] % 2 == 1).uid("odd")
    detour = odd.rebalance().map(lambda pair: pair).uid("detour")
    long.close_with(detour.rebalance().map(lambda pair: pair).uid("second detour"))
    return hops.filter(lambda r: r[0] != "on").uid("out")


def _two_inputs(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    keys = choices.keys
    kind = CoCountToTheEnd if choices.hook else CoCount
    other = stream.rebalance().map(lambda i: str(i)).uid("other input")
    both = stream.connect(other).key_by(lambda i: i % keys, lambda text: int(text) % keys)
    return both.process(kind(choices.mutable)).uid("both")


def _second_input_loop(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    """A loop whose records come back to the second input."""
    keys = choices.keys
    back = env.create_feedback("back")
    kind = CoHopToTheEnd if choices.hook else CoHop
    both = _starts(stream).connect(back)
    hops = both.key_by(lambda pair: pair[0] % keys, lambda pair: pair[0] % keys)
    hopped = hops.process(kind()).uid("hop")
    on = hopped.filter(lambda r: r[0] == "on").map(lambda r: (r[1], r[2])).uid("on")
    back.close_with(on)
    return hopped.filter(lambda r: r[0] != "on").rebalance().map(lambda r: r).uid("out")


def _broadcast_state(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    seen = stream.map(lambda i: i).uid("rules").broadcast(SEEN)
    return stream.rebalance().connect(seen).process(Seen(choices.keys)).uid("seen")


def _keyed_broadcast_state(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    keys = choices.keys
    seen = stream.map(lambda i: i).uid("rules").broadcast(SEEN)
    keyed = stream.key_by(lambda i: i % keys)
    return keyed.connect(seen).process(KeyedSeen(keys)).uid("seen")


def _operator_list(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    return stream.rebalance().process(Hold()).uid("hold")


def _random_numbers(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    """Random numbers that decide which tasks get them, and come together on two ways."""
    keys = choices.keys
    drawn = stream.key_by(lambda i: i % keys).map(Draw()).uid("draw")
    passed = drawn.key_by(lambda one: one[2] % keys).process(NewNumbers()).uid("new numbers")
    both = drawn.union(passed).key_by(lambda one: one[1] % keys)
    return both.process(SameNumbers()).uid("same numbers")


def _counts(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _upto(Counter(i % choices.keys for i in inputs), hook=False)


def _totals(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    counts = Counter(i % choices.keys for i in inputs)
    return Counter(("count", key, count) for key, count in counts.items())


def _totals_of_copies(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _totals([i for i in inputs for _ in range(parallelism)], choices, 1)


def _split_totals(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    odd = [i for i in inputs if i % 2]
    sides = Counter[Any](("odd" if i % 2 else "even", i) for i in inputs)
    return sides + _totals(odd, choices, parallelism)


def _counts_of_copies(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _counts([i for i in inputs for _ in range(parallelism)], choices, 1)


def _counts_to_the_end(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _upto(Counter(i % choices.keys for i in inputs), choices.hook)


def _each_later(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return Counter(("later", i) for i in inputs)


def _split(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    odd = [i for i in inputs if i % 2]
    expected = Counter[Any](("odd" if i % 2 else "even", i) for i in inputs)
    return expected + _counts(odd, choices, parallelism)


def _visited_later(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _visited(Counter((i, i % 4 * 2) for i in inputs), replace(choices, hook=False))


def _counts_of_both(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _counts_to_the_end([*inputs, *inputs], choices, 1)


def _seen_everywhere(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    counts = _counts(inputs, choices, 1)
    expected = Counter({record: number * parallelism for record, number in counts.items()})
    expected.update(("left", i, 0) for i in inputs)
    return expected


def _seen_and_own(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    counts = _counts(inputs, choices, 1)
    expected = Counter({record: number * parallelism for record, number in counts.items()})
    expected.update({("own", *record[1:]): number for record, number in counts.items()})
    return expected


def _held(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return Counter(("held", i, 0) for i in inputs)


def _agreed(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return Counter(("agreed", i) for i in inputs)


def _both_ways(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    expected = _counts_to_the_end([*inputs, *inputs], choices, 1)
    expected.update(("left", i, 0) for i in inputs)
    return expected


def _visited(starts: Counter[tuple[int, int]], choices: Choices) -> Counter[Any]:
    expected, arrived = Counter[Any](), Counter[int]()
    for (id, start), number in starts.items():
        for left, count in visits(start).items():
            expected["visit", id, left] += count * number
            arrived[id % choices.keys] += count * number
    if choices.hook:
        expected.update(("end", key, count) for key, count in arrived.items())
    return expected


def _all_visited(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return _visited(Counter((i, i % 4 * 2) for i in inputs), choices)


def _visited_twice(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    expected = _all_visited(inputs, choices, parallelism)
    starts = Counter((i, 3) for i in inputs for _ in range(visits(i % 4 * 2)[0]))
    second = _visited(starts, choices)
    return expected + Counter({("second", *record): n for record, n in second.items()})


def _tumbling(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return windows.tumbling_members(stream, choices.keys, 100 if choices.mutable else 0)


def _sessions(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return windows.session_members(stream, choices.keys, 100 if choices.hook else 0)


def _sliding(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return windows.sliding_contents(stream, choices)


def _purged(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return windows.purged_members(stream, choices)


def _source_windows(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    return windows.source_windows(stream, choices.keys)


def _count_windows(
    env: StreamExecutionEnvironment, stream: DataStream, choices: Choices
) -> DataStream:
    return windows.count_windows(stream, choices.keys)


def _joins(env: StreamExecutionEnvironment, stream: DataStream, choices: Choices) -> DataStream:
    return joins.joined_pairs(stream, choices)


def _pairs(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return joins.expected_pairs(inputs, choices.keys)


def _members(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return Counter(("member", i) for i in inputs)


def _in_windows(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return windows.expected_contents(inputs)


def _placed(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return windows.expected_in_windows(inputs)


def _full_windows(inputs: Sequence[int], choices: Choices, parallelism: int) -> Counter[Any]:
    return windows.expected_count_windows(inputs, choices.keys)


SHAPES = {
    "count": Shape(_count, _counts, _totals),
    "reduce": Shape(_reduce, _counts, _totals),
    "process": Shape(_process, _counts_to_the_end),
    "map with state": Shape(_map_with_state, _counts, weight=1),
    "states": Shape(_states, _counts_to_the_end, weight=3),
    "diamond": Shape(_diamond, _both_ways),
    "broadcast": Shape(_broadcast, _counts_of_copies, _totals_of_copies, fixed=True, weight=1),
    "timers": Shape(_timers, _each_later, weight=3),
    "event timers": Shape(_event_timers, _each_later, weight=3),
    "timer loop": Shape(_timer_loop, _visited_later, looped=True, weight=3),
    "event timer loop": Shape(_event_timer_loop, _visited_later, looped=True, weight=3),
    "side outputs": Shape(_sides, _split, _split_totals),
    "two inputs": Shape(_two_inputs, _counts_of_both, weight=3),
    "broadcast state": Shape(_broadcast_state, _seen_everywhere, fixed=True),
    "keyed broadcast state": Shape(_keyed_broadcast_state, _seen_and_own, fixed=True),
    "operator list": Shape(_operator_list, _held),
    "second input loop": Shape(_second_input_loop, _all_visited, looped=True, weight=3),
    "loop": Shape(_loop, _all_visited, looped=True, weight=3),
    "wide loop": Shape(_wide_loop, _all_visited, looped=True, weight=4),
    "two loops": Shape(_two_loops, _visited_twice, looped=True),
    "shared loop": Shape(_shared_loop, _all_visited, looped=True, weight=3),
    "requests": Shape(async_functions.requests, _each_later, weight=3),
    "timed requests": Shape(async_functions.timed_requests, _each_later, weight=3),
    "request loop": Shape(async_functions.loop, _all_visited, looped=True, weight=3),
    "event time request loop": Shape(
        async_functions.event_time_loop, _visited_later, looped=True, weight=3
    ),
    "batched requests": Shape(async_functions.batched_requests, _each_later, weight=3),
    "timed batched requests": Shape(async_functions.timed_batched_requests, _each_later, weight=3),
    "batched request loop": Shape(
        async_functions.batched_loop, _all_visited, looped=True, weight=3
    ),
    "event time batched request loop": Shape(
        async_functions.batched_event_time_loop, _visited_later, looped=True, weight=3
    ),
    "random numbers": Shape(_random_numbers, _agreed, weight=3),
    "tumbling": Shape(_tumbling, _members),
    "sessions": Shape(_sessions, _members),
    "sliding": Shape(_sliding, _in_windows, source_times=None),
    "purged": Shape(_purged, _members, source_times=None, weight=4),
    "source windows": Shape(_source_windows, _placed, source_times=True, weight=4),
    "count windows": Shape(_count_windows, _full_windows, weight=1),
    "joins": Shape(_joins, _pairs, source_times=None, weight=3),
    "columns": Shape(columns.running_counts, _counts, _totals, weight=3),
    "column windows": Shape(columns.aggregated_windows, columns.expected_windows, weight=3),
    "column sessions": Shape(columns.aggregated_sessions, columns.expected_sessions, weight=3),
}
