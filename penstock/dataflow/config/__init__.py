"""Define the settings of a job, and PyFlink's methods that change them.

Start reading at `job_config.py`, which defines all settings.
"""

from __future__ import annotations

from penstock.dataflow.config.checkpoint_config import CheckpointConfig
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism, log_level_number
from penstock.dataflow.config.configuration import Configuration
from penstock.dataflow.config.execution_config import (
    ExecutionConfig,
    ExecutionSettings,
)
from penstock.dataflow.config.flink_keys import apply_configuration
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.outer_settings import config_of_files, with_environment
from penstock.dataflow.config.restart_strategies import RestartStrategies, RestartStrategy
from penstock.dataflow.config.runtime_mode import RuntimeExecutionMode

__all__ = [
    "MAX_PARALLELISM",
    "CheckpointConfig",
    "CheckpointingMode",
    "Configuration",
    "ExecutionConfig",
    "ExecutionSettings",
    "JobConfig",
    "RestartStrategies",
    "RestartStrategy",
    "RuntimeExecutionMode",
    "apply_configuration",
    "check_parallelism",
    "config_of_files",
    "log_level_number",
    "with_environment",
]
