"""Warnings about event time: watermarks that stand still, and times of a wrong unit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from penstock import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors import GeneratorSource
from penstock.dataflow.config import JobConfig
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    Source,
    SourceReader,
    Split,
)
from tests.simulation.run_program import Build, program, run_program

TIMED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n * 100)
WINDOW = TumblingEventTimeWindows.of(1_000)
CONFIG = JobConfig(watermark_warning_seconds=10.0)


def warnings(build: Build, config: JobConfig = CONFIG, seconds: float = 40.0) -> list[str]:
    """Run a job for some time, or to its end if that is 0; return the texts of its warnings."""

    async def stop(job: Any, machine: Any, events: Any) -> None:
        await trio.sleep(seconds)
        job.stop()

    ran = run_program(program(build, config), script=stop if seconds else None)
    assert not isinstance(ran.outcome, BaseException), ran
    return [event["text"] for event in ran.events if event["event"] == "warning"]


class Splits(Source):
    """Splits that never end. Each has a number every second, but the silent ones have none.

    Arguments:
        active, silent: the names of the splits.
    """

    bounded = False

    def __init__(self, active: list[str], silent: list[str]) -> None:
        self.active, self.silent = active, silent

    def create_enumerator(self, parallelism: int) -> Any:
        return _Enumerator([Split(name) for name in (*self.active, *self.silent)])

    def create_reader(self, context: Any) -> SourceReader:
        return _Reader(self.silent)


class _Enumerator(ListEnumerator):
    @property
    def exhausted(self) -> bool:
        return False


class _Reader(SourceReader):
    def __init__(self, silent: list[str]) -> None:
        self.silent = silent

    def open(self, split: Split, position: Any) -> None:
        self.name, self.at = split.id, position or 0

    def read(self, max_records: int) -> Read:
        if self.name in self.silent:
            return Read([], self.at, wait_seconds=1.0)
        self.at += 1
        return Read([self.at], self.at, wait_seconds=1.0)


def numbers(env: StreamExecutionEnvironment, strategy: Any, name: str = "numbers") -> Any:
    return env.from_source(Splits(["a"], []), strategy, name)


def windows(stream: Any) -> None:
    stream.key_by(lambda n: n % 3).window(WINDOW).sum(None).print()


def test_a_silent_split_that_holds_the_watermark_is_named():
    def build(env: StreamExecutionEnvironment) -> None:
        windows(env.from_source(Splits(["a", "b"], ["c"]), TIMED, "numbers").name("numbers"))

    [text] = warnings(build)
    assert text == (
        "'Window: TumblingEventTimeWindows' has got records for 10 s, and its windows or timers "
        "wait: it has no watermark, held by split 'c' of 'numbers'. If it may have no records for "
        "long, add with_idleness(...) to the watermark strategy"
    )


def test_a_silent_input_of_a_union_is_named_through_other_operators():
    def build(env: StreamExecutionEnvironment) -> None:
        silent = env.from_source(Splits([], ["x"]), TIMED, "silent").map(abs).disable_chaining()
        windows(numbers(env, TIMED).union(silent.map(abs)))

    [text] = warnings(build)
    assert "it has no watermark, held by split 'x' of 'silent'. If" in text


def test_a_subtask_without_a_split_is_named():
    def build(env: StreamExecutionEnvironment) -> None:
        windows(numbers(env, TIMED))

    texts = warnings(build, replace(CONFIG, parallelism=2))
    assert len(texts) == 1
    assert "held by 'numbers' (subtask 1), which has no split to read. Use a lower" in texts[0]


class Alarm(KeyedProcessFunction):
    """Registers a timer for each record."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value * 100)
        yield value


