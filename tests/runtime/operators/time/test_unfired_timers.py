"""Windows and timers by processing time whose input ends before their time are counted."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    ContinuousProcessingTimeTrigger,
    KeyedProcessFunction,
    ProcessingTimeSessionWindows,
    SlidingProcessingTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TumblingProcessingTimeWindows,
)
from penstock.dataflow.metrics import TIMERS_NOT_FIRED, WINDOWS_NOT_FIRED
from penstock.testing import OperatorHarness

TUMBLING = TumblingProcessingTimeWindows.of(Time.hours(1))
#: The clock of this machine does not come to the end of such a window.
LONG = TumblingProcessingTimeWindows.of(Time.days(50_000))


def windows(assigner: Any, trigger: Any = None) -> Any:
    def piece(stream: Any) -> Any:
        windowed = stream.key_by(abs).window(assigner)
        return (windowed if trigger is None else windowed.trigger(trigger)).sum(None)

    return piece


def columns(assigner: Any) -> Any:
    def piece(stream: Any) -> Any:
        pytest.importorskip("pyarrow")
        rows = stream.map(lambda n: {"n": n})
        return rows.group_by("n").window(assigner).agg(total=("n", "sum"))

    return piece


def joined(first: Any, second: Any) -> Any:
    both = first.join(second).where(abs).equal_to(abs)
    return both.window(TUMBLING).apply(lambda one, other: one)


PIECES: dict[str, Any] = {
    "tumbling": windows(TUMBLING),
    "sliding": windows(SlidingProcessingTimeWindows.of(Time.hours(2), Time.hours(1))),
    "sessions": windows(ProcessingTimeSessionWindows.with_gap(Time.hours(1))),
    "with a trigger": windows(TUMBLING, ContinuousProcessingTimeTrigger.of(Time.minutes(20))),
    "columns": columns(TUMBLING),
    "join": joined,
}


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_windows_that_do_not_fire_are_counted(piece: Any):
    harness = OperatorHarness(piece)
    for number in (1, 2, 1, 5):
        harness.process_element(number)
    harness.end_input()
    assert harness.metric(WINDOWS_NOT_FIRED) == 3


def test_windows_that_have_fired_are_not_counted():
    harness = OperatorHarness(windows(TUMBLING))
    harness.process_element(1)
    harness.set_processing_time(3_600_001)
    harness.process_element(2)
    harness.end_input()
    assert harness.metric(WINDOWS_NOT_FIRED) == 1


class Alarms(KeyedProcessFunction):
    """Registers two timers by processing time, and one by event time."""

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        timers.register_processing_time_timer(1_000)
        timers.register_processing_time_timer(2_000)
        timers.register_event_time_timer(5)
        yield value


def test_timers_of_functions_that_do_not_fire_are_counted():
    harness = OperatorHarness(Alarms(), key_selector=abs)
    harness.process_element(1)
    harness.process_element(2)
    harness.set_processing_time(1_500)
    harness.end_input()
    assert harness.metric(TIMERS_NOT_FIRED) == 2


def test_a_program_says_how_many_windows_did_not_fire(capfd: Any):
    env = StreamExecutionEnvironment.get_execution_environment().set_in_process()
    windows(LONG)(env.from_collection([1, 2, 1])).name("sums").print()
    assert env.execute().metric(WINDOWS_NOT_FIRED) == 2
    assert "2 windows of 'sums' did not fire, and the results are missing" in capfd.readouterr().err
