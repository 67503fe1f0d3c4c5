"""`JobConfig`: all settings of a job, as they are sent to the JobManager and the workers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism
from penstock.dataflow.config.restart_strategies import RestartStrategy
from penstock.dataflow.errors import GraphError

__all__ = ["CheckpointingMode", "JobConfig"]


class CheckpointingMode(Enum):
    """How snapshots are taken. (Flink: `CheckpointingMode`, which has the first two.)

    EXACTLY_ONCE: asynchronous barrier snapshotting; tasks align their inputs.
    AT_LEAST_ONCE: tasks block no input. After a failure some records are processed again; after
        an orderly stop none.
    UNALIGNED: tasks block no input, barriers overtake records, and the records in flight are part
        of the snapshot. Exactly once; for jobs under backpressure.
    SYNCHRONOUS: the job halts for each snapshot, as in Naiad. Exactly once; the baseline of the
        paper's evaluation.
    NONE: no periodic snapshots.
    """

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    UNALIGNED = "unaligned"
    #: The name that `UNALIGNED` had in version 0.1.
    CHANDY_LAMPORT = UNALIGNED
    SYNCHRONOUS = "synchronous"
    NONE = "none"


@dataclass
class JobConfig:
    """All settings of a job, with their defaults.

    Arguments:
        name: name of the job, which its checkpoint folder belongs to.
        parallelism: number of subtasks of operators that are not given their own.
        max_parallelism: number of key groups; fixed for the life of the job's state.
        checkpoint_dir: the job's folder; None keeps snapshots in a temporary one.
        checkpoint_interval_seconds: time between two snapshots; None takes none periodically.
        checkpointing_mode: how snapshots are taken.
        aligned_checkpoint_timeout_seconds: UNALIGNED: time to align before barriers overtake.
        checkpoint_timeout_seconds: time after which an incomplete snapshot is aborted.
        min_pause_seconds: shortest time between the end of a snapshot and the next.
        tolerable_failures: consecutive snapshots that may fail before the job restarts.
        retained: number of complete snapshots to keep.
        inline_threshold: largest keyed state of a subtask that the manifest holds, in bytes.
        restart: when to restart after a failure. None restarts with a growing delay, 100 ms at
            first, if snapshots are taken, and never otherwise.
        batch_records, batch_bytes: size at which an output batch is sealed.
        buffer_timeout_seconds: age of its oldest record at which an output batch is sealed.
        channel_batches: largest number of batches in flight on one channel.
        buffer_debloat_target_seconds: time that a task may need for all records in flight to it.
        memory_bytes: memory for state and buffers of one worker.
        heartbeat_seconds: time between two heartbeats of a worker.
        heartbeat_timeout_seconds: time without a heartbeat after which a worker is lost.
        stop_timeout_seconds: time that a stop waits for its final snapshot.
        log_level: of the root logger in the job's processes; None is that of the program.
        in_process: run the job inside the process of the program, for debugging and tests.
        codegen: inline small user functions into the loops of operators.
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
    codegen: bool = True
    host: str | None = None

    def validate(self) -> None:
        """Raise `GraphError` for a setting that is out of range."""
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
