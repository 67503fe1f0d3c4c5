"""Lengths of time and points in time, as a PyFlink program writes them."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from penstock import Duration, GraphError, Instant, Time
from penstock.dataflow.arguments.durations import milliseconds_of, seconds_of


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (Time.milliseconds(7), 7),
        (Time.seconds(7), 7000),
        (Time.minutes(7), 420_000),
        (Time.hours(7), 25_200_000),
        (Time.days(7), 604_800_000),
        (Time.hours(-8), -28_800_000),
        (Duration.of_millis(7), 7),
        (Duration.of_seconds(7), 7000),
        (Duration.of_minutes(7), 420_000),
        (Duration.of_hours(7), 25_200_000),
        (Duration.of_days(7), 604_800_000),
        (Duration.of_nanos(7_000_999), 7),
        (timedelta(days=1), 86_400_000),
        (7, 7),
        (7.0, 7),
    ],
)
def test_a_length_of_time_is_given_in_many_ways(value: Any, milliseconds: int):
    if not isinstance(value, Duration) or value != Duration.of_nanos(7_000_999):
        assert milliseconds_of("it", value, least=None) == milliseconds
    if isinstance(value, Time):
        assert value.to_milliseconds() == milliseconds
    if isinstance(value, Duration):
        assert value.to_millis() == milliseconds
    assert pickle.loads(pickle.dumps(value)) == value


def test_settings_take_them_too():
    assert seconds_of("it", Time.seconds(5)) == 5
    assert seconds_of("it", Duration.of_millis(5)) == 0.005


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5 s", "it is a number of milliseconds or a timedelta, not '5 s': write 5000"),
        (None, "it is a number of milliseconds"),
        (True, "it is a number of milliseconds"),
        (Time, "it is a number of milliseconds"),
        (float("nan"), "it must be finite"),
        (0.25, "it is a whole number of milliseconds, and 0.25 is none"),
        (timedelta(microseconds=1), "it is a whole number of milliseconds"),
        (-1, "it must not be negative, but is -1 ms"),
    ],
)
def test_other_values_are_refused(value: Any, message: str):
    with pytest.raises(GraphError, match=message):
        milliseconds_of("it", value)


def test_a_shortest_length_is_named():
    with pytest.raises(GraphError, match="it must be at least 1 ms, not 0 ms"):
        milliseconds_of("it", 0, least=1)


def test_durations_and_times_compare_and_add():
    assert Duration.of_seconds(60) == Duration.of_minutes(1)
    assert Duration.of_seconds(1) + Duration.of_seconds(1) == timedelta(seconds=2)
    assert Time.seconds(60) == Time.minutes(1)
    assert Time.seconds(1) < Time.minutes(1)


@pytest.mark.parametrize("millis", [-1001, -1000, -1, 0, 1, 999, 1000, 1_700_000_000_123])
def test_an_instant_keeps_its_milliseconds(millis: int):
    instant = Instant.of_epoch_milli(millis)
    assert 0 <= instant.nanos < 10**9
    assert instant.to_epoch_milli() == millis