@pytest.mark.parametrize("strategy", [None, WatermarkStrategy.no_watermarks()])
def test_timers_that_wait_behind_a_source_without_watermarks_are_reported(strategy: Any):
    def build(env: StreamExecutionEnvironment) -> None:
        numbers(env, strategy).key_by(lambda n: n % 3).process(Alarm()).name("Alarm").print()

    [text] = warnings(build)
    assert text.startswith("'Alarm' has got records for 10 s")
    assert "held by 'numbers', whose watermark strategy is none or no_watermarks(): give" in text


def test_a_strategy_behind_the_source_is_named():
    def build(env: StreamExecutionEnvironment) -> None:
        silent = env.from_source(Splits([], ["x"]), None, "silent")
        timed = silent.map(abs).assign_timestamps_and_watermarks(TIMED).name("Times")
        windows(numbers(env, TIMED).union(timed))

    [text] = warnings(build)
    assert "held by the watermark strategy of 'Times'. If it may get no records for long" in text


def test_a_watermark_that_stood_still_is_reported_once_more_if_it_stops_again():
    class Stops(_Reader):
        def read(self, max_records: int) -> Read:
            self.at += 1
            if self.name == "b":
                # A number at 0 s and one at 30 s.
                found = [self.at] if self.at in (1, 31) else []
                return Read(found, self.at, wait_seconds=1.0)
            return Read([self.at], self.at, wait_seconds=1.0)

    class Sometimes(Splits):
        def create_reader(self, context: Any) -> SourceReader:
            return Stops([])

    def build(env: StreamExecutionEnvironment) -> None:
        windows(env.from_source(Sometimes(["a", "b"], []), TIMED, "numbers"))

    texts = warnings(build, seconds=75.0)
    assert ["stands at 1970-01-01 00:00:0" in text for text in texts] == [True, True]
    assert all("held by split 'b' of 'numbers'" in text for text in texts)


def quiet(env: StreamExecutionEnvironment) -> None:
    """A source that has no more records after the first ones."""
    source = GeneratorSource(lambda i: i, 3, clock=trio.current_time)
    windows(env.from_source(source, TIMED).union(env.from_source(Splits([], ["x"]), TIMED)))


def moving(env: StreamExecutionEnvironment) -> None:
    windows(numbers(env, TIMED))


def idle(env: StreamExecutionEnvironment) -> None:
    windows(env.from_source(Splits(["a"], ["c"]), TIMED.with_idleness(2_000)))


def without_windows(env: StreamExecutionEnvironment) -> None:
    env.from_source(Splits(["a"], ["c"]), TIMED).print()


@pytest.mark.parametrize("build", [quiet, moving, idle, without_windows])
def test_no_watermark_is_reported_without_need(build: Callable[..., None]):
    assert warnings(build) == []


def test_a_watermark_is_not_reported_if_the_setting_is_0():
    def build(env: StreamExecutionEnvironment) -> None:
        windows(env.from_source(Splits(["a"], ["c"]), TIMED))

    assert warnings(build, JobConfig(watermark_warning_seconds=0.0)) == []


@pytest.mark.parametrize(
    ("first", "unit"),
    [
        (1_700_000_000, "seconds"),
        (1_700_000_000_000_000, "microseconds"),
        (1_700_000_000_000_000_000, "nanoseconds"),
        (1_700_000_000_000, None),
        (17, None),
        (-5, None),
    ],
)
@pytest.mark.parametrize("at_source", [True, False])
def test_times_of_a_wrong_unit_are_reported_once(first: int, unit: str | None, at_source: bool):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda n, _: first + n
    )

    def build(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, 10, clock=trio.current_time)
        stream = env.from_source(source, strategy if at_source else None, "numbers")
        if not at_source:
            stream = stream.assign_timestamps_and_watermarks(strategy)
        stream.print()

    texts = warnings(build, replace(CONFIG, parallelism=2), seconds=0.0)
    if unit is None:
        assert texts == []
        return
    [text] = texts
    name = "numbers" if at_source else "Timestamps/Watermarks"
    # That of either subtask may come first.
    assert re.match(
        f"the event times of '{name}' look like {unit}: the first is ({first}|{first + 1})", text
    )
