"""Late records are counted by every operator that drops them or emits them to a side output."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    Duration,
    EventTimeSessionWindows,
    OutputTag,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from penstock.dataflow.metrics import LATE_RECORDS_DROPPED, LATE_RECORDS_TO_SIDE_OUTPUT
from penstock.testing import OperatorHarness

LATE = OutputTag("late")
WINDOWS = {
    "tumbling": TumblingEventTimeWindows.of(10),
    "sliding": SlidingEventTimeWindows.of(10, 5),
    "session": EventTimeSessionWindows.with_gap(10),
}


def first_of(record):
    return record[0]


def add(left, right):
    return (left[0], left[1] + right[1])


def reduced(windowed, tag):
    return (windowed if tag is None else windowed.side_output_late_data(tag)).reduce(add)


def window(assigner, **settings) -> Any:
    def piece(stream, tag=None):
        windowed = stream.key_by(first_of).window(assigner)
        if settings.get("lateness"):
            windowed = windowed.allowed_lateness(settings["lateness"])
        return reduced(windowed, tag)

    return piece


def columns(assigner: Any) -> Any:
    def piece(stream, tag=None):
        pytest.importorskip("pyarrow")
        rows = stream.map(lambda record: {"key": record[0], "n": record[1]})
        grouped = rows.group_by("key").window(assigner)
        if tag is not None:
            grouped = grouped.side_output_late_data(tag)
        return grouped.agg(total=("n", "sum"))

    return piece


def history(stream, tag=None):
    return stream.key_by(first_of).join_history(Duration.of_millis(10), late_tag=tag)


ONE_INPUT: dict[str, Any] = {
    **{name: window(assigner) for name, assigner in WINDOWS.items()},
    "with lateness": window(WINDOWS["tumbling"], lateness=5),
    "history": history,
    **{f"columns, {name}": columns(assigner) for name, assigner in WINDOWS.items()},
}


@pytest.mark.parametrize("piece", ONE_INPUT.values(), ids=ONE_INPUT)
@pytest.mark.parametrize("tag", [None, LATE])
def test_late_records_of_one_input_are_counted(piece, tag):
    tags = [] if tag is None else [tag]
    harness = OperatorHarness(lambda stream: piece(stream, tag), side_outputs=tags)
    harness.process_elements([(("a", 1), 3), (("b", 1), 40)])
    harness.process_watermark(30)
    harness.process_elements([(("a", 2), 4), (("b", 2), 40), (("c", 3), 1), (("d", 4), 31)])
    name = LATE_RECORDS_DROPPED if tag is None else LATE_RECORDS_TO_SIDE_OUTPUT
    assert harness.metric(name) == 2
    if tag is not None:
        late = harness.get_side_output(tag)
        assert sorted(tuple(r.values()) if isinstance(r, dict) else r for r in late) == [
            ("a", 2),
            ("c", 3),
        ]


@pytest.mark.parametrize("tag", [None, LATE])
def test_late_records_of_joins_are_counted(tag):
    def interval(left, right):
        joined = left.key_by(first_of).interval_join(right.key_by(first_of)).between(-5, 5)
        if tag is not None:
            joined = joined.side_output_left_late_data(tag).side_output_right_late_data(tag)
        return joined.process(lambda one, other: (one, other))

    def as_of(left, right):
        return left.key_by(first_of).as_of_join(right.key_by(first_of), late_tag=tag)

    tags = [] if tag is None else [tag]
    name = LATE_RECORDS_DROPPED if tag is None else LATE_RECORDS_TO_SIDE_OUTPUT
    for piece, expected in ((interval, 3), (as_of, 2)):
        harness = OperatorHarness(piece, side_outputs=tags)
        harness.process_watermark(30)
        harness.process_elements([(("a", 1), 3), (("a", 2), 31), (("a", 3), 29)])
        harness.process_elements([(("a", 4), 2), (("a", 5), 33)], input=1)
        assert harness.metric(name) == expected
        if tag is not None:
            assert len(harness.get_side_output(tag)) == expected
