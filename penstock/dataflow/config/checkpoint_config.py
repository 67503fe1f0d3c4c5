"""`CheckpointConfig`: PyFlink's methods for the checkpoint settings of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.dataflow.arguments.durations import Duration, seconds_of, whole_number
from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.errors import GraphError

__all__ = ["CheckpointConfig"]


@dataclass
class CheckpointConfig:
    """Sets the checkpoint settings of a job. (Flink: `CheckpointConfig`.)

    All times are milliseconds or `timedelta`s. All setters return the object itself, and raise
    `GraphError` for a value of another type or out of range.

    Arguments:
        config: the settings to change.
    """

    config: JobConfig = field(default_factory=JobConfig)

    def set_checkpoint_interval(self, checkpoint_interval: Duration) -> CheckpointConfig:
        """Set the time between the starts of two checkpoints; at least 1 ms."""
        seconds = seconds_of("the checkpoint interval", checkpoint_interval, least_ms=1)
        self.config.checkpoint_interval_seconds = seconds
        return self

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> CheckpointConfig:
        """Set how snapshots are taken."""
        if not isinstance(mode, CheckpointingMode):
            raise GraphError(f"a checkpointing mode is a CheckpointingMode, not {mode!r}")
        self.config.checkpointing_mode = mode
        return self

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return how snapshots are taken."""
        return self.config.checkpointing_mode

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Let barriers overtake records: set the mode UNALIGNED, or EXACTLY_ONCE."""
        modes = CheckpointingMode
        return self.set_checkpointing_mode(modes.UNALIGNED if enabled else modes.EXACTLY_ONCE)

    def set_aligned_checkpoint_timeout(self, timeout: Duration) -> CheckpointConfig:
        """Set the time for which an unaligned checkpoint aligns before barriers overtake records.

        With 0, the default, barriers overtake at once.
        """
        self.config.aligned_checkpoint_timeout_seconds = seconds_of("timeout", timeout)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str | Path) -> CheckpointConfig:
        """Set the job's folder, as a local path or a `file://` address."""
        self.config.checkpoint_dir = without_scheme(str(checkpoint_path))
        return self

    def set_checkpoint_timeout(self, checkpoint_timeout: Duration) -> CheckpointConfig:
        """Set the time after which a checkpoint that is not complete is aborted."""
        seconds = seconds_of("checkpoint_timeout", checkpoint_timeout)
        self.config.checkpoint_timeout_seconds = seconds
        return self

    def set_min_pause_between_checkpoints(self, min_pause: Duration) -> CheckpointConfig:
        """Set the shortest time between the end of a checkpoint and the start of the next."""
        self.config.min_pause_seconds = seconds_of("min_pause", min_pause)
        return self

    def set_tolerable_checkpoint_failure_number(self, number: int) -> CheckpointConfig:
        """Set the number of consecutive checkpoints that may fail before the job restarts."""
        self.config.tolerable_failures = whole_number("number", number)
        return self

    def set_retained_checkpoints(self, number: int) -> CheckpointConfig:
        """Set the number of complete checkpoints to keep, the newest ones; at least 1."""
        self.config.retained = whole_number("number of retained checkpoints", number, least=1)
        return self

    def set_inline_threshold(self, size: int) -> CheckpointConfig:
        """Set the size up to which a subtask's keyed state is kept in the manifest, in bytes."""
        self.config.inline_threshold = whole_number("size", size)
        return self
