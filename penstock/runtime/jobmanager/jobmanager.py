"""The JobManager: runs one job until it ends, through all of its attempts.

The JobManager compiles the program and locks the job's folder. The package `snapshots` plans from
which snapshot the job starts, and the package `attempt` runs execution attempts. After each
failure, the restart strategy decides whether another attempt begins. The module `process` runs a
JobManager as a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from penstock.dataflow.config import JobConfig, RestartStrategy, RuntimeExecutionMode
from penstock.dataflow.config.checkpoint_retention import ExternalizedCheckpointRetention
from penstock.dataflow.errors import PenstockError, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.sink import CommitterContext
from penstock.runtime.control.failures import ConnectionLost
from penstock.runtime.control.job_code import unpack
from penstock.runtime.jobmanager.attempt.deployment import Deployment, Rejoining
from penstock.runtime.jobmanager.attempt.execution_attempt import ExecutionAttempt
from penstock.runtime.jobmanager.attempt.state_queries import StateQueries
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerLost
from penstock.runtime.jobmanager.job_settings import (
    JobOutcome,
    JobSettings,
    checkpoint_interval,
    keeps_state,
)
from penstock.runtime.jobmanager.partial_restart_planner import PartialRestartPlanner
from penstock.runtime.jobmanager.reporting.job_events import (
    GivingUp,
    JobEvent,
    JobFigures,
    JobSnapshotCompleted,
    Note,
    Restarted,
    Restarting,
    Resumed,
    SlotsChanged,
    StragglerFound,
)
from penstock.runtime.jobmanager.reporting.job_history import JobHistory
from penstock.runtime.jobmanager.reporting.metric_reports import MetricReports
from penstock.runtime.jobmanager.restart_backoff import DEFAULT, RestartBackoff
from penstock.runtime.jobmanager.restart_parts import (
    choose_regions,
    note_standby,
    require_worker_files,
)
from penstock.runtime.jobmanager.slot_scaling import SlotScaling
from penstock.runtime.jobmanager.snapshots.job_store import JobStore
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits, sinks_of
from penstock.runtime.jobmanager.snapshots.restore_planner import RestorePlan, RestorePlanner
from penstock.runtime.jobmanager.snapshots.restored_snapshot import RestoredSnapshot
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.runtime.jobmanager.snapshots.store_choice import note_local_output, open_store
from penstock.runtime.jobmanager.takeover.adoption import Adoption
from penstock.runtime.jobmanager.takeover.decision import TakeOverFailed
from penstock.runtime.jobmanager.takeover.rejoin_server import RejoinServer
from penstock.runtime.jobmanager.takeover.start import RunStart
from penstock.runtime.system.system import System
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.ownership import remove_attempts, remove_work
from penstock.snapshot.storage.store import Store


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
        store: Callable[[Path], Store] | None = None,
    ) -> None:
        self.code = unpack(packed_code, settings.parallelism)
        self.plan = compile_graph(self.code.graph, self.config)
        self._reports = MetricReports(self.plan, self.config)
        self.queries = StateQueries(self._observe)
        self._packed_code = packed_code
        self._system = system
        self._observe_event = observe
        self._interval = checkpoint_interval(self.config, settings)
        self._allow_dropped, self._sink_markers = settings.allow_dropped, settings.sink_markers
        self._python_files, self._python = settings.python_files, settings.python
        self._temporary: TemporaryFolder | None = None
        if self.config.checkpoint_dir is None:
            self._temporary = TemporaryFolder("job")
            root = self._temporary.path
        else:
            root = Path(self.code.folder) / self.config.checkpoint_dir
        files = open_store(root, self.config) if store is None else store(root)
        self.store = JobStore(files, system.offload, keeps_state(self.config, settings))
        sinks = sinks_of(self.code, self.plan)
        names = {info.uid: info.name for info in self.plan.operators}
        self._commits = PendingCommits(
            sinks, names, self.plan.former_uids, system.offload, self.store.record_confirmed
        )
        self._planner = RestorePlanner(
            self.code, self.plan, settings, self.store.files, sinks, self._commits
        )
        self._start = RunStart(self._planner, packed_code, system.offload, self._observe)
        self._lineage, self._history = "", JobHistory()
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
        #: Receives the offers of the workers of an earlier JobManager; None without a supervisor.
        self._rejoin_server: RejoinServer | None = None
        self._rejoining: Rejoining | None = None
        if settings.rejoin_address and self.config.rejoin_timeout_seconds:
            self._rejoining = Rejoining(
                settings.rejoin_address, settings.rejoin_token, self.config.rejoin_timeout_seconds
            )
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
            require_worker_files(self.code, self.plan, self.store.keep, self._system)
            await offload(self._planner.open_store)
            await offload(files.lock)
            try:
                outcome = await self._run(
                    *await self._start.plan(self._rejoin_server, self.plan.slots)
                )
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
                    await self._commits.close()
                    await offload(self._unless_replaced(partial(remove_work, files.paths)))
                    await offload(files.unlock)
        finally:
            self._system.transport.close()
            if self._temporary is not None:
                with trio.CancelScope(shield=True):
                    await offload(self._temporary.remove)

    def _unless_replaced(self, remove: Callable[[], None]) -> Callable[[], None]:
        """Return a function that removes working folders if this process has the lock.

        Otherwise another JobManager has taken the job over, and its workers use the folders.
        """

        def remove_own() -> None:
            with suppress(StoreError):
                self.store.files.require_lock()
                remove()

        return remove_own

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

    def take_workers_from(self, server: RejoinServer) -> None:
        """Let the workers of an earlier JobManager of this run offer their tasks to a server.

        If all of them are intact, the job continues with them.
        """
        self._rejoin_server = server

    def stop(self) -> None:
        """End the job with a last snapshot, if its snapshots hold state.

        In batch mode the job just ends. If a worker is lost meanwhile, the job is restarted once
        and then stopped. Any other failure ends it, and a stop during the pause before a restart.
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

    def profile(self) -> None:
        """Request the call stacks of all workers. There are none between two attempts."""
        if self._attempt is not None:
            self._attempt.profile()

    @property
    def _is_batch(self) -> bool:
        """Whether the job runs in batch mode, in which the only snapshot is the last one."""
        return self.config.runtime_mode is RuntimeExecutionMode.BATCH

    def current_figures(self) -> JobFigures:
        """Return the figures of the running job.

        They name the workers whose task loop has not reported for a while.
        """
        metrics = self._reports.metrics
        busy = [] if self._attempt is None else self._attempt.busy()
        return JobFigures(
            metrics.operators(),
            metrics.loops(),
            metrics.metrics(),
            busy,
            metrics.tasks(),
            metrics.subtasks(),
        )

    def outcome(self) -> JobOutcome:
        """Return the outcome of the job so far, with the figures of its report."""
        return JobOutcome(
            stopped=self._stopping,
            operators=self._reports.metrics.operators(),
            lineage=self._lineage,
            peak_bytes=list(self._reports.metrics.peaks.values()),
            loops=self._reports.metrics.loops(),
            metrics=self._reports.metrics.metrics(),
            **self._history.figures(),
        )

    def _observe(self, event: JobEvent) -> None:
        if isinstance(event, JobSnapshotCompleted):
            self._history.add_snapshot(event.figures)
        elif isinstance(event, StragglerFound):
            self._history.add_straggler(event.straggler)
        elif isinstance(event, SlotsChanged):
            self._history.add_rescale(event.slots, event.wanted, event.reason)
        self._observe_event(event)

    # ---- attempts

    async def _run(self, start: RestorePlan, adoption: Adoption | None) -> JobOutcome:
        """Run attempts until one finishes the job, or the job may not be restarted."""
        self.plan, self._lineage = start.plan, start.lineage
        self._reports = MetricReports(self.plan, self.config)
        self._commits.begin(self._committer_context(start), self._sink_markers)
        for event in start.events():
            if adoption is None or not isinstance(event, Resumed):
                self._observe(event)
        restored = start.restored
        if self._is_batch and restored is not None:
            restored.require_finished()
        if finished := start.own and restored is not None and restored.manifest.finished:
            self._observe(Note("the job had already read all of its input"))
        # The run that took the snapshot has processed records, with these sources and sinks.
        self._began = restored is not None
        publisher = self._publisher(start)
        backoff = RestartBackoff(self._strategy())
        regions = choose_regions(self.code, self.plan, self.store.keep, self._system, self._observe)
        note_standby(self.config, self._python, self._system, self._observe)
        note_local_output(self.code, self.plan, self._observe)
        scaling = SlotScaling(
            self.config, regions, self._planner.misfit, self._system, self._observe
        )
        if adoption is not None and len(regions) > 1:
            await adoption.refuse()
            await self._start.go_without_workers(start, "their regions restart alone")
            adoption = None
        while True:
            try:
                if self._history.restart_count:
                    restored = await self._restore_newest(publisher) or restored
                else:
                    await self._commits.commit()
                if not finished:
                    adopted, adoption = adoption, None
                    await self._run_attempt(publisher, backoff, scaling, restored, adopted)
                if finished or publisher.finished:
                    await self._commits.finish(self._lineage)
                return self.outcome()
            except TakeOverFailed as error:
                await self._start.go_without_workers(start, str(error))
            except PenstockError as error:
                if adoption is not None:
                    # The output of the newest snapshot could not be published.
                    await adoption.refuse()
                    adoption = None
                if self._attempt is not None and self._attempt.checkpoints.savepoint_pending:
                    self._savepoint_wanted = True  # the next attempt takes the savepoint
                self._attempt = None
                delay = scaling.restart_delay(error, self._system.clock())
                if delay is None:
                    delay = self._restart_delay(error, backoff, publisher)
                    if delay is None or (self._stopping and not self._restarts_to_stop(error)):
                        raise
                # A job that is stopping is restarted once, so only another request ends it.
                self._stop_requested = trio.Event()
                if await self._pause(error, delay):
                    return self.outcome()

    def _committer_context(self, start: RestorePlan) -> CommitterContext:
        """Return what the committers of all sinks must know of this run."""
        restored = None if start.restored is None else start.restored.manifest
        age = 0 if restored is None else self._system.wall_clock() - restored.created_ms
        return CommitterContext(
            name="",
            lineage=start.lineage,
            restored=restored.number if restored is not None and start.own else 0,
            age_seconds=age / 1000,
            staging=start.staging,
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
        self,
        publisher: SnapshotPublisher,
        backoff: RestartBackoff,
        scaling: SlotScaling,
        restored: RestoredSnapshot | None,
        adoption: Adoption | None,
    ) -> None:
        """Run one attempt until the job ends. Raise a `PenstockError` if it fails.

        Arguments:
            publisher: publishes the snapshots of the run.
            backoff: decides whether a region restarts.
            scaling: chooses the execution graph of the attempt.
            restored: the snapshot to start from.
            adoption: the workers of an earlier JobManager to continue with; None starts new ones.
        """
        try:
            self.plan, regions = scaling.plans(None if restored is None else restored.manifest)
            numbers = await self.store.reserve_numbers(len(regions))
            publisher.begin(numbers.start, self.plan)
            attempts = [*numbers[: len(regions)]]
            if adoption is not None:
                attempts = [adoption.decision.attempt]
            # No commit is pending now. So output that older attempts have staged and that still
            # exists belongs to no snapshot.
            await self._commits.clean(self._lineage, before_attempt=attempts[0])
            parts = [
                self._deployment(publisher, number, plan, restored, scaling.missing(plan))
                for number, plan in zip(attempts, regions, strict=True)
            ]
            attempt = ExecutionAttempt(
                replace(parts[0], plan=self.plan),
                parts,
                numbers[len(parts) :],
                self._system,
                publisher,
                self._reports,
                self.queries,
                self._observe,
                adoption,
            )
            following, taken_over = numbers[len(parts)], adoption is not None
            restarts = PartialRestartPlanner(
                publisher,
                scaling,
                self.store,
                self._commits,
                self._system.clock,
                self._lineage,
                restored,
                partial(self._delay_of_part, backoff, publisher),
                self._pause,
                partial(self._deployment, publisher),
                self._runs_again,
            )
            await attempt.run(
                partial(self._attempt_runs, attempt, scaling, restored, following, taken_over),
                restarts,
                partial(self._grow, publisher, scaling),
            )
        finally:
            if adoption is not None:
                with trio.CancelScope(shield=True):
                    await adoption.refuse()

    def _deployment(
        self,
        publisher: SnapshotPublisher,
        number: int,
        plan: ExecutionGraph,
        restored: RestoredSnapshot | None,
        missing_slots: int,
    ) -> Deployment:
        return Deployment(
            number=number,
            ordinal=self._history.restart_count,
            code=self.code,
            packed_code=self._packed_code,
            plan=plan,
            types=publisher.types.to_wire(),
            restored=restored,
            lineage=self._lineage,
            root=str(self.store.files.paths.root),
            keep=self.store.keep,
            allow_dropped=self._allow_dropped,
            interval=self._interval,
            missing_slots=missing_slots,
            python_files=self._python_files,
            python=self._python,
            rejoin=None if plan.isolated else self._rejoining,
        )

    def _attempt_runs(
        self,
        attempt: ExecutionAttempt,
        scaling: SlotScaling,
        restored: RestoredSnapshot | None,
        next_number: int,
        taken_over: bool,
    ) -> None:
        """Record that an attempt processes records, and pass waiting requests to it."""
        self._attempt, self._began, self._attempted = attempt, True, True
        scaling.began()
        if taken_over:
            pids = ", ".join(map(str, attempt.pids))
            text = f"the workers of the JobManager before (pids {pids}) are taken over"
            self._observe(Note(f"{text}; the next snapshot has the number {next_number}"))
        self._runs_again(restored, next_number)
        if self._savepoint_wanted:
            self._savepoint_wanted = False
            attempt.checkpoints.savepoint()
        if self._stopping:
            attempt.checkpoints.stop()

    def _runs_again(
        self, restored: RestoredSnapshot | None, next_number: int, region: str | None = None
    ) -> None:
        """Report that a region, or the job, processes records again after a restart."""
        details = {
            "snapshot": None if restored is None else restored.manifest.number,
            "log_records": 0 if restored is None else restored.log_records,
            "next_number": next_number,
        }
        restart = self._history.runs_again(self._system.clock(), details, region)
        if restart is not None:
            self._observe(Restarted(restart))

    # ---- restarts

    def _delay_of_part(
        self, backoff: RestartBackoff, publisher: SnapshotPublisher, error: PenstockError
    ) -> float:
        """Return the seconds to wait before a part of the job restarts.

        Raise the error if the part cannot restart alone.
        """
        delay = self._restart_delay(error, backoff, publisher)
        if delay is None or self._stopping:
            raise error
        return delay

    def _grow(
        self, publisher: SnapshotPublisher, scaling: SlotScaling, found: Mapping[int, int]
    ) -> str | None:
        """Return why the job restarts now with more workers; None if it does not."""
        return None if self._stopping else scaling.grow(found, publisher.newest)

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

    async def _pause(
        self,
        error: PenstockError,
        delay: float,
        region: str | None = None,
        remove: Callable[[JobPaths], None] = remove_attempts,
    ) -> bool:
        """Wait before a restart, and return whether the job was stopped meanwhile.

        Arguments:
            error: the failure.
            delay: the time to wait, in seconds.
            region: the name of the part that has failed; None if it is the whole job.
            remove: removes the working folders of the part.
        """
        stopped = self._stop_requested
        self._history.add_restart(str(error), delay, self._system.clock(), region)
        self._observe(Restarting(error, delay, region))
        # The failed attempt may have filled the disk with its files, for example with spilled
        # records of a loop. So its files are removed before the restart.
        work = partial(remove, self.store.files.paths)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._system.offload, self._unless_replaced(work))
            with trio.move_on_after(delay):
                await stopped.wait()
        return stopped.is_set()

    async def _restore_newest(self, publisher: SnapshotPublisher) -> RestoredSnapshot | None:
        """Return the newest snapshot of this run, or None if there is none."""
        if self._system.revive is not None:
            # This comes first, since commits and workers may need what it restores.
            await self._system.offload(self._system.revive)
        return await publisher.restore_newest()
