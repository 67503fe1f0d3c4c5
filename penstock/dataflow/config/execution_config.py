"""Define PyFlink's methods for the execution settings of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.dataflow.arguments.durations import DurationLike, seconds_of
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism
from penstock.dataflow.config.configuration import Configuration
from penstock.dataflow.config.flink_keys import apply_configuration
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.runtime_mode import RuntimeExecutionMode
from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.time_domain import TimeCharacteristic

__all__ = ["ExecutionConfig", "ExecutionSettings"]

_LOGGER = logging.getLogger("penstock")


@dataclass
class ExecutionConfig:
    """Changes the execution settings of a job. (Flink: `ExecutionConfig`.)

    Arguments:
        config: the settings of the job, which the setters change.
    """

    config: JobConfig = field(default_factory=JobConfig)

    def set_auto_watermark_interval(self, interval: DurationLike) -> ExecutionConfig:
        """Set the time between two periodic watermarks; 200 ms by default.

        Arguments:
            interval: the time in milliseconds or as a `timedelta`. With 0, there are none.
        """
        seconds = seconds_of("the auto watermark interval", interval)
        self.config.auto_watermark_interval_seconds = seconds
        return self

    def get_auto_watermark_interval(self) -> int:
        """Return the time between two periodic watermarks, in milliseconds."""
        return round(self.config.auto_watermark_interval_seconds * 1000)

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """Set the default number of subtasks of an operator."""
        check_parallelism(parallelism, MAX_PARALLELISM, "the job")
        self.config.parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Return the default number of subtasks of an operator."""
        return self.config.parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """Set the number of key groups, which is the largest possible parallelism."""
        check_parallelism(max_parallelism, MAX_PARALLELISM, "the job (max parallelism)")
        self.config.max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """Return the number of key groups."""
        return self.config.max_parallelism

    def enable_object_reuse(self) -> ExecutionConfig:
        """Do nothing: Penstock copies only the records that another function could change."""
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """Do nothing: Penstock copies only the records that another function could change."""
        return self

    def set_global_job_parameters(
        self, global_job_parameters: Mapping[str, Any] | Configuration
    ) -> ExecutionConfig:
        """Set parameters that the functions of the job read in their `RuntimeContext`.

        They replace earlier ones. `penstock run --param NAME=VALUE` changes them.

        Arguments:
            global_job_parameters: the values by name. They become texts, as in PyFlink.

        Raises:
            GraphError: if the argument is not a mapping.
        """
        given = global_job_parameters
        values = given.to_dict() if isinstance(given, Configuration) else given
        if not isinstance(values, Mapping):
            raise GraphError(f"set_global_job_parameters takes a mapping, not {values!r}")
        self.config.job_parameters = {str(name): str(value) for name, value in values.items()}
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        """Return the parameters of the job, by name."""
        return dict(self.config.job_parameters)


class ExecutionSettings:
    """The methods of an environment that PyFlink programs use for their settings."""

    _config: JobConfig

    def get_config(self) -> ExecutionConfig:
        """Return an object that changes the execution settings of the job."""
        return ExecutionConfig(self._config)

    def configure(self, configuration: Configuration) -> Self:
        """Change settings by the keys of Flink.

        Raises:
            GraphError: if the value of a key cannot be read, or is out of range.
        """
        if not isinstance(configuration, Configuration):
            raise GraphError(f"configure takes a Configuration, not {configuration!r}")
        apply_configuration(configuration, self._config)
        return self

    def get_buffer_timeout(self) -> int:
        """Return the longest time for which a record waits in an output batch, in milliseconds."""
        return round(self._config.buffer_timeout_seconds * 1000)

    def get_checkpoint_interval(self) -> int:
        """Return the time between two checkpoints, in milliseconds; -1 if there are none."""
        seconds = self._config.checkpoint_interval_seconds
        return -1 if seconds is None else round(seconds * 1000)

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return the mode in which snapshots are taken."""
        return self._config.checkpointing_mode

    def close(self) -> None:
        """Do nothing: an environment holds no resources."""

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Set the mode in which the program runs; streaming by default.

        In batch mode the program needs bounded input, and emits final results only.

        Raises:
            GraphError: if `execution_mode` is not a `RuntimeExecutionMode`.
        """
        if not isinstance(execution_mode, RuntimeExecutionMode):
            raise GraphError(f"a runtime mode is a RuntimeExecutionMode, not {execution_mode!r}")
        self._config.runtime_mode = execution_mode
        return self

    def set_stream_time_characteristic(self, characteristic: TimeCharacteristic) -> Self:
        """Set whether there are periodic watermarks, as older PyFlink programs do.

        `ProcessingTime` sets the interval of periodic watermarks to 0, and the others to 200 ms.
        """
        if not isinstance(characteristic, TimeCharacteristic):
            raise GraphError(f"a time characteristic is a TimeCharacteristic, not {characteristic}")
        without = characteristic is TimeCharacteristic.ProcessingTime
        self.get_config().set_auto_watermark_interval(0 if without else 200)
        return self

    def get_stream_time_characteristic(self) -> TimeCharacteristic:
        """Return `EventTime`, or `ProcessingTime` if there are no periodic watermarks."""
        if self._config.auto_watermark_interval_seconds:
            return TimeCharacteristic.EventTime
        return TimeCharacteristic.ProcessingTime
