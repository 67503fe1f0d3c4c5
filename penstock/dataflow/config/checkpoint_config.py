"""Define `CheckpointConfig`: PyFlink's methods for the checkpoint settings of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from penstock.dataflow.arguments.durations import DurationLike, seconds_of, whole_number
from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.config.checkpoint_retention import ExternalizedCheckpointRetention
from penstock.dataflow.config.job_config import CheckpointingMode, JobConfig
from penstock.dataflow.config.state_backends import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.durations import Duration

_LOGGER = logging.getLogger("penstock")
#: The largest number of tolerable failures in Flink.
_UNLIMITED = 2**31 - 1


@dataclass
class CheckpointConfig(PyFlinkNames):
    """Changes the checkpoint settings of a job. (Flink: `CheckpointConfig`.)

    All times are numbers of milliseconds, or `timedelta`s. All setters return the object itself.
    They raise a `GraphError` if a value has the wrong type or is out of range.

    Arguments:
        config: the settings of the job, which the setters change.

    Examples:
        >>> config = env.get_checkpoint_config()
        >>> _ = config.set_checkpoint_interval(1_000).set_min_pause_between_checkpoints(500)
        >>> config.get_checkpoint_interval()
        1000
    """

    _missing: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("set_force_unaligned_checkpoints", "is_force_unaligned_checkpoints"),
        "unaligned snapshots need not be forced: enable_unaligned_checkpoints() is enough",
    )

    config: JobConfig = field(default_factory=JobConfig)
    #: The values that the program has set, for the getters.
    _max_concurrent: int = field(default=1, init=False, repr=False, compare=False)
    _storage: CheckpointStorage | None = field(default=None, init=False, repr=False, compare=False)

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

    def get_checkpoint_interval(self) -> int:
        """Return the time between two checkpoints, in milliseconds; -1 if there are none."""
        seconds = self.config.checkpoint_interval_seconds
        return -1 if seconds is None else round(seconds * 1000)

    def is_checkpointing_enabled(self) -> bool:
        """Return whether checkpoints are taken periodically."""
        return self.get_checkpoint_interval() > 0

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return the mode in which snapshots are taken."""
        return self.config.checkpointing_mode

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Set the mode UNALIGNED if `enabled` is true, else the mode EXACTLY_ONCE."""
        modes = CheckpointingMode
        return self.set_checkpointing_mode(modes.UNALIGNED if enabled else modes.EXACTLY_ONCE)

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        """Set the mode EXACTLY_ONCE."""
        return self.enable_unaligned_checkpoints(False)

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return whether the mode is UNALIGNED."""
        return self.config.checkpointing_mode is CheckpointingMode.UNALIGNED

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """Return the time for which tasks align barriers in the mode UNALIGNED."""
        return Duration.of_seconds(self.config.aligned_checkpoint_timeout_seconds)

    def set_alignment_timeout(self, alignment_timeout: DurationLike) -> CheckpointConfig:
        """Do the same as `set_aligned_checkpoint_timeout`, which is its newer name."""
        return self.set_aligned_checkpoint_timeout(alignment_timeout)

    def get_alignment_timeout(self) -> Duration:
        """Do the same as `get_aligned_checkpoint_timeout`, which is its newer name."""
        return self.get_aligned_checkpoint_timeout()

    def set_aligned_checkpoint_timeout(self, timeout: DurationLike) -> CheckpointConfig:
        """Set the time for which tasks align barriers before barriers overtake records.

        This applies to the mode UNALIGNED. The default is 0: barriers overtake records at once.
        """
        self.config.aligned_checkpoint_timeout_seconds = seconds_of("timeout", timeout)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str | Path) -> CheckpointConfig:
        """Set the job's checkpoint folder, as a local path or a `file://` URL."""
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(str(checkpoint_path)))

    def set_checkpoint_timeout(self, checkpoint_timeout: DurationLike) -> CheckpointConfig:
        """Set the time after which an incomplete checkpoint is aborted."""
        seconds = seconds_of("checkpoint_timeout", checkpoint_timeout)
        self.config.checkpoint_timeout_seconds = seconds
        return self

    def get_checkpoint_timeout(self) -> int:
        """Return the time after which an incomplete checkpoint is aborted, in milliseconds."""
        return round(self.config.checkpoint_timeout_seconds * 1000)

    def set_min_pause_between_checkpoints(self, min_pause: DurationLike) -> CheckpointConfig:
        """Set the shortest time between the end of a checkpoint and the start of the next."""
        self.config.min_pause_seconds = seconds_of("min_pause", min_pause)
        return self

    def get_min_pause_between_checkpoints(self) -> int:
        """Return the shortest pause between two checkpoints, in milliseconds."""
        return round(self.config.min_pause_seconds * 1000)

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        """Set the largest number of checkpoints at the same time.

        Penstock never takes more than one. A larger number is noted in the log.
        """
        name = "max_concurrent_checkpoints"
        self._max_concurrent = whole_number(name, max_concurrent_checkpoints, least=1)
        if self._max_concurrent > 1:
            _LOGGER.info("checkpoints are taken one at a time")
        return self

    def get_max_concurrent_checkpoints(self) -> int:
        """Return the number that was set, by default 1."""
        return self._max_concurrent

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        """Set where checkpoints are stored."""
        if not isinstance(storage, CheckpointStorage):
            raise GraphError(
                f"a checkpoint storage is a FileSystemCheckpointStorage or a "
                f"JobManagerCheckpointStorage, not {storage!r}"
            )
        storage.apply_to(self.config)
        self._storage = storage
        return self

    def get_checkpoint_storage(self) -> CheckpointStorage:
        """Return where checkpoints are stored: the storage that was set, unless it was changed."""
        folder = self.config.checkpoint_dir
        if self._storage is not None:
            wanted = replace(self.config)
            self._storage.apply_to(wanted)
            if wanted.checkpoint_dir == folder:
                return self._storage
        if folder is None:
            return JobManagerCheckpointStorage()
        return FileSystemCheckpointStorage(folder, self.config.inline_threshold)

    def set_externalized_checkpoint_retention(
        self, retention: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        """Set whether checkpoints are kept when the job ends.

        If it is not set, they are kept. Savepoints are kept in any case.
        """
        if not isinstance(retention, ExternalizedCheckpointRetention):
            raise GraphError(
                f"a retention is an ExternalizedCheckpointRetention, not {retention!r}"
            )
        self.config.retention = retention
        return self

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Return the value that was set, else `RETAIN_ON_CANCELLATION`: checkpoints are kept."""
        return self.config.retention or ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Return whether checkpoints are kept when the job fails."""
        return not self.get_externalized_checkpoint_retention().deletes_when_failed

    #: The names of Flink 1.
    enable_externalized_checkpoints = set_externalized_checkpoint_retention
    set_externalized_checkpoint_cleanup = set_externalized_checkpoint_retention
    get_externalized_checkpoint_cleanup = get_externalized_checkpoint_retention

    def set_fail_on_checkpointing_errors(
        self, fail_on_checkpointing_errors: bool
    ) -> CheckpointConfig:
        """Set whether a failed checkpoint restarts the job."""
        self.config.tolerable_failures = 0 if fail_on_checkpointing_errors else _UNLIMITED
        return self

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Return whether the first failed checkpoint restarts the job."""
        return self.config.tolerable_failures == 0

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Return the number of consecutive checkpoints that may fail."""
        return self.config.tolerable_failures

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
