"""Settings by the keys of Flink, and the methods of PyFlink's execution settings."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from penstock import (
    CheckpointingMode,
    Configuration,
    GraphError,
    JobConfig,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Time,
    TimeCharacteristic,
)
from penstock.dataflow.config.flink_keys import KEYS


@pytest.mark.parametrize(
    ("key", "value", "attribute", "expected"),
    [
        ("parallelism.default", 4, "parallelism", 4),
        ("pipeline.max-parallelism", "256", "max_parallelism", 256),
        ("pipeline.name", "sums", "name", "sums"),
        ("pipeline.auto-watermark-interval", "50 ms", "auto_watermark_interval_seconds", 0.05),
        ("execution.buffer-timeout", 20, "buffer_timeout_seconds", 0.02),
        ("execution.checkpointing.interval", "10 s", "checkpoint_interval_seconds", 10),
        ("execution.checkpointing.interval", "1min", "checkpoint_interval_seconds", 60),
        ("execution.checkpointing.timeout", "1 h", "checkpoint_timeout_seconds", 3600),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE", "checkpointing_mode",
         CheckpointingMode.AT_LEAST_ONCE),
        ("execution.checkpointing.unaligned", "true", "checkpointing_mode",
         CheckpointingMode.UNALIGNED),
        ("execution.checkpointing.unaligned.enabled", False, "checkpointing_mode",
         CheckpointingMode.EXACTLY_ONCE),
        ("execution.checkpointing.num-retained", 5, "retained", 5),
        ("execution.checkpointing.dir", "file:///tmp/job", "checkpoint_dir", "/tmp/job"),
        ("state.checkpoints.dir", "/tmp/job", "checkpoint_dir", "/tmp/job"),
        ("state.storage.fs.memory-threshold", "20kb", "inline_threshold", 20480),
        ("taskmanager.memory.managed.size", "64 mb", "memory_bytes", 64 * 2**20),
        ("taskmanager.memory.managed.size", "1g", "memory_bytes", 2**30),
        ("heartbeat.timeout", "50000", "heartbeat_timeout_seconds", 50),
        ("restart-strategy", "none", "restart", RestartStrategies.no_restart()),
    ],
)  # fmt: skip
def test_keys_of_flink_change_settings(key: str, value: Any, attribute: str, expected: Any):
    env = StreamExecutionEnvironment.get_execution_environment(Configuration({key: value}))
    assert getattr(env.config, attribute) == expected


def test_each_key_belongs_to_a_setting():
    names = {one.name for one in dataclasses.fields(JobConfig)}
    assert {attribute for attribute, _ in KEYS.values()} <= names


def test_restart_strategies_have_several_keys():
    def restart(settings: dict[str, Any]) -> Any:
        return StreamExecutionEnvironment.get_execution_environment(
            Configuration(settings)
        ).config.restart

    assert restart(
        {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 3,
            "restart-strategy.fixed-delay.delay": "2 s",
        }
    ) == RestartStrategies.fixed_delay_restart(3, 2000)
    assert restart(
        {
            "restart-strategy": "failure-rate",
            "restart-strategy.failure-rate.max-failures-per-interval": "5",
            "restart-strategy.failure-rate.failure-rate-interval": "5 min",
        }
    ) == RestartStrategies.failure_rate_restart(5, 300_000, 1000)
    assert restart(
        {
            "restart-strategy": "exponential-delay",
            "restart-strategy.exponential-delay.backoff-multiplier": 3,
        }
    ) == RestartStrategies.exponential_delay_restart(1000, 60_000, 3.0, 3_600_000)


def test_keys_without_a_meaning_are_noted(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "penstock")
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.configure(Configuration().set_integer("python.fn-execution.bundle.size", 5)) is env
    assert "python.fn-execution.bundle.size" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("parallelism.default", "many", "parallelism.default: many, which cannot be"),
        ("parallelism.default", 0, "a whole number of at least 1"),
        ("execution.checkpointing.interval", "soon", "a length of time such as 500 ms"),
        ("execution.checkpointing.mode", "SOMETIMES", "it is EXACTLY_ONCE or AT_LEAST_ONCE"),
        ("execution.checkpointing.unaligned", "perhaps", "it is true or false"),
        ("taskmanager.memory.managed.size", "5 apples", "a size such as 512 mb"),
        ("restart-strategy", "prayer", "which is no restart strategy: use none, fixed-delay"),
    ],
)
def test_a_value_that_cannot_be_is_refused(key: str, value: Any, message: str):
    with pytest.raises(GraphError, match=message):
        StreamExecutionEnvironment.get_execution_environment(Configuration({key: value}))


def test_a_configuration_has_values_of_several_types():
    config = Configuration().set_string("a", "x").set_integer("b", 2).set_float("c", 1.5)
    config.set_boolean("d", True).set_bytearray("e", bytearray(b"z"))
    assert config.get_string("a") == "x" and config.get_string("z", "none") == "none"
    assert config.get_integer("b") == 2 and config.get_integer("z", 7) == 7
    assert config.get_float("c") == 1.5
    assert config.get_boolean("d") and not config.get_boolean("z")
    assert config.get("e") == bytearray(b"z")
    assert config.key_set() == frozenset("abcde") and config.contains_key("a")
    assert config.remove_config("e") and not config.remove_config("e")
    assert config.to_dict() == {"a": "x", "b": "2", "c": "1.5", "d": "True"}
    copied = Configuration(config)
    assert copied == config and hash(copied) == hash(config)
    assert copied.add_all(Configuration({"f": 1}), "p.").contains_key("p.f")
    assert copied != config and repr(Configuration({"a": 1})) == "Configuration({'a': 1})"


def test_execution_settings_are_changed_as_in_pyflink():
    env = StreamExecutionEnvironment.get_execution_environment()
    config = env.get_config()
    assert config.get_auto_watermark_interval() == 200
    config.set_auto_watermark_interval(Time.seconds(1)).set_parallelism(2).set_max_parallelism(64)
    assert env.config.auto_watermark_interval_seconds == 1
    assert (env.get_parallelism(), env.get_max_parallelism()) == (2, 64)
    assert (config.get_parallelism(), config.get_max_parallelism()) == (2, 64)
    config.enable_object_reuse().disable_object_reuse().set_global_job_parameters({"a": "b"})
    with pytest.raises(GraphError, match="the auto watermark interval must not be negative"):
        config.set_auto_watermark_interval(-1)


def test_the_time_characteristic_switches_periodic_watermarks():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_stream_time_characteristic(TimeCharacteristic.ProcessingTime)
    assert env.config.auto_watermark_interval_seconds == 0
    assert env.get_stream_time_characteristic() is TimeCharacteristic.ProcessingTime
    env.set_stream_time_characteristic(TimeCharacteristic.EventTime)
    assert env.config.auto_watermark_interval_seconds == 0.2
    assert env.get_stream_time_characteristic() is TimeCharacteristic.EventTime


def test_runtime_modes():
    env: Any = StreamExecutionEnvironment.get_execution_environment()
    for mode in RuntimeExecutionMode:
        assert env.set_runtime_mode(mode) is env
        assert env.config.runtime_mode is mode
    for method, wrong in (
        (env.set_runtime_mode, "BATCH"),
        (env.set_stream_time_characteristic, 5),
        (env.configure, {"a": 1}),
    ):
        with pytest.raises(GraphError):
            method(wrong)
