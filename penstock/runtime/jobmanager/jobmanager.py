"""The JobManager: runs one job until it ends, through all of its attempts.

The JobManager compiles the program and locks the job's folder. The package `snapshots` plans from
which snapshot the job starts, and the package `attempt` runs execution attempts. After each
failure, the restart strategy decides whether another attempt begins. The module `process` runs a
JobManager as a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from penstock.dataflow.config import (
    CheckpointingMode,
    JobConfig,
    RestartStrategy,
    RuntimeExecutionMode,
)
from penstock.dataflow.config.checkpoint_retention import ExternalizedCheckpointRetention
from penstock.dataflow.errors import GraphError, PenstockError, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.sink import Sink
from penstock.runtime.control.failures import ConnectionLost
from penstock.runtime.control.job_code import JobCode, unpack
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.execution_attempt import ExecutionAttempt
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from penstock.runtime.jobmanager.reporting.event_time_reports import EventTimeReports
from penstock.runtime.jobmanager.reporting.job_events import (
    GivingUp,
    JobEvent,
    JobFigures,
    JobSnapshotCompleted,
    Note,
    Restarted,
    Restarting,
)
from penstock.runtime.jobmanager.reporting.job_history import JobHistory
from penstock.runtime.jobmanager.reporting.job_metrics import JobMetrics
from penstock.runtime.jobmanager.restart_backoff import DEFAULT, RestartBackoff
from penstock.runtime.jobmanager.snapshots.job_store import JobStore
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.jobmanager.snapshots.restore_planner import RestorePlan, RestorePlanner
from penstock.runtime.jobmanager.snapshots.restored_snapshot import RestoredSnapshot
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.system.system import System
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.ownership import remove_attempts, remove_work
from penstock.snapshot.storage.store import Store

#: The interval of commits, in seconds, in a job without checkpoints that sends results to its
#: client.
COMMIT_SECONDS = 0.2


class JobManager:
    """Runs one job.

    Arguments:
        packed_code: the job's code, from `job_code.pack`.
        system: the clock, connections, processes and threads that the job uses.
        settings: the client's settings for this run.
        observe: called with each event of the job.
        store: returns the snapshot store of a job folder. A simulation has a store of its own.
    """

    def __init__(
        self,
        packed_code: bytes,
        system: System,
        settings: JobSettings,
        observe: Callable[[JobEvent], None] = lambda _: None,
        store: Callable[[Path], Store] = Store,
    ) -> None:
        self.code = unpack(packed_code)
        self.plan = compile_graph(self.code.graph, self.config)
        self.metrics = JobMetrics(self.plan)
        self._event_time = self._event_time_reports()
        self._packed_code = packed_code
        self._system = system
        self._observe_event = observe
        self._interval = _interval(self.config, settings)
        self._allow_dropped = settings.allow_dropped
        self._python_files, self._python = settings.python_files, settings.python
        self._temporary: TemporaryFolder | None = None
        if self.config.checkpoint_dir is None:
            self._temporary = TemporaryFolder("job")
            root = self._temporary.path
        else:
            root = Path(self.code.folder) / self.config.checkpoint_dir
        self.store = JobStore(store(root), system.offload, _keeps_state(self.config, settings))
        sinks = _sinks(self.code, self.plan)
        names = {info.uid: info.name for info in self.plan.operators}
        self._commits = PendingCommits(
            sinks, names, self.plan.former_uids, system.offload, self.store.record_confirmed
        )
        self._planner = RestorePlanner(
            self.code, self.plan, settings, self.store.files, sinks, self._commits
        )
        self._lineage = ""
        self._history = JobHistory()
        self._attempt: ExecutionAttempt | None = None
        #: Whether an attempt of this run, or of the run that it resumes, has processed records.
        self._began = False
        #: Whether an attempt of this run has processed records.
        self._attempted = False
        self._stopping = False
        #: Whether a job that was stopping was restarted, which happens at most once.
        self._restarted_to_stop = False
        #: The event that `stop` sets. It ends the pause before a restart.
        self._stop_requested = trio.Event()
        #: Whether the next attempt must take a savepoint that was requested before.
        self._savepoint_wanted = False

    @property
    def config(self) -> JobConfig:
        """Return the configuration of the job."""
        return self.code.config

    async def run(self) -> JobOutcome:
        """Run the job until it ends. Raise the `PenstockError` that made it fail."""
        offload, files = self._system.offload, self.store.files
        try:
            # Each worker needs descriptors for its process and for two connections: one for
            # messages, and one for heartbeats.
            require_open_files(PROCESS_FILES + 4 * self.plan.slots)
            await offload(lambda: files.open(self.config.name))
            await offload(files.lock)
            try:
                outcome = await self._run(await offload(self._planner.plan))
                if not outcome.stopped and self._retention.deletes_when_cancelled:
                    await self._remove_checkpoints()
                return outcome
            except PenstockError:
                # A job that fails before its first attempt, for example because its program does
                # not fit the snapshot, has no snapshots of its own.
                if self._attempted and self._retention.deletes_when_failed:
                    await self._remove_checkpoints()
                raise
            finally:
                with trio.CancelScope(shield=True):
                    await offload(partial(remove_work, files.paths))
                    await offload(files.unlock)
        finally:
            self._system.transport.close()
            if self._temporary is not None:
                with trio.CancelScope(shield=True):
                    await offload(self._temporary.remove)

    @property
    def _retention(self) -> ExternalizedCheckpointRetention:
        """Whether checkpoints are kept at the end of the job."""
        return self.config.retention or ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    async def _remove_checkpoints(self) -> None:
        """Remove the checkpoints at the end of the job. A failure is only noted."""
        try:
            await self.store.call(self.store.files.remove_checkpoints)
        except StoreError as error:
            self._observe(Note(f"the checkpoints could not be removed: {error}"))

    def stop(self) -> None:
        """End the job with a last snapshot, if its snapshots hold state.

        In batch mode there is no such snapshot: the job ends, and publishes nothing.
        If a worker is lost meanwhile, the job is restarted once and then stopped. Any other failure
        ends the job. During the pause before a restart, the job ends without a last snapshot.
        """
        self._stopping = True
        self._stop_requested.set()
        if self._attempt is not None:
            self._attempt.checkpoints.stop()

    def savepoint(self) -> None:
        """Take a snapshot that retention never removes. A job in batch mode takes none."""
        if self._is_batch:
            self._observe(Note("a job in batch mode takes no savepoints; cancel it, or wait"))
        elif self._attempt is not None:
            self._attempt.checkpoints.savepoint()
        else:
            self._savepoint_wanted = True

    @property
    def _is_batch(self) -> bool:
        """Whether the job runs in batch mode, in which the only snapshot is the last one."""
        return self.config.runtime_mode is RuntimeExecutionMode.BATCH

    def current_figures(self) -> JobFigures:
        """Return the figures of the running job.

        They name the workers whose task loop has not reported for a while.
        """
        metrics = self.metrics
        busy = [] if self._attempt is None else self._attempt.workers.busy()
        return JobFigures(metrics.operators(), metrics.loops(), metrics.metrics(), busy)

    def outcome(self) -> JobOutcome:
        """Return the outcome of the job so far, with the figures of its report."""
        return JobOutcome(
            stopped=self._stopping,
            operators=self.metrics.operators(),
            lineage=self._lineage,
            peak_bytes=list(self.metrics.peaks.values()),
            loops=self.metrics.loops(),
            metrics=self.metrics.metrics(),
            **self._history.figures(),
        )

    def _observe(self, event: JobEvent) -> None:
        if isinstance(event, JobSnapshotCompleted):
            self._history.add_snapshot(event.figures)
        self._observe_event(event)

    def _event_time_reports(self) -> EventTimeReports:
        # In batch mode, all windows fire at the end of the input.
        stall_seconds = 0.0 if self._is_batch else self.config.watermark_warning_seconds
        return EventTimeReports(self.plan, stall_seconds)

    # ---- attempts

    async def _run(self, start: RestorePlan) -> JobOutcome:
        """Run attempts until one finishes the job, or the job may not be restarted."""
        self.plan, self._lineage = start.plan, start.lineage
        self.metrics = JobMetrics(self.plan)
        self._event_time = self._event_time_reports()
        for event in start.events():
            self._observe(event)
        restored = start.restored
        if self._is_batch and restored is not None:
            self._require_finished(restored)
        if finished := start.own and restored is not None and restored.manifest.finished:
            self._observe(Note("the job had already read all of its input"))
        # The run that took the snapshot has processed records, with these sources and sinks.
        self._began = restored is not None
        publisher = self._publisher(start)
        backoff = RestartBackoff(self._strategy())
        while True:
            try:
                if self._history.restart_count:
                    restored = await self._restore_newest(publisher) or restored
                else:
                    await self._commits.commit()
                if not finished:
                    await self._run_attempt(publisher, restored)
                if finished or publisher.finished:
                    await self._commits.finish(self._lineage)
                return self.outcome()
            except PenstockError as error:
                if self._attempt is not None and self._attempt.checkpoints.savepoint_pending:
                    self._savepoint_wanted = True  # the next attempt takes the savepoint
                self._attempt = None
                delay = self._restart_delay(error, backoff, publisher)
                if delay is None or (self._stopping and not self._restarts_to_stop(error)):
                    raise
                if await self._pause(error, delay):
                    return self.outcome()

    def _require_finished(self, restored: RestoredSnapshot) -> None:
        """Check that a job in batch mode does not resume in the middle of its input."""
        if not restored.manifest.finished:
            raise GraphError(
                f"a job in batch mode reads all of its input, and cannot resume from snapshot "
                f"{restored.manifest.number}, which was taken in the middle: run it without "
                f"--resume, or in streaming mode"
            )

    def _publisher(self, start: RestorePlan) -> SnapshotPublisher:
        return SnapshotPublisher(
            self.config,
            self.store,
            self._commits,
            start.plan,
            start.types,
            lineage=start.lineage,
            parent=start.parent,
            own=start.own,
            adopted=start.adopted,
        )

    async def _run_attempt(
        self, publisher: SnapshotPublisher, restored: RestoredSnapshot | None
    ) -> None:
        """Run one attempt until the job ends. Raise a `PenstockError` if it fails."""
        numbers = await self.store.reserve_numbers()
        publisher.begin(numbers.start)
        # No commit is pending now. So output that older attempts have staged and that still exists
        # belongs to no snapshot.
        await self._commits.clean(self._lineage, before_attempt=numbers.start)
        deployment = Deployment(
            number=numbers.start,
            ordinal=self._history.restart_count,
            code=self.code,
            packed_code=self._packed_code,
            plan=self.plan,
            types=publisher.types.to_wire(),
            restored=restored,
            lineage=self._lineage,
            root=str(self.store.files.paths.root),
            keep=self.store.keep,
            allow_dropped=self._allow_dropped,
            interval=self._interval,
            python_files=self._python_files,
            python=self._python,
        )
        attempt = ExecutionAttempt(
            deployment,
            numbers[1:],
            self._system,
            publisher,
            self.metrics,
            self._event_time,
            self._observe,
        )
        await attempt.run(partial(self._attempt_runs, attempt, restored, numbers[1:].start))

    def _attempt_runs(
        self, attempt: ExecutionAttempt, restored: RestoredSnapshot | None, next_number: int
    ) -> None:
        """Record that an attempt processes records, and pass waiting requests to it."""
        self._attempt, self._began, self._attempted = attempt, True, True
        details = {
            "snapshot": None if restored is None else restored.manifest.number,
            "log_records": 0 if restored is None else restored.log_records,
            "next_number": next_number,
        }
        restart = self._history.runs_again(self._system.clock(), details)
        if restart is not None:
            self._observe(Restarted(restart))
        if self._savepoint_wanted:
            self._savepoint_wanted = False
            attempt.checkpoints.savepoint()
        if self._stopping:
            attempt.checkpoints.stop()

    # ---- restarts

    def _strategy(self) -> RestartStrategy | None:
        if self.config.restart is not None:
            return self.config.restart
        takes_snapshots = self.store.keep and self._interval is not None
        return DEFAULT if takes_snapshots or self._is_batch else None

    def _restart_delay(
        self, error: PenstockError, backoff: RestartBackoff, publisher: SnapshotPublisher
    ) -> float | None:
        """Return the seconds to wait before a restart, or None if the job must end."""
        rewindable = all(
            operator.function.rewindable
            for operator in self.code.graph.operators
            if operator.spec.is_source
        )
        decision = backoff.failed(
            self._system.clock(),
            error,
            started=self._began,
            progress=publisher.progress(rewindable, self._history.restart_count),
            snapshot=None if publisher.newest is None else publisher.newest.number,
        )
        if decision.reason is not None:
            self._observe(GivingUp(decision.reason))
        return decision.delay_seconds

    def _restarts_to_stop(self, error: PenstockError) -> bool:
        """Return whether a stopping job is restarted after a failure, to be stopped then.

        This happens once at most, and only if a worker was lost.
        """
        if self._restarted_to_stop:
            return False
        self._restarted_to_stop = isinstance(error, WorkerLost | ConnectionLost)
        return self._restarted_to_stop

    async def _pause(self, error: PenstockError, delay: float) -> bool:
        """Wait before a restart, and return whether the job was stopped meanwhile."""
        self._stop_requested = trio.Event()
        self._history.add_restart(str(error), delay, self._system.clock())
        self._observe(Restarting(error, delay))
        async with trio.open_nursery() as nursery:
            # The failed attempt may have filled the disk with its files, for example with spilled
            # records of a loop. So its files are removed before the restart.
            remove = partial(remove_attempts, self.store.files.paths)
            nursery.start_soon(self._system.offload, remove)
            with trio.move_on_after(delay):
                await self._stop_requested.wait()
        return self._stop_requested.is_set()

    async def _restore_newest(self, publisher: SnapshotPublisher) -> RestoredSnapshot | None:
        """Return the newest snapshot of this run, or None if there is none."""
        if self._system.revive is not None:
            # This comes first, since commits and workers may need what it restores.
            await self._system.offload(self._system.revive)
        return await publisher.restore_newest()


def _interval(config: JobConfig, settings: JobSettings) -> float | None:
    """Return the seconds between two checkpoints; None if they are not periodic."""
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        return None
    interval = config.checkpoint_interval_seconds
    if config.checkpointing_mode is CheckpointingMode.NONE:
        interval = None
    return COMMIT_SECONDS if settings.collecting and interval is None else interval


def _keeps_state(config: JobConfig, settings: JobSettings) -> bool:
    """Return whether the snapshots of a job hold state, or only commit output."""
    if config.checkpoint_dir is not None or config.checkpoint_interval_seconds is not None:
        return True
    if config.runtime_mode is RuntimeExecutionMode.BATCH:
        return True  # the snapshot of the end is not taken again if its commit is repeated
    # After a restart, the job must not produce output again that was committed before. So each
    # commit needs a snapshot with state. If the job has no folder, a temporary one is used.
    restarts = config.restart is not None and config.restart.kind != "none"
    return settings.collecting and restarts


def _sinks(code: JobCode, plan: ExecutionGraph) -> dict[str, Sink]:
    """Return the sinks of a program, keyed by the uid of the operator."""
    operators = {operator.id: operator for operator in code.graph.operators}
    return {info.uid: operators[info.id].function for info in plan.operators if info.spec.is_sink}
