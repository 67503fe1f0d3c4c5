"""Define PyFlink's methods for the execution settings of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Self

from penstock.dataflow.arguments.durations import DurationLike, seconds_of
from penstock.dataflow.arguments.pyflink_names import EXECUTION_CONFIG, PyFlinkNames
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism
from penstock.dataflow.config.configuration import Configuration
from penstock.dataflow.config.flink_keys import apply_configuration
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.resources import SlotSharingGroup
from penstock.dataflow.config.restart_strategies import RestartStrategy, check_restart_strategy
from penstock.dataflow.config.runtime_mode import RuntimeExecutionMode
from penstock.dataflow.config.state_backends import StateBackend
from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.time_domain import TimeCharacteristic

_LOGGER = logging.getLogger("penstock")


class ExecutionMode(Enum):
    """How records are passed between operators of a batch job. (Flink 1: `ExecutionMode`.)

    PIPELINED: at once. Penstock has only this mode.
    PIPELINED_FORCED, BATCH, BATCH_FORCED: the other modes of Flink.

    Examples:
        >>> env.get_config().get_execution_mode()
        <ExecutionMode.PIPELINED: 0>
    """

    PIPELINED = 0
    PIPELINED_FORCED = 1
    BATCH = 2
    BATCH_FORCED = 3


@dataclass
class ExecutionConfig(PyFlinkNames):
    """Changes the execution settings of a job. (Flink: `ExecutionConfig`.)

    Arguments:
        config: the settings of the job, which the setters change.

    Examples:
        >>> env.get_config().set_auto_watermark_interval(100).get_auto_watermark_interval()
        100
    """

    _missing: ClassVar[Mapping[str, str]] = EXECUTION_CONFIG

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

    def set_watermark_warning_timeout(self, timeout: DurationLike) -> ExecutionConfig:
        """Set the time after which a watermark that stands still is reported; 60 s by default.

        It is reported if records come, and windows or timers wait for it. The warning names the
        input, split or subtask that holds it.

        Arguments:
            timeout: the time in milliseconds or as a `timedelta`. With 0, there are no warnings.
        """
        seconds = seconds_of("the watermark warning timeout", timeout)
        self.config.watermark_warning_seconds = seconds
        return self

    def get_watermark_warning_timeout(self) -> int:
        """Return the time after which a watermark that stands still is reported, in ms."""
        return round(self.config.watermark_warning_seconds * 1000)

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

    def is_object_reuse_enabled(self) -> bool:
        """Return True: Penstock copies only the records that another function could change."""
        return True

    def set_restart_strategy(self, restart_strategy_configuration: RestartStrategy) -> Self:
        """Set the strategy that decides when a failed job is restarted."""
        check_restart_strategy(restart_strategy_configuration)
        self.config.restart = restart_strategy_configuration
        return self

    def get_restart_strategy(self) -> RestartStrategy | None:
        """Return the restart strategy; None for the default one."""
        return self.config.restart

    def enable_auto_generated_uids(self) -> Self:
        """Do nothing: operators without a uid get one."""
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """Return True: operators without a uid get one."""
        return True

    def get_execution_mode(self) -> ExecutionMode:
        """Return `PIPELINED`: records go to the next operator at once."""
        return ExecutionMode.PIPELINED

    def set_global_job_parameters(
        self, global_job_parameters: Mapping[str, object] | Configuration
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

    #: The state backend that the program has chosen.
    _state_backend: StateBackend | None = None

    def set_state_backend(self, state_backend: StateBackend) -> Self:
        """Choose the database for state that is not small. Penstock uses memory on its own.

        `EmbeddedSQLiteStateBackend` and `EmbeddedRocksDBStateBackend` choose one; other backends
        leave the setting `cold_store` as it is.

        Raises:
            GraphError: if it is not a `StateBackend`.
        """
        if not isinstance(state_backend, StateBackend):
            raise GraphError(
                f"a state backend is a HashMapStateBackend, an EmbeddedRocksDBStateBackend or an "
                f"EmbeddedSQLiteStateBackend, not "
                f"{state_backend!r}"
            )
        self._state_backend = state_backend
        if state_backend.cold_store is not None:
            self._config.cold_store = state_backend.cold_store
        return self

    def get_state_backend(self) -> StateBackend | None:
        """Return the state backend that the program has set; None if it has set none."""
        return self._state_backend

    def get_restart_strategy(self) -> RestartStrategy | None:
        """Return the strategy that decides when a failed job is restarted; None for the default."""
        return self._config.restart

    def disable_operator_chaining(self) -> Self:
        """Run each operator in a task of its own, for example to measure it."""
        self._config.chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Return whether operators are chained."""
        return self._config.chaining

    def set_default_local_parallelism(self, parallelism: int) -> Self:
        """Do the same as `set_parallelism`."""
        self.get_config().set_parallelism(parallelism)
        return self

    def get_default_local_parallelism(self) -> int:
        """Do the same as `get_parallelism`."""
        return self._config.parallelism

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> Self:
        """Accept a slot sharing group, which has no effect: all operators share their slots."""
        if not isinstance(slot_sharing_group, SlotSharingGroup):
            raise GraphError(f"register a SlotSharingGroup, not {slot_sharing_group!r}")
        return self

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return whether the checkpointing mode is UNALIGNED."""
        return self._config.checkpointing_mode is CheckpointingMode.UNALIGNED

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        """Do the same as `get_checkpointing_mode`."""
        return self.get_checkpointing_mode()

    def get_buffer_timeout(self) -> int:
        """Return the time for which a record waits in an output batch, in milliseconds."""
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
