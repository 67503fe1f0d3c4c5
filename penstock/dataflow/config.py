"""The settings of a job. Plain records, and PyFlink's names for setting them.

`JobConfig` is what is shipped to the JobManager and the workers; `CheckpointConfig` is the face
that a PyFlink program knows, over the same values.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from penstock.dataflow.arguments.durations import Duration, seconds_of, whole_number
from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.errors import GraphError

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

#: The largest number of key groups, as in Flink.
MAX_PARALLELISM = 32768


class CheckpointingMode(Enum):
    """How snapshots are taken. (Flink: `CheckpointingMode`, which has the first two.)

    EXACTLY_ONCE: asynchronous barrier snapshotting; tasks align their inputs.
    AT_LEAST_ONCE: nothing is blocked; after a failure some records are processed again. An
        orderly stop repeats none.
    UNALIGNED: unaligned checkpoints: nothing is blocked, barriers overtake records, and what
        is in flight is part of the snapshot. Exactly once; for jobs under backpressure.
    SYNCHRONOUS: the job halts for each snapshot, as in Naiad. Exactly once; the baseline of the
        paper's evaluation.
    NONE: no snapshots by the clock.
    """

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    UNALIGNED = "unaligned"
    # The name it had before.
    CHANDY_LAMPORT = UNALIGNED
    SYNCHRONOUS = "synchronous"
    NONE = "none"


@dataclass(frozen=True)
class RestartStrategy:
    """When a failed job is started again; made by `RestartStrategies`.

    Arguments:
        kind: "none", "fixed_delay", "exponential" or "failure_rate".
        attempts: restarts allowed (fixed delay: in all; failure rate: per interval); None: any.
        delay_seconds: wait before a restart (exponential: before the first).
        max_delay_seconds, multiplier, reset_seconds: exponential: the longest wait, its growth,
            and after how long without a failure it starts from the first again.
        interval_seconds: failure rate: the interval in which failures are counted.
    """

    kind: str
    attempts: int | None = None
    delay_seconds: float = 0.0
    max_delay_seconds: float = 60.0
    multiplier: float = 2.0
    reset_seconds: float = 3600.0
    interval_seconds: float = 60.0


class RestartStrategies:
    """Makes restart strategies, by PyFlink's names; times are milliseconds or `timedelta`s."""

    @staticmethod
    def no_restart() -> RestartStrategy:
        """A failure ends the job."""
        return RestartStrategy("none")

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: Duration
    ) -> RestartStrategy:
        """Restart `restart_attempts` times in all, each after `delay_between_attempts`."""
        return RestartStrategy(
            "fixed_delay",
            whole_number("restart_attempts", restart_attempts),
            seconds_of("delay_between_attempts", delay_between_attempts),
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: Duration = 100,
        max_backoff: Duration = 60_000,
        backoff_multiplier: float = 2.0,
        reset_backoff_threshold: Duration = 3_600_000,
        attempts: int | None = None,
    ) -> RestartStrategy:
        """Restart after a delay that grows by the multiplier, up to `max_backoff`."""
        if backoff_multiplier < 1:
            raise GraphError(f"backoff_multiplier must be at least 1, not {backoff_multiplier}")
        return RestartStrategy(
            "exponential",
            None if attempts is None else whole_number("attempts", attempts),
            seconds_of("initial_backoff", initial_backoff),
            seconds_of("max_backoff", max_backoff),
            backoff_multiplier,
            seconds_of("reset_backoff_threshold", reset_backoff_threshold),
        )

    @staticmethod
    def failure_rate_restart(
        max_failures_per_interval: int, failure_interval: Duration, delay: Duration
    ) -> RestartStrategy:
        """Restart up to `max_failures_per_interval` times within `failure_interval`."""
        return RestartStrategy(
            "failure_rate",
            whole_number("max_failures_per_interval", max_failures_per_interval),
            seconds_of("delay", delay),
            interval_seconds=seconds_of("failure_interval", failure_interval),
        )


