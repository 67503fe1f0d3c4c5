"""Windows over columns are those of rows: every kind, with late rows, restores and rescaling."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from penstock import (
    ArrowSource,
    ColumnTimestamps,
    EventTimeSessionWindows,
    GraphError,
    JobError,
    OutputTag,
    ProcessingTimeSessionWindows,
    RuntimeExecutionMode,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.columns.aggregation_results import AggregationResults
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.registry import build_operator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.state.operator_state import OperatorStateBackend
from penstock.testing import OperatorHarness
from tests.sizes import sized
from tests.snapshot.state.backends import GROUPS, Maker

CODEC = Codec(TypeRegistry())

LATE = OutputTag("late")
NAN = math.nan
AGGREGATES = {
    "total": ("n", "sum"),
    "rows": ("*", "count"),
    "known": ("n", "count"),
    "least": ("x", "min"),
    "most": ("x", "max"),
    "mean": ("n", "mean"),
    "real": ("x", "sum"),
}
SCHEMA = {"k": "string", "j": "int32", "n": "int64", "x": "float64"}
ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(10),
    "tumbling with an offset": TumblingEventTimeWindows.of(10, -3),
    "sliding": SlidingEventTimeWindows.of(12, 4),
    "sliding with odd sizes": SlidingEventTimeWindows.of(10, 4, 1),
    "sessions": EventTimeSessionWindows.with_gap(6),
}
PROCESSING = {
    "tumbling": TumblingProcessingTimeWindows.of(10),
    "sliding": SlidingProcessingTimeWindows.of(12, 4),
    "sessions": ProcessingTimeSessionWindows.with_gap(6),
}


def aggregated(key: Any, window: Any, rows: list[Any]) -> list[Any]:
    """What a window over columns emits for the rows of a group."""
    n = [row["n"] for row in rows if row["n"] is not None]
    x = [row["x"] for row in rows if row["x"] is not None]
    numbers = [value for value in x if value == value]
    return [
        {
            "k": key[0],
            "j": key[1],
            "window_start": window.start,
            "window_end": window.end,
            "total": sum(n) if n else None,
            "rows": len(rows),
            "known": len(n),
            "least": min(numbers, default=NAN) if x else None,
            "most": max(numbers, default=NAN) if x else None,
            "mean": sum(n) / len(n) if n else None,
            "real": sum(x) if x else None,
        }
    ]


def over_rows(assigner: Any, lateness: int) -> Any:
    def piece(stream: Any) -> Any:
        windows = stream.key_by(lambda row: (row["k"], row["j"])).window(assigner)
        return windows.allowed_lateness(lateness).side_output_late_data(LATE).apply(aggregated)

    return piece


def over_columns(assigner: Any, lateness: int, columns: bool) -> Any:
    def piece(stream: Any) -> Any:
        if columns:
            stream = stream.map_batches(lambda batch: batch, keep_rows=True, schema=SCHEMA)
        windows = stream.group_by("k", "j").window(assigner)
        windows = windows.allowed_lateness(lateness).side_output_late_data(LATE)
        return windows.agg(**AGGREGATES)

    return piece


def rows_of(rng: random.Random, count: int) -> list[dict[str, Any]]:
    # Sums of such floats are exact, so they do not depend on the order.
    return [
        {
            "k": rng.choice(["a", "b", None]),
            "j": rng.randrange(2),
            "n": rng.randrange(-50, 50) if rng.random() < 0.8 else None,
            "x": rng.choice([rng.randrange(-99, 99) / 4, None, rng.choice([NAN, 0.5, math.inf])]),
        }
        for _ in range(count)
    ]


def step(rng: random.Random, now: int) -> tuple[str, Any]:
    choice = rng.random()
    if choice < 0.6:
        rows = rows_of(rng, rng.randrange(12))
        return "rows", [(row, now + rng.randrange(-30, 12)) for row in rows]
    return ("advance", now + rng.randrange(14)) if choice < 0.85 else ("restore", None)


def take(harness: OperatorHarness) -> tuple[Counter[str], Counter[str]]:
    emitted = [(repr(each.value), each.timestamp) for each in harness.extract_output_records()]
    return Counter(emitted), Counter(map(repr, harness.get_side_output(LATE)))


def compare(ours: OperatorHarness, theirs: OperatorHarness, where: Any) -> int:
    mine, other = take(ours), take(theirs)
    assert mine == other, where
    return sum(other[1].values())


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "rows"])
@pytest.mark.parametrize("lateness", [0, 9])
@pytest.mark.parametrize("name", ASSIGNERS)
def test_windows_by_event_time_are_those_of_rows(name: str, lateness: int, columns: bool) -> None:
    late = 0
    for seed in range(sized(2, 60)):
        rng, where = random.Random(seed), f"seed {seed}"
        ours = OperatorHarness(
            over_columns(ASSIGNERS[name], lateness, columns), side_outputs=[LATE]
        )
        theirs = OperatorHarness(over_rows(ASSIGNERS[name], lateness), side_outputs=[LATE])
        now = rng.choice((-60, 0, 1_700_000_000_000))
        for _ in range(30):
            kind, what = step(rng, now)
            if kind == "restore":
                ours = OperatorHarness.restore(ours.snapshot(), rng.randrange(1, 4))
            elif kind == "rows":
                for harness in (ours, theirs):
                    harness.process_elements(what)
            else:
                now = what
                for harness in (ours, theirs):
                    harness.process_watermark(now)
            late += compare(ours, theirs, where)
        for harness in (ours, theirs):
            harness.end_input()
        compare(ours, theirs, where)
        assert ours.num_keyed_state_entries() == ours.num_event_time_timers() == 0, where
    assert late


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "rows"])
@pytest.mark.parametrize("name", PROCESSING)
def test_windows_by_processing_time_are_those_of_rows(name: str, columns: bool) -> None:
    for seed in range(sized(2, 60)):
        rng, where, emitted = random.Random(seed), f"seed {seed}", 0
        ours = OperatorHarness(over_columns(PROCESSING[name], 0, columns), side_outputs=[LATE])
        theirs = OperatorHarness(over_rows(PROCESSING[name], 0), side_outputs=[LATE])
        now = 0
        for _ in range(30):
            kind, what = step(rng, now)
            if kind == "restore":
                ours = OperatorHarness.restore(ours.snapshot(), rng.randrange(1, 4))
                theirs = OperatorHarness.restore(theirs.snapshot())
                now += 3
                what = now
            elif kind == "rows":
                for harness in (ours, theirs):
                    harness.process_elements([(row, None) for row, _ in what])
                continue
            now = what
            for harness in (ours, theirs):
                harness.set_processing_time(now)
            records = theirs.extract_output_records()
            emitted += len(records)
            expected = Counter((repr(each.value), each.timestamp) for each in records)
            assert take(ours)[0] == expected, where
        assert emitted, where


def test_a_late_row_is_emitted_as_it_came() -> None:
    for columns, expected in ((True, {"k": "a", "j": 1, "n": 5, "x": None}), (False, {"k": "a"})):
        row = {**expected, "j": 1, "k": "a"}
        for assigner in ASSIGNERS.values():
            harness = OperatorHarness(over_columns(assigner, 0, columns), side_outputs=[LATE])
            harness.process_watermark(100)
            harness.process_element(row, 7)
            assert harness.get_side_output(LATE) == [row]
            assert harness.extract_output_values() == []


def test_late_rows_are_dropped_without_a_side_output() -> None:
    for assigner in ASSIGNERS.values():
        harness = OperatorHarness(
            lambda stream, assigner=assigner: (
                stream.group_by("k").window(assigner).agg(n=("*", "count"))
            )
        )
        harness.process_watermark(100)
        harness.process_elements([({"k": 1}, 7), ({"k": 1}, 200)])
        harness.process_watermark(300)
        assert {row["n"] for row in harness.extract_output_values()} == {1}


@pytest.mark.parametrize("lateness", [0, 100])
def test_other_aggregates_have_other_state(lateness: int) -> None:
    def counting(**aggregates: Any) -> Any:
        return lambda stream: (
            stream.group_by("k")
            .window(EventTimeSessionWindows.with_gap(10))
            .allowed_lateness(lateness)
            .agg(**aggregates)
        )

    harness = OperatorHarness(counting(n=("*", "count")))
    harness.process_element({"k": 1, "v": 5}, 0)
    snapshot, summing = harness.snapshot(), counting(n=("v", "sum"))
    with pytest.raises(GraphError, match="is gone, and its values would be lost"):
        OperatorHarness(summing, snapshot=snapshot)
    harness = OperatorHarness(summing, snapshot=snapshot, allow_dropped=True)
    harness.process_element({"k": 1, "v": 7}, 3)
    harness.process_watermark(50)
    assert [row["n"] for row in harness.extract_output_values()] == [7]


def test_a_sum_of_a_session_that_does_not_fit_is_an_error() -> None:
    harness = OperatorHarness(
        lambda stream: (
            stream.group_by("k").window(EventTimeSessionWindows.with_gap(10)).agg(s=("n", "sum"))
        )
    )
    with pytest.raises(JobError, match="sum of column 'n' does not fit into 64 bits"):
        harness.process_elements([({"k": 1, "n": 2**62}, 0), ({"k": 1, "n": 2**62}, 1)])


def test_a_window_by_event_time_needs_event_times() -> None:
    for assigner in ASSIGNERS.values():
        harness = OperatorHarness(over_columns(assigner, 5, True), side_outputs=[LATE])
        with pytest.raises(JobError, match="a record without a timestamp"):
            harness.process_elements([(row, None) for row in rows_of(random.Random(1), 3)])


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
@pytest.mark.parametrize("assigner", ASSIGNERS.values(), ids=ASSIGNERS)
def test_a_job_has_sessions_over_columns(assigner: Any, mode: Any) -> None:
    table = pa.table(
        {"k": [i % 3 for i in range(300)], "at": [i * 2 + i // 50 * 40 for i in range(300)]}
    )
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True)
    env.set_runtime_mode(mode)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(ColumnTimestamps("at"))
    stream = env.from_source(ArrowSource(table), strategy, "table")
    windows = stream.group_by("k").window(assigner).allowed_lateness(1_000_000)
    rows = list(windows.agg(n=("*", "count")).execute_and_collect())
    emitted = Counter((row["k"], row["window_start"], row["window_end"], row["n"]) for row in rows)
    times: dict[int, list[int]] = {}
    for k, at in zip(*(table[name].to_pylist() for name in ("k", "at")), strict=True):
        times.setdefault(k, []).append(at)
    expected = {
        (k, *window, count) for k, of_k in times.items() for window, count in spans(assigner, of_k)
    }
    # A window that late rows fire again has also been emitted with fewer rows.
    assert expected <= emitted.keys()
    if mode is RuntimeExecutionMode.BATCH:
        assert expected == emitted.keys() and emitted.total() == len(expected)


def spans(assigner: Any, times: list[int]) -> list[tuple[tuple[int, int], int]]:
    """The windows of sorted times, each with its number of times."""
    if not isinstance(assigner, EventTimeSessionWindows):
        found = Counter(
            tuple(window) for time in times for window in assigner.windows_at(time, None)
        )
        return list(found.items())  # type: ignore[arg-type]
    begins = [0, *(at for at in range(1, len(times)) if times[at] - times[at - 1] > 6), len(times)]
    pieces = [times[begin:end] for begin, end in pairwise(begins)]
    return [((piece[0], piece[-1] + 6), len(piece)) for piece in pieces]


@pytest.mark.parametrize("assigner", [ASSIGNERS["tumbling"], ASSIGNERS["sessions"]])
def test_windows_inside_of_a_loop_fire_before_the_loop_ends(assigner: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_timestamp_assigner(ColumnTimestamps("at"))
    rows = env.from_collection([{"k": i % 3, "at": i, "n": 2} for i in range(60)])
    loop = rows.assign_timestamps_and_watermarks(strategy).iterate()
    sums = loop.group_by("k").window(assigner).agg(n=("n", "sum"))
    # What goes round is late for its window, which has fired.
    loop.close_with(sums.filter(lambda row: row["window_start"] == 0))
    assert sum(row["n"] for row in sums.execute_and_collect()) == 120


def test_windows_that_columns_do_not_have_are_refused() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    groups = env.from_collection([{"k": 1}]).group_by("k")
    windows = groups.window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
    with pytest.raises(GraphError, match=r"WindowedGroups has no 'trigger': use key_by"):
        windows.trigger(None)
    with pytest.raises(GraphError, match=r"side_output_late_data takes an OutputTag, not 'late'"):
        windows.side_output_late_data("late")
    with pytest.raises(GraphError, match=r"for other windows, triggers and evictors, use key_by"):
        groups.window(EventTimeSessionWindows.with_dynamic_gap(lambda row: 5))
    with pytest.raises(GraphError, match="has gaps"):
        groups.window(SlidingProcessingTimeWindows.of(5, 7))
    for stream in (groups.agg(n=("*", "count")), windows.agg(n=("*", "count"))):
        with pytest.raises(GraphError, match="which side_output_late_data sets on windows"):
            stream.get_side_output(LATE)


@pytest.mark.parametrize("in_order", [False, True])
def test_windows_have_an_order_of_their_own_if_steps_are_repeated(tmp_path, in_order) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"k": "a"}]).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: 1)
    )
    windows = rows.group_by("k").window(TumblingEventTimeWindows.of(10))
    windows.agg(rows=("*", "count"), most=("n", "max"))
    found = []
    for keys in ("cab", "bca"):
        backend = Maker(tmp_path / keys)(codec=CODEC, in_order=in_order)
        states = OperatorStateBackend("op", CODEC)
        context = OperatorContext("op", "uid", 0, 1, GROUPS, 0, CODEC, backend, (), states)
        operator = build_operator(OperatorPlace(env._graph.running[-1], context))
        operator.initialize_state()
        operator.open()
        operator.process(RecordBatch([{"k": key, "n": ord(key)} for key in keys], None, [1, 1, 1]))
        (fired,) = operator.advance_watermark(9)
        assert all(ord(row["k"]) == row["most"] for row in fired.rows())
        found.append([row["k"] for row in fired.rows()])
    assert found == [[*"abc"]] * 2 if in_order else found[0] != found[1]


@pytest.mark.parametrize("other", [pa.float64(), pa.int32(), pa.bool_(), pa.decimal128(9, 2)])
@pytest.mark.parametrize("keys", [[1, 2], [1.0, 2.0], [True, False], [1, 2.0], [Decimal("1.5"), 2]])
def test_keys_do_not_depend_on_the_types_that_other_subtasks_have_seen(keys, other) -> None:
    """A restored task knows the types of all subtasks, and repeats what it emitted before."""
    emitted = []
    for known in ([], [other]):
        results = AggregationResults(["k"], OperatorContext("op", "uid", 0, 1, GROUPS, 0, CODEC))
        for kind in known:
            results.note_types([pa.array([], kind)])
        rows = results.batch([keys], {}, None).rows()
        emitted.append([(type(row["k"]), row["k"]) for row in rows])
    # Whole numbers among others become such numbers, in any case.
    kind = type(keys[1]) if float in map(type, keys) else type(keys[0])
    assert emitted[0] == emitted[1] == [(kind, key) for key in keys]
