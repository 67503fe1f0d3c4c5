"""Define `CheckpointConfig`: PyFlink's methods for the checkpoint settings of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.dataflow.arguments.durations import DurationLike, seconds_of, whole_number
from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.errors import GraphError

__all__ = ["CheckpointConfig"]


@dataclass
class CheckpointConfig:
    """Changes the checkpoint settings of a job. (Flink: `CheckpointConfig`.)

    All times are numbers of milliseconds, or `timedelta`s. All setters return the object itself.
    They raise a `GraphError` if a value has the wrong type or is out of range.

    Arguments:
        config: the settings of the job, which the setters change.
    """

    config: JobConfig = field(default_factory=JobConfig)

    def set_checkpoint_interval(self, checkpoint_interval: DurationLike) -> CheckpointConfig:
        """Set the time between the starts of two checkpoints. It must be at least 1 ms."""
        seconds = seconds_of("the checkpoint interval", checkpoint_interval, least_ms=1)
        self.config.checkpoint_interval_seconds = seconds
        return self

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> CheckpointConfig:
        """Set the mode in which snapshots are taken."""
        if not isinstance(mode, CheckpointingMode):
            raise GraphError(f"a checkpointing mode is a CheckpointingMode, not {mode!r}")
        self.config.checkpointing_mode = mode
        return self

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return the mode in which snapshots are taken."""
        return self.config.checkpointing_mode

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Set the mode UNALIGNED if `enabled` is true, else the mode EXACTLY_ONCE."""
        modes = CheckpointingMode
        return self.set_checkpointing_mode(modes.UNALIGNED if enabled else modes.EXACTLY_ONCE)

    def set_aligned_checkpoint_timeout(self, timeout: DurationLike) -> CheckpointConfig:
        """Set the time for which tasks align barriers before barriers overtake records.

        This applies to the mode UNALIGNED. The default is 0: barriers overtake records at once.
        """
        self.config.aligned_checkpoint_timeout_seconds = seconds_of("timeout", timeout)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str | Path) -> CheckpointConfig:
        """Set the job's checkpoint folder, as a local path or a `file://` URL."""
        self.config.checkpoint_dir = without_scheme(str(checkpoint_path))
        return self

    def set_checkpoint_timeout(self, checkpoint_timeout: DurationLike) -> CheckpointConfig:
        """Set the time after which an incomplete checkpoint is aborted."""
        seconds = seconds_of("checkpoint_timeout", checkpoint_timeout)
        self.config.checkpoint_timeout_seconds = seconds
        return self

    def set_min_pause_between_checkpoints(self, min_pause: DurationLike) -> CheckpointConfig:
        """Set the shortest time between the end of a checkpoint and the start of the next."""
        self.config.min_pause_seconds = seconds_of("min_pause", min_pause)
        return self

    def set_tolerable_checkpoint_failure_number(self, number: int) -> CheckpointConfig:
        """Set the number of consecutive checkpoints that may fail before the job restarts."""
        self.config.tolerable_failures = whole_number("number", number)
        return self

    def set_retained_checkpoints(self, number: int) -> CheckpointConfig:
        """Set the number of checkpoints to keep, at least 1. Older checkpoints are removed."""
        self.config.retained = whole_number("number of retained checkpoints", number, least=1)
        return self

    def set_inline_threshold(self, size: int) -> CheckpointConfig:
        """Set the largest size of keyed state that is stored in the manifest itself, in bytes.

        The limit applies to the keyed state of each subtask of an operator.
        """
        self.config.inline_threshold = whole_number("size", size)
        return self