@dataclass
class JobConfig:
    """All settings of a job, with their defaults.

    Arguments:
        name: shown, and what a checkpoint folder belongs to.
        parallelism: subtasks of every operator that was not given its own.
        max_parallelism: number of key groups; fixed for the life of the state.
        checkpoint_dir: the job's folder; None keeps snapshots in a temporary one.
        checkpoint_interval_seconds: None takes no snapshots by the clock.
        checkpointing_mode: how snapshots are taken.
        aligned_checkpoint_timeout_seconds: UNALIGNED: how long barriers align before they overtake.
        checkpoint_timeout_seconds: a snapshot that takes longer is given up.
        min_pause_seconds: between the end of one snapshot and the start of the next.
        tolerable_failures: snapshots in a row that may fail before the job restarts.
        retained: complete checkpoints kept.
        inline_threshold: keyed state up to so many bytes per subtask travels in the manifest.
        restart: None: restart after 100 ms, growing, if snapshots are on; else never.
        batch_records, batch_bytes: a batch is sealed when it has so many records or bytes.
        buffer_timeout_seconds: or when its oldest record is so old.
        channel_batches: batches in flight on one channel.
        buffer_debloat_target_seconds: a task processes what is in flight to it in about that
            time; its input channels share it.
        memory_bytes: state and buffers of one worker.
        heartbeat_seconds, heartbeat_timeout_seconds: a worker silent for so long is dead.
        stop_timeout_seconds: how long a stop waits for its last snapshot.
        log_level: of the root logger in the job's processes; None: that of the program's process.
        in_process: run the job inside the process of the program, for debugging and tests.
        host: address on which the job's processes listen for each other with TCP; None uses Unix
            sockets, which only processes of this machine and user can reach.
    """

    name: str = "penstock job"
    parallelism: int = 1
    max_parallelism: int = 128
    checkpoint_dir: str | None = None
    checkpoint_interval_seconds: float | None = None
    checkpointing_mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    aligned_checkpoint_timeout_seconds: float = 0.0
    checkpoint_timeout_seconds: float = 600.0
    min_pause_seconds: float = 0.0
    tolerable_failures: int = 0
    retained: int = 3
    inline_threshold: int = 64 * 1024
    restart: RestartStrategy | None = None
    batch_records: int = 4096
    batch_bytes: int = 64 * 1024
    buffer_timeout_seconds: float = 0.005
    channel_batches: int = 4
    buffer_debloat_target_seconds: float = 0.1
    memory_bytes: int = 512 * 1024 * 1024
    heartbeat_seconds: float = 1.0
    heartbeat_timeout_seconds: float = 50.0
    stop_timeout_seconds: float = 30.0
    log_level: int | None = None
    in_process: bool = False
    host: str | None = None

    def validate(self) -> None:
        """Raise `GraphError` for a setting that cannot be."""
        check_parallelism(self.parallelism, self.max_parallelism, "the job")
        if not 1 <= self.max_parallelism <= MAX_PARALLELISM:
            raise GraphError(
                f"max_parallelism must be between 1 and {MAX_PARALLELISM}, "
                f"not {self.max_parallelism}"
            )
        if self.checkpoint_dir is not None:
            self.checkpoint_dir = without_scheme(str(self.checkpoint_dir))
        interval = self.checkpoint_interval_seconds
        if interval is not None and interval < 0.001:
            raise GraphError(f"the checkpoint interval must be at least 1 ms, not {interval} s")
        for name in ("batch_records", "batch_bytes", "channel_batches", "retained"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} must be at least 1, not {getattr(self, name)}")


def log_level_number(level: str | int) -> int:
    """Return the number of a level of `logging`. Raises `GraphError` for an unknown name."""
    if isinstance(level, int) and not isinstance(level, bool):
        return level
    names = logging.getLevelNamesMapping()
    number = names.get(level.upper()) if isinstance(level, str) else None
    if number is None:
        raise GraphError(
            f"a log level is DEBUG, INFO, WARNING, ERROR, CRITICAL or a number, not {level!r}"
        )
    return number


def check_parallelism(parallelism: int, max_parallelism: int, of: str) -> None:
    """Raise `GraphError` unless `1 <= parallelism <= max_parallelism`."""
    if not isinstance(parallelism, int) or isinstance(parallelism, bool):
        raise GraphError(f"the parallelism of {of} must be a whole number, not {parallelism!r}")
    if parallelism < 1:
        raise GraphError(f"the parallelism of {of} must be at least 1, not {parallelism}")
    if parallelism > max_parallelism:
        raise GraphError(
            f"the parallelism of {of} is {parallelism}, above the max parallelism "
            f"{max_parallelism}: there are only so many key groups; raise it with "
            f"env.set_max_parallelism(...) before the job has state"
        )


@dataclass
class CheckpointConfig:
    """PyFlink's face of the checkpoint settings; times are milliseconds or `timedelta`s."""

    config: JobConfig = field(default_factory=JobConfig)

    def set_checkpoint_interval(self, checkpoint_interval: Duration) -> CheckpointConfig:
        """Set the checkpoint interval; at least 1 ms."""
        seconds = seconds_of("the checkpoint interval", checkpoint_interval, least_ms=1)
        self.config.checkpoint_interval_seconds = seconds
        return self

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> CheckpointConfig:
        """How snapshots are taken."""
        if not isinstance(mode, CheckpointingMode):
            raise GraphError(f"a checkpointing mode is a CheckpointingMode, not {mode!r}")
        self.config.checkpointing_mode = mode
        return self

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """How snapshots are taken."""
        return self.config.checkpointing_mode

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Let barriers overtake records; the same as the mode UNALIGNED."""
        modes = CheckpointingMode
        return self.set_checkpointing_mode(modes.UNALIGNED if enabled else modes.EXACTLY_ONCE)

    def set_aligned_checkpoint_timeout(self, timeout: Duration) -> CheckpointConfig:
        """Set how long unaligned checkpoints align first."""
        self.config.aligned_checkpoint_timeout_seconds = seconds_of("timeout", timeout)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str | Path) -> CheckpointConfig:
        """Set the job's folder; `file://` addresses are accepted, and no other ones."""
        self.config.checkpoint_dir = without_scheme(str(checkpoint_path))
        return self

    def set_checkpoint_timeout(self, checkpoint_timeout: Duration) -> CheckpointConfig:
        """Set the time after which a snapshot that is not complete is given up."""
        seconds = seconds_of("checkpoint_timeout", checkpoint_timeout)
        self.config.checkpoint_timeout_seconds = seconds
        return self

    def set_min_pause_between_checkpoints(self, min_pause: Duration) -> CheckpointConfig:
        """Set the shortest time between the end of a snapshot and the start of the next."""
        self.config.min_pause_seconds = seconds_of("min_pause", min_pause)
        return self

    def set_tolerable_checkpoint_failure_number(self, number: int) -> CheckpointConfig:
        """So many snapshots in a row may fail before the job restarts."""
        self.config.tolerable_failures = whole_number("number", number)
        return self

    def set_retained_checkpoints(self, number: int) -> CheckpointConfig:
        """Keep the newest so many checkpoints; at least 1."""
        self.config.retained = whole_number("number of retained checkpoints", number, least=1)
        return self

    def set_inline_threshold(self, size: int) -> CheckpointConfig:
        """Keyed state of a subtask up to so many bytes is kept inside the manifest."""
        self.config.inline_threshold = whole_number("size", size)
        return self
