"""The settings of a job: plain records, and PyFlink's methods for setting them.

`job_config.py` has the record that is sent to the JobManager and the workers; start reading there.
"""

from __future__ import annotations

from penstock.dataflow.config.checkpoint_config import CheckpointConfig
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism, log_level_number
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.restart_strategies import RestartStrategies, RestartStrategy

__all__ = [
    "MAX_PARALLELISM",
    "CheckpointConfig",
    "CheckpointingMode",
    "JobConfig",
    "RestartStrategies",
    "RestartStrategy",
    "check_parallelism",
    "log_level_number",
]
