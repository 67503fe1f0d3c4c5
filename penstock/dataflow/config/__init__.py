"""Define the settings of a job, and PyFlink's methods that change them.

Start reading at `job_config.py`, which defines all settings.
"""

from __future__ import annotations

from penstock.dataflow.config.checkpoint_config import CheckpointConfig
from penstock.dataflow.config.checkpoint_retention import (
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
)
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism, log_level_number
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.configuration import Configuration
from penstock.dataflow.config.execution_config import (
    ExecutionConfig,
    ExecutionMode,
    ExecutionSettings,
)
from penstock.dataflow.config.flink_keys import apply_configuration
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.outer_settings import config_of_files, with_environment
from penstock.dataflow.config.python_dependencies import PythonDependencySettings
from penstock.dataflow.config.resources import MemorySize, SlotSharingGroup
from penstock.dataflow.config.restart_strategies import (
    RestartStrategies,
    RestartStrategy,
    RestartStrategyConfiguration,
    check_restart_strategy,
)
from penstock.dataflow.config.runtime_mode import RuntimeExecutionMode
from penstock.dataflow.config.state_backends import (
    CheckpointStorage,
    EmbeddedRocksDBStateBackend,
    EmbeddedSQLiteStateBackend,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    PredefinedOptions,
    StateBackend,
)

__all__ = [
    "MAX_PARALLELISM",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "Configuration",
    "EmbeddedRocksDBStateBackend",
    "EmbeddedSQLiteStateBackend",
    "ExternalizedCheckpointCleanup",
    "ExecutionConfig",
    "ExecutionMode",
    "ExecutionSettings",
    "ExternalizedCheckpointRetention",
    "FileSystemCheckpointStorage",
    "HashMapStateBackend",
    "JobConfig",
    "JobManagerCheckpointStorage",
    "MemorySize",
    "PredefinedOptions",
    "PythonDependencySettings",
    "RecoveryClaimMode",
    "RestartStrategies",
    "RestartStrategy",
    "RestartStrategyConfiguration",
    "RuntimeExecutionMode",
    "SlotSharingGroup",
    "StateBackend",
    "apply_configuration",
    "check_parallelism",
    "check_restart_strategy",
    "config_of_files",
    "log_level_number",
    "with_environment",
]
