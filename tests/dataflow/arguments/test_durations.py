"""Settings are checked by the call that sets them, with a message that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import GraphError, RestartStrategies, StreamExecutionEnvironment
from penstock.dataflow.arguments.durations import seconds_of

ENVIRONMENT = StreamExecutionEnvironment.get_execution_environment


@pytest.mark.parametrize(
    ("interval", "seconds"), [(1000, 1.0), (2.5, 0.0025), (timedelta(seconds=3), 3.0), (1, 0.001)]
)
def test_an_interval_is_milliseconds_or_a_timedelta(interval: Any, seconds: float):
    env = ENVIRONMENT().enable_checkpointing(interval)
    assert env.config.checkpoint_interval_seconds == seconds


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ("1s", "a number of milliseconds or a timedelta, not '1s': write 1000"),
        ("1.5 min", "write 90000"),
        ("soon", "a timedelta, not 'soon'$"),
        (None, "not None"),
        (True, "not True"),
        (0, "must be at least 1 ms, not 0 ms"),
        (-5, "must be at least 1 ms, not -5 ms"),
        (timedelta(0), "must be at least 1 ms, not 0 ms"),
        (float("inf"), "must be finite"),
        (float("nan"), "must be finite"),
    ],
)
def test_an_interval_that_cannot_be_is_refused_at_the_call(interval: Any, message: str):
    env = ENVIRONMENT()
    with pytest.raises(GraphError, match=message):
        env.enable_checkpointing(interval)
    assert env.config.checkpoint_interval_seconds is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: RestartStrategies.fixed_delay_restart(3, "10s"),
        lambda: RestartStrategies.fixed_delay_restart("3", 10),
        lambda: RestartStrategies.fixed_delay_restart(-1, 10),
        lambda: RestartStrategies.exponential_delay_restart(initial_backoff="1s"),
        lambda: RestartStrategies.exponential_delay_restart(max_backoff=-1),
        lambda: RestartStrategies.exponential_delay_restart(attempts=1.5),
        lambda: RestartStrategies.failure_rate_restart(3, "1 h", 10),
        lambda: RestartStrategies.failure_rate_restart(3, 1000, -10),
        lambda: ENVIRONMENT().set_buffer_timeout("5ms"),
        lambda: ENVIRONMENT().set_buffer_debloat_target("100ms"),
        lambda: ENVIRONMENT().set_buffer_debloat_target(0),
        lambda: ENVIRONMENT().get_checkpoint_config().set_checkpoint_timeout("5 min"),
        lambda: ENVIRONMENT().get_checkpoint_config().set_min_pause_between_checkpoints(-1),
        lambda: ENVIRONMENT().get_checkpoint_config().set_aligned_checkpoint_timeout("1s"),
        lambda: ENVIRONMENT().get_checkpoint_config().set_retained_checkpoints(0),
        lambda: ENVIRONMENT().get_checkpoint_config().set_tolerable_checkpoint_failure_number("1"),
    ],
)
def test_other_settings_are_checked_in_the_same_way(call: Callable[[], Any]):
    with pytest.raises(GraphError):
        call()


def test_a_strategy_takes_timedeltas():
    strategy = RestartStrategies.fixed_delay_restart(3, timedelta(seconds=10))
    assert (strategy.attempts, strategy.delay_seconds) == (3, 10.0)


def test_zero_is_a_length_of_time_where_there_is_no_least():
    assert seconds_of("delay", 0) == 0.0
