"""Plan the restarts of parts of a job, while its other parts run: regions, and single tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.rescaling import Rescaling
from penstock.runtime.jobmanager.attempt.task_restarts import RestartedTasks
from penstock.runtime.jobmanager.slot_scaling import SlotScaling
from penstock.runtime.jobmanager.snapshots.job_store import JobStore
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.jobmanager.snapshots.restored_snapshot import RestoredSnapshot
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.ownership import remove_attempt, remove_spill, remove_task

#: Returns the deployment of an attempt: its number, its execution graph, the snapshot that it
#: restores and the number of missing slots.
Deploy = Callable[[int, ExecutionGraph, RestoredSnapshot | None, int], Deployment]


class PauseBeforeRestart(Protocol):
    """Waits before a restart. The arguments are those of `JobManager._pause`."""

    def __call__(
        self,
        error: PenstockError,
        delay: float,
        region: str | None = None,
        remove: Callable[[JobPaths], None] = ...,
    ) -> Awaitable[bool]:
        """Wait, and return whether the job was stopped meanwhile."""


class RunsAgain(Protocol):
    """Reports a restart. The arguments are those of `JobManager._runs_again`."""

    def __call__(
        self, restored: RestoredSnapshot | None, next_number: int, region: str | None = None
    ) -> None:
        """Report that a part of the job, or all of it, processes records again."""


class PartialRestartPlanner:
    """Plans the restarts of parts of a job during one attempt.

    Arguments:
        publisher: publishes the snapshots of the job.
        scaling: decides what follows if the workers of a region cannot be started.
        store: the store of the job's snapshots.
        commits: commits the output of sinks.
        clock: returns the time in seconds.
        lineage: the lineage of the run's snapshots.
        restored: the snapshot from which the attempt has started.
        delay: returns the seconds to wait after a failure. It raises the error if the part cannot
            restart alone.
        pause: waits before a restart.
        deploy: returns a deployment.
        runs_again: reports that a part processes records again.
    """

    def __init__(
        self,
        publisher: SnapshotPublisher,
        scaling: SlotScaling,
        store: JobStore,
        commits: PendingCommits,
        clock: Callable[[], float],
        lineage: str,
        restored: RestoredSnapshot | None,
        delay: Callable[[PenstockError], float],
        pause: PauseBeforeRestart,
        deploy: Deploy,
        runs_again: RunsAgain,
    ) -> None:
        self._publisher, self._scaling = publisher, scaling
        self._store, self._commits = store, commits
        self._clock, self._lineage, self._restored = clock, lineage, restored
        self._delay, self._pause = delay, pause
        self._deploy, self._runs_again = deploy, runs_again

    async def region(self, failed: Deployment, error: PenstockError) -> tuple[Deployment, range]:
        """Wait until a region that has failed may start again; see `PartRestarts`."""
        delay = self._scaling.restart_delay(error, self._clock())
        if self._scaling.changes:
            raise Rescaling(str(error))
        if delay is None:
            delay = self._delay(error)
        remove = partial(remove_attempt, attempt=failed.number)
        await self._pause(error, delay, failed.region, remove)
        uids = failed.plan.uids()
        restored, numbers = await self._restore(uids)
        # No part of the region runs, so staged output of its older attempts that still exists
        # belongs to no snapshot.
        await self._commits.clean(self._lineage, numbers.start, uids)
        part = self._deploy(numbers.start, failed.plan, restored, failed.missing_slots)
        return part, numbers[1:]

    async def tasks(self, failed: RestartedTasks, error: PenstockError) -> tuple[Deployment, range]:
        """Wait until some tasks may start again; see `PartRestarts`.

        The output that they have staged since the snapshot belongs to no snapshot. It is removed
        with the next attempt of the region, or at the end of the job, because the other subtasks of
        the same sinks continue.
        """
        plan = failed.deployment.plan

        def remove(paths: JobPaths) -> None:
            for (chain, subtask), attempt in failed.attempts.items():
                for node in plan.chains[chain].walk():
                    remove_task(paths, attempt, node.operator.uid, subtask)
                for channel in plan.feedback_channels(chain, subtask):
                    remove_spill(paths, attempt, channel)

        await self._pause(error, self._delay(error), failed.name, remove)
        restored, numbers = await self._restore(failed.uids)
        return self._deploy(numbers.start, plan, restored, 0), numbers[1:]

    async def _restore(self, uids: frozenset[str]) -> tuple[RestoredSnapshot | None, range]:
        """Return the newest snapshot for some operators, and numbers for new snapshots."""
        restored = await self._publisher.restore_part(uids) or self._restored
        return restored, await self._store.reserve_numbers()

    def region_runs(self, part: Deployment, numbers: range) -> None:
        """Record that a region that has failed processes records again."""
        self._scaling.began()
        self._runs_again(part.restored, numbers.start, part.region)

    def tasks_run(self, failed: RestartedTasks, part: Deployment, numbers: range) -> None:
        """Record that tasks that have failed have sent all that others had processed."""
        self._runs_again(part.restored, numbers.start, failed.name)
