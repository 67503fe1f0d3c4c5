"""One attempt to run a region: from the start of its workers to its end or failure.

A failure always ends the attempt. If all regions of the job are one, it ends the attempt of the
job; otherwise the region can restart alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from penstock.dataflow.errors import PenstockError, ProtocolError
from penstock.runtime.control import messages as m
from penstock.runtime.control.failures import failure_of, first_of, pinned
from penstock.runtime.control.packing import malformed
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.checkpoint_driver import CheckpointDriver
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.region import Region
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.attempt.split_server import SplitServer
from penstock.runtime.jobmanager.attempt.state_queries import StateQueries
from penstock.runtime.jobmanager.attempt.task_restarts import (
    RestartTasks,
    TaskRestarts,
    TasksRun,
)
from penstock.runtime.jobmanager.attempt.watermark_alignment import AlignmentCoordinator
from penstock.runtime.jobmanager.attempt.worker_pool import WorkerPool
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, WorkerProfiled
from penstock.runtime.jobmanager.reporting.metric_reports import MetricReports
from penstock.runtime.jobmanager.takeover.adoption import Adoption
from penstock.runtime.system.system import System


class RegionAttempt:
    """Runs one attempt of a region.

    Arguments:
        deployment: the data that the attempt deploys on its workers.
        system: the clock, connections, processes and threads that the attempt uses.
        checkpoints: drives the snapshots of all regions.
        reports: takes in the metrics that the workers report.
        queries: takes the answers to queries of keyed state.
        observe: called with each event of the job.
        adoption: the workers of an earlier JobManager, which already run the attempt; None starts
            new workers.
    """

    def __init__(
        self,
        deployment: Deployment,
        system: System,
        checkpoints: CheckpointDriver,
        reports: MetricReports,
        queries: StateQueries,
        observe: Callable[[JobEvent], None],
        adoption: Adoption | None = None,
    ) -> None:
        self.deployment = deployment
        self._adoption = adoption
        self._system = system
        self._checkpoints = checkpoints
        self._reports = reports
        self._queries = queries
        self._observe = observe
        self._loop = AttemptLoop()
        self.workers = WorkerPool(
            deployment, system, self._loop, self._handle, lambda *lost: self._restarts.failed(*lost)
        )
        self._assigner = SplitAssigner(deployment.code, deployment.plan)
        self._alignment = AlignmentCoordinator.of(deployment.code, deployment.plan)
        self._splits = SplitServer(
            self._assigner,
            system.offload,
            self.workers,
            self._loop,
            tasks_restart=deployment.plan.isolated,
        )
        self.region = Region.of(deployment.plan, self.workers, self._splits, self._loop)
        self._restarts = TaskRestarts(
            deployment,
            self.region,
            checkpoints,
            reports,
            lambda: queries.lost(self.region),
            observe,
        )
        self._launched: Callable[[], None] = lambda: None
        self._ready: Callable[[RegionAttempt], None] = lambda _: None

    async def run(
        self, launched: Callable[[], None], ready: Callable[[RegionAttempt], None]
    ) -> None:
        """Run the attempt until `finish` is called. Raise a `PenstockError` if it fails.

        Arguments:
            launched: called when all workers were launched.
            ready: called with this attempt when all tasks are open. It must call `start_tasks`, now
                or later.
        """
        self._launched, self._ready = launched, ready
        try:
            async with trio.open_nursery() as nursery:
                self._loop.open(nursery)
                try:
                    await self._start(nursery)
                    await self._loop.run()
                    await self.workers.shut_down()
                finally:
                    self._loop.close()
                    await self.workers.kill()
                    nursery.cancel_scope.cancel()
        except* PenstockError as group:
            raise pinned(first_of(group)) from None
        except* OSError as group:
            fault = first_of(group)
            raise PenstockError(f"the workers cannot be run here: {fault}") from fault
        finally:
            self._assigner.close()
            for number in {self.deployment.number, *self._restarts.attempts.values()}:
                self._system.transport.forget(number)

    def start_tasks(self, restart: RestartTasks, tasks_run: TasksRun) -> None:
        """Order all tasks to process records.

        Arguments:
            restart: called when some tasks have failed that can restart alone.
            tasks_run: called when such tasks have sent all records that others had processed.
        """
        self.workers.send_all(m.Start())
        self._restarts.begin(self._launched, restart, tasks_run)

    def watch_for_slots(self, found: Callable[[RegionAttempt, int], None]) -> None:
        """Try from time to time whether the missing workers can be started again.

        Arguments:
            found: called with this attempt and the number of these workers that can be started.
        """
        if self.deployment.missing_slots:
            self._loop.spawn(self._watch_for_slots, found)

    async def _watch_for_slots(self, found: Callable[[RegionAttempt, int], None]) -> None:
        while True:
            await trio.sleep(self.deployment.config.restart_slot_timeout_seconds)
            found(self, await self.workers.count_startable())

    def finish(self) -> None:
        """End the attempt without a failure."""
        self._loop.post(self._loop.finish)

    async def _start(self, nursery: trio.Nursery) -> None:
        restored = self.deployment.restored
        manifest = None if restored is None else restored.manifest
        await self._system.offload(partial(self._assigner.start, manifest))
        self._reports.begin_attempt(self.deployment.plan)
        if self._adoption is not None:
            await self._adopt(self._adoption)
            return
        await self.workers.start(nursery)
        self._launched()

    async def _adopt(self, adoption: Adoption) -> None:
        """Continue with workers whose tasks process records. Raise `TakeOverFailed` if in doubt."""
        await self._splits.repeat(adoption.decision.splits)
        self.workers.adopt(adoption.workers)
        adoption.receive_heartbeats(self.workers.note_heartbeat)
        self._launched()
        self._ready(self)
        for chain, subtask in adoption.decision.wanted:
            self._loop.spawn(self._splits.serve, chain, subtask)

    def _handle(self, slot: int, message: m.Message) -> None:
        """Handle a message of the worker in a slot."""
        checkpoints = self._checkpoints
        match message:
            case m.Hello(_, _, _, address):
                addresses = self.workers.connected(slot, address)
                if addresses is not None and not self._restarts.connected(addresses):
                    self.workers.send_each(self.deployment.messages(addresses))
            case m.Ready():
                if self.workers.ready(slot) and not self._restarts.ready():
                    self._loop.spawn(self._assign_splits)
            case m.SplitWanted(chain, subtask):
                self._loop.spawn(self._splits.serve, chain, subtask)
            case m.Acknowledge():
                checkpoints.acknowledged(self.region, message)
            case m.Decline(chain, subtask, number, reason):
                checkpoints.declined((chain, subtask), number, reason)
            case m.InputEnded(chain, subtask):
                checkpoints.input_ended((chain, subtask))
            case m.OutsideEnded(chain, subtask):
                checkpoints.outside_ended(self.region, (chain, subtask))
            case m.Failed():
                self._restarts.failed(slot, failure_of(message))
            case m.SendersReplaced(_, steps):
                self._restarts.replaced(slot, steps)
            case m.CaughtUp():
                self._restarts.caught_up(slot)
            case m.SourceWatermark(chain, subtask, watermark):
                for member, index, limit in self._alignment.report(chain, subtask, watermark):
                    self.workers.send_to(member, index, m.WatermarkLimit(member, index, limit))
            case m.StateRead() | m.RecordsSampled():
                self._queries.answered(message)
            case m.Metrics():
                self.workers.reported(slot)
                with malformed("metrics"):
                    plan, now = self.deployment.plan, self._system.clock()
                    for warning in self._reports.update(plan, message, now):
                        self._observe(warning)
            case m.StacksSampled(worker, pid, samples, frames, stacks):
                self._observe(WorkerProfiled(worker, pid, samples, frames, stacks))
            case _:
                raise ProtocolError(f"the JobManager received a {type(message).__name__}")

    async def _assign_splits(self) -> None:
        try:
            await self._splits.assign_initial()
        except PenstockError as error:
            self._loop.post_failure(error)
        else:
            self._loop.post(partial(self._ready, self))
