"""Define `JobConfig`, which contains all settings of a job.

The settings are sent to the JobManager and the workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from penstock.dataflow.config.checkpoint_retention import ExternalizedCheckpointRetention
from penstock.dataflow.config.checks import MAX_PARALLELISM, check_parallelism
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.config.restart_strategies import RestartStrategy
from penstock.dataflow.config.runtime_mode import RuntimeExecutionMode
from penstock.dataflow.config.snapshot_stores import (
    checkpoint_place,
    is_store_url,
    working_folder,
)
from penstock.dataflow.config.start_method import StartMethod
from penstock.dataflow.errors import GraphError


class CheckpointingMode(Enum):
    """The mode in which snapshots are taken. (Flink: `CheckpointingMode`.)

    EXACTLY_ONCE: asynchronous barrier snapshotting. Tasks align the barriers of their inputs.
    AT_LEAST_ONCE: tasks do not align barriers. After a failure, some records are processed twice.
        After a stop with a final snapshot, no records are processed twice.
    UNALIGNED: tasks do not align barriers. Barriers overtake records, and the records in flight
        are part of the snapshot. State is exactly-once. Use it for jobs under backpressure.
    SYNCHRONOUS: the whole job pauses for each snapshot, as in Naiad. State is exactly-once. This is
        the baseline in the evaluation of the paper.
    NONE: there are no periodic snapshots.

    Examples:
        >>> _ = env.enable_checkpointing(1_000, CheckpointingMode.UNALIGNED)
    """

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    UNALIGNED = "unaligned"
    #: The old name of `UNALIGNED`, from version 0.1.
    CHANDY_LAMPORT = UNALIGNED
    SYNCHRONOUS = "synchronous"
    NONE = "none"


@dataclass
class JobConfig:
    """All settings of a job, with their defaults.

    Arguments:
        name: the name of the job, which also identifies the owner of its checkpoint folder.
        parallelism: the number of subtasks of operators without a parallelism of their own.
        max_parallelism: the number of key groups. It cannot change once the job has snapshots.
        runtime_mode: whether the program runs as a stream or as a batch.
        checkpoint_dir: the job's checkpoint folder. If it is None, snapshots are kept in a
            temporary folder. The URL of an object store, such as `s3://bucket/prefix`, sets
            `snapshot_store` instead, and the folder is chosen below `~/.cache`.
        snapshot_store: the URL of the object store that has the job's snapshots. The checkpoint
            folder is then a local copy.
        checkpoint_interval_seconds: the time between the starts of two snapshots. If it is None,
            there are no periodic snapshots.
        checkpointing_mode: the mode in which snapshots are taken.
        aligned_checkpoint_timeout_seconds: in the mode UNALIGNED, the time for which tasks align
            barriers before barriers overtake records.
        checkpoint_timeout_seconds: the time after which an incomplete snapshot is aborted.
        min_pause_seconds: the shortest time between the end of a snapshot and the next start.
        tolerable_failures: the number of consecutive snapshots that may fail before the job
            restarts.
        retained: the number of complete checkpoints to keep.
        retention: whether checkpoints are kept when the job ends. If it is None, they are.
        inline_threshold: the largest size of a subtask's keyed state that is stored in the
            manifest itself, in bytes.
        cold_store: the database for keyed state that is larger than `inline_threshold`, or than
            memory. If it is None, this is RocksDB, or SQLite where `rocksdict` is not installed.
        restart: the strategy that decides when a failed job is restarted. If it is None, a job that
            takes snapshots is restarted after a growing delay, which begins with 100 ms. A job
            without snapshots is not restarted.
        batch_records, batch_bytes: the number of records, or of bytes, at which an output batch is
            sent.
        buffer_timeout_seconds: the time for which a record waits in an output batch while tasks of
            its worker can run. Under load it may wait longer, so that batches are worth their cost.
        channel_batches: the largest number of batches in flight on one channel.
        auto_watermark_interval_seconds: the time between two periodic watermarks. With 0, there are
            none.
        watermark_warning_seconds: the time after which a watermark that stands still is reported,
            if records come and windows or timers wait for it. With 0, it is never reported.
        straggler_factor: a task is reported as slow if it takes this many times as long as the
            median of the other subtasks of its operator.
        straggler_window_seconds: the time over which tasks are compared. With 0, slow tasks are
            never reported.
        buffer_debloat_target_seconds: the target time in which a task processes all records in
            flight to it.
        memory_bytes: the memory for state and buffers of one worker, in bytes.
        heartbeat_seconds: the time between two heartbeats of a worker.
        heartbeat_timeout_seconds: the time without a heartbeat after which a worker counts as lost.
        rejoin_timeout_seconds: the time for which the workers of a supervised job continue without
            a JobManager, if theirs has died. With 0, they end at once.
        stop_timeout_seconds: the longest time for which a stop waits for its final snapshot.
        restart_scope: the part of the job that a failure restarts: all of it, the region of the
            failed task, or the failed task with those upstream of it.
        restart_standby: the number of processes that wait with the job's code loaded, to replace
            lost workers.
        restart_reactive: whether a job continues with fewer workers if a worker cannot be started
            any more, and with more when it can be started again.
        restart_slot_timeout_seconds: the time for which a worker must be impossible to start before
            its slot counts as lost. Lost slots are tried again at this interval. It has no effect
            without `restart_reactive`.
        start_method: whether workers are forks of a process of the job, or new processes.
        on_lost_position: what sources do if the records behind their positions are gone. If it is
            None, each source does what the program says.
        claim_mode: who owns the snapshot of another job from which the job starts.
        log_level: the level of the root logger in the job's processes. If it is None, they use the
            level of the program's process.
        in_process: whether the job runs inside the process of the program, for debugging and tests.
        codegen: whether small user functions are inlined into the loops of operators.
        chaining: whether operators are chained; see `StreamExecutionEnvironment`.
        host: the address on which the job's processes listen for TCP connections from each other.
            If it is None, they use Unix sockets, which only processes of the same machine and user
            can reach.
        python_files: files, folders and zip files that workers can import, separated by commas; see
            `add_python_file`.
        python_archives: archives that workers unpack, each as `PATH` or `PATH#TARGET_DIR`,
            separated by commas; see `add_python_archive`.
        python_requirements: the requirements of the workers, as `FILE` or `FILE#CACHE_DIR`; see
            `set_python_requirements`.
        install_requirements: whether workers install the requirements into an environment of the
            job. Otherwise they check that the packages are installed.
        python_executable: the interpreter of the workers. If it is None, it is that of the program.
        job_parameters: parameters of the program, which its functions read in their
            `RuntimeContext`.

    Examples:
        >>> env = StreamExecutionEnvironment.get_execution_environment(JobConfig(parallelism=4))
        >>> env.get_parallelism()
        4
    """

    name: str = "penstock job"
    parallelism: int = 1
    max_parallelism: int = 128
    runtime_mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING
    checkpoint_dir: str | None = None
    snapshot_store: str | None = None
    checkpoint_interval_seconds: float | None = None
    checkpointing_mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    aligned_checkpoint_timeout_seconds: float = 0.0
    checkpoint_timeout_seconds: float = 600.0
    min_pause_seconds: float = 0.0
    tolerable_failures: int = 0
    retained: int = 3
    retention: ExternalizedCheckpointRetention | None = None
    inline_threshold: int = 64 * 1024
    cold_store: ColdStoreKind | None = None
    restart: RestartStrategy | None = None
    batch_records: int = 4096
    batch_bytes: int = 64 * 1024
    buffer_timeout_seconds: float = 0.005
    channel_batches: int = 4
    auto_watermark_interval_seconds: float = 0.2
    watermark_warning_seconds: float = 60.0
    straggler_factor: float = 1.4
    straggler_window_seconds: float = 10.0
    buffer_debloat_target_seconds: float = 0.1
    memory_bytes: int = 512 * 1024 * 1024
    heartbeat_seconds: float = 1.0
    heartbeat_timeout_seconds: float = 50.0
    rejoin_timeout_seconds: float = 10.0
    stop_timeout_seconds: float = 30.0
    restart_scope: RestartScope = RestartScope.JOB
    restart_standby: int = 0
    restart_reactive: bool = False
    restart_slot_timeout_seconds: float = 10.0
    start_method: StartMethod = StartMethod.FORK
    on_lost_position: LostPosition | None = None
    claim_mode: RecoveryClaimMode = RecoveryClaimMode.NO_CLAIM
    log_level: int | None = None
    in_process: bool = False
    codegen: bool = True
    chaining: bool = True
    host: str | None = None
    python_files: str | None = None
    python_archives: str | None = None
    python_requirements: str | None = None
    install_requirements: bool = False
    python_executable: str | None = None
    job_parameters: dict[str, str] = field(default_factory=dict)

    @property
    def keeps_state(self) -> bool:
        """Whether snapshots of the job hold state. Otherwise they only commit output."""
        if self.runtime_mode is RuntimeExecutionMode.BATCH:
            return True  # the snapshot of the end is not taken again if its commit is repeated
        return self.checkpoint_dir is not None or self.checkpoint_interval_seconds is not None

    def _locate_snapshots(self) -> None:
        """Find out where snapshots are kept: in a local folder, or also in an object store."""
        if self.checkpoint_dir is not None:
            self.checkpoint_dir = checkpoint_place(str(self.checkpoint_dir))
            if is_store_url(self.checkpoint_dir):
                # An option for the place of snapshots is stronger than a setting of the program.
                self.snapshot_store, self.checkpoint_dir = self.checkpoint_dir, None
        if self.snapshot_store is not None:
            if not is_store_url(self.snapshot_store):
                raise GraphError(
                    f"snapshot_store is the URL of an object store, such as s3://bucket/prefix, "
                    f"not {self.snapshot_store!r}"
                )
            self.snapshot_store = checkpoint_place(self.snapshot_store)
            self.checkpoint_dir = self.checkpoint_dir or working_folder(self.snapshot_store)

    def validate(self) -> None:
        """Raise a `GraphError` if a setting is out of range."""
        check_parallelism(self.parallelism, self.max_parallelism, "the job")
        if not 1 <= self.max_parallelism <= MAX_PARALLELISM:
            raise GraphError(
                f"max_parallelism must be between 1 and {MAX_PARALLELISM}, "
                f"not {self.max_parallelism}"
            )
        self._locate_snapshots()
        interval = self.checkpoint_interval_seconds
        if interval is not None and interval < 0.001:
            raise GraphError(f"the checkpoint interval must be at least 1 ms, not {interval} s")
        for name in ("batch_records", "batch_bytes", "channel_batches", "retained"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.straggler_factor > 1:
            raise GraphError(
                f"straggler_factor must be greater than 1, not {self.straggler_factor}: it is how "
                f"many times as long as its peers a slow task takes"
            )
