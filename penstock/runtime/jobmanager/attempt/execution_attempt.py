"""One execution attempt: from the start of all regions to the end of the job or its failure.

If the job is one region, a failure ends the attempt, and the JobManager starts another one. If it
has several, a region that fails restarts alone, while the others run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control import messages as m
from penstock.runtime.control.failures import first_of, pinned
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.checkpoint_driver import CheckpointDriver
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.region import RunningRegions
from penstock.runtime.jobmanager.attempt.region_attempt import RegionAttempt
from penstock.runtime.jobmanager.attempt.rescaling import Rescaling
from penstock.runtime.jobmanager.attempt.state_queries import StateQueries
from penstock.runtime.jobmanager.attempt.task_restarts import RestartedTasks
from penstock.runtime.jobmanager.reporting.job_events import (
    AttemptRunning,
    JobEvent,
    WorkersStarted,
)
from penstock.runtime.jobmanager.reporting.metric_reports import MetricReports
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.runtime.jobmanager.takeover.adoption import Adoption
from penstock.runtime.jobmanager.takeover.decision import TakeOver
from penstock.runtime.system.system import System

#: Decides whether the job restarts with more workers, given how many more of each region can be
#: started. It returns the reason, or None if the job does not restart now.
Grow = Callable[[Mapping[int, int]], str | None]


class PartRestarts(Protocol):
    """Decides on restarts of parts of a job, while the other parts run."""

    async def region(self, failed: Deployment, error: PenstockError) -> tuple[Deployment, range]:
        """Wait until a region that has failed may start again.

        Return its new deployment, and the snapshot numbers to use when it has started. Raise a
        `PenstockError` if the whole attempt must end.
        """

    async def tasks(self, failed: RestartedTasks, error: PenstockError) -> tuple[Deployment, range]:
        """Wait until some tasks may start again, and return the same as `region` for them.

        Raise a `PenstockError` if the region must end.
        """

    def region_runs(self, part: Deployment, numbers: range) -> None:
        """Record that a region that has failed processes records again."""

    def tasks_run(self, failed: RestartedTasks, part: Deployment, numbers: range) -> None:
        """Record that tasks that have failed have sent all that others had processed."""


class ExecutionAttempt:
    """Runs one attempt of a job.

    While the attempt runs, `checkpoints` takes savepoints and stops it.

    Arguments:
        deployment: the data of the job that the attempt deploys.
        regions: for each region its part of the deployment, with an attempt number of its own.
        numbers: the snapshot numbers that are reserved for its snapshots.
        system: the clock, connections, processes and threads that the attempt uses.
        publisher: publishes snapshots and commits their output.
        reports: takes in the metrics that the workers report.
        queries: passes queries of keyed state to the workers.
        observe: called with each event of the job.
        adoption: the workers of an earlier JobManager, which already run the attempt; None starts
            new workers.
    """

    def __init__(
        self,
        deployment: Deployment,
        regions: Sequence[Deployment],
        numbers: range,
        system: System,
        publisher: SnapshotPublisher,
        reports: MetricReports,
        queries: StateQueries,
        observe: Callable[[JobEvent], None],
        adoption: Adoption | None = None,
    ) -> None:
        self._deployment, self._parts = deployment, regions
        self._adoption = adoption
        self._system = system
        self._reports = reports
        self._queries = queries
        self._observe = observe
        self._loop = AttemptLoop()
        self._running = RunningRegions()
        self.checkpoints = CheckpointDriver(
            deployment,
            numbers,
            publisher,
            self._running,
            self._loop,
            observe,
            system.clock,
            reports.metrics.captured,
            self._snapshot_completed,
        )
        self._grow: Grow = lambda _: None
        self._restarts_of_parts: PartRestarts
        #: How many of the missing workers of each region can be started, by its first chain.
        self._startable: dict[int, int] = {}
        #: The newest attempt of each region, by its first chain, and the scopes of restarts.
        self._attempts: dict[int, RegionAttempt] = {}
        self._restarts: set[trio.CancelScope] = set()
        #: The attempts of regions that are ready before the first records are processed.
        self._ready: list[RegionAttempt] = []
        self._begun = self._over = False
        #: The number of regions whose workers are still being launched for the first time.
        self._launching = len(regions)

    async def run(
        self,
        begun: Callable[[], None],
        parts: PartRestarts,
        grow: Grow,
    ) -> None:
        """Run the attempt until the job ends. Raise a `PenstockError` if it fails.

        Arguments:
            begun: called when all tasks process records.
            parts: decides on restarts of regions and of single tasks.
            grow: called after a snapshot, if missing workers can be started again.
        """
        self._grow, self._restarts_of_parts = grow, parts
        self._queries.begin_attempt(self._running, self._deployment.types)
        try:
            async with trio.open_nursery() as background:
                self._loop.open(background)
                try:
                    async with trio.open_nursery() as nursery:
                        for part in self._parts:
                            nursery.start_soon(self._run_region, part, begun)
                        await self._loop.run()
                        self._finish()
                finally:
                    background.cancel_scope.cancel()
        except* PenstockError as group:
            raise pinned(first_of(group)) from None
        finally:
            self._queries.end_attempt()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the workers of all regions, in the order of the regions."""
        attempts = [attempt for _, attempt in sorted(self._attempts.items())]
        return [*chain.from_iterable(attempt.workers.pids for attempt in attempts)]

    def profile(self) -> None:
        """Request the call stacks of the workers of all regions."""
        for attempt in self._attempts.values():
            attempt.workers.send_all(m.SampleStacks())

    def busy(self) -> list[int]:
        """Return the slots of workers whose task loop has not reported for a while."""
        busy = chain.from_iterable(one.workers.busy() for one in self._attempts.values())
        return sorted(set(busy))

    async def _run_region(self, part: Deployment, begun: Callable[[], None]) -> None:
        """Run a region until the job ends, through all of its attempts."""
        start, adoption = partial(self._start_first, begun=begun), self._adoption
        if adoption is not None:
            start = partial(self._resume, decision=adoption.decision, begun=begun)
        while not self._over:
            attempt = RegionAttempt(
                part,
                self._system,
                self.checkpoints,
                self._reports,
                self._queries,
                self._observe,
                adoption,
            )
            adoption = None
            self._attempts[part.plan.tasks()[0][0]] = attempt
            try:
                await attempt.run(self._launched, start)
                return
            except PenstockError as error:
                if len(self._parts) == 1 or not self._begun:
                    raise
                if attempt.region in self._running:
                    self.checkpoints.lost(attempt.region)
                self._queries.lost(attempt.region)
                with trio.CancelScope() as scope:
                    self._restarts.add(scope)
                    await self.checkpoints.settled()
                    part, numbers = await self._restarts_of_parts.region(part, error)
                self._restarts.discard(scope)
                if scope.cancelled_caught:
                    return
            start = partial(self._start_again, numbers=numbers)

    def _launched(self) -> None:
        self._launching -= 1
        if self._launching <= 0:
            self._observe(WorkersStarted(self.pids))

    def _start_first(self, attempt: RegionAttempt, begun: Callable[[], None]) -> None:
        """Start the tasks of all regions when all of them are ready."""
        self._ready.append(attempt)
        if len(self._ready) < len(self._parts):
            return
        self._begun = True
        self._observe(AttemptRunning(self._deployment.ordinal))
        for one in self._ready:
            self._start_tasks(one)
            self._running.add(one.region)
            one.watch_for_slots(self._slots_found)
        # The first checkpoint interval begins now. The time to start the workers does not count.
        self.checkpoints.start()
        self._stand_by(self._ready[0])
        begun()

    def _start_tasks(self, attempt: RegionAttempt) -> None:
        """Start the tasks of a region, and let single tasks restart."""

        def tasks_run(restarted: RestartedTasks, deployment: Deployment, numbers: range) -> None:
            self._stand_by(attempt)
            self._restarts_of_parts.tasks_run(restarted, deployment, numbers)

        attempt.start_tasks(self._restarts_of_parts.tasks, tasks_run)

    def _resume(
        self, attempt: RegionAttempt, decision: TakeOver, begun: Callable[[], None]
    ) -> None:
        """Continue with tasks that an earlier JobManager has started. The job is one region."""
        self._begun = True
        self._observe(AttemptRunning(self._deployment.ordinal))
        self._running.add(attempt.region)
        self.checkpoints.resume(attempt.region, decision)
        self._stand_by(attempt)
        begun()

    def _start_again(self, attempt: RegionAttempt, numbers: range) -> None:
        """Start the tasks of a region that has failed before."""
        self._start_tasks(attempt)
        self.checkpoints.returned(attempt.region, numbers)
        attempt.watch_for_slots(self._slots_found)
        self._stand_by(attempt)
        self._restarts_of_parts.region_runs(attempt.deployment, numbers)

    def _slots_found(self, attempt: RegionAttempt, count: int) -> None:
        """Record how many of the missing workers of a region can be started."""
        region = attempt.deployment.plan.running_chains[0].id
        self._startable[region] = count

    def _snapshot_completed(self) -> None:
        """End the attempt after a snapshot, if the job can continue with more workers."""
        if any(self._startable.values()) and (reason := self._grow(self._startable)):
            self._loop.fail(Rescaling(reason))

    def _stand_by(self, attempt: RegionAttempt) -> None:
        """Replace the standby processes that have become workers."""
        count = self._deployment.config.restart_standby
        if count:
            self._loop.spawn(attempt.workers.stand_by, count)

    def _finish(self) -> None:
        """End all regions. Those that are about to restart are not started any more."""
        self._over = True
        for scope in self._restarts:
            scope.cancel()
        for attempt in self._attempts.values():
            attempt.finish()
