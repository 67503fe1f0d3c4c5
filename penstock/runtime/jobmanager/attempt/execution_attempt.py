"""One execution attempt: from the start of its workers to its end or failure.

A failure always ends the attempt. The JobManager then starts another one.
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
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.attempt.split_server import SplitServer
from penstock.runtime.jobmanager.attempt.watermark_alignment import AlignmentCoordinator
from penstock.runtime.jobmanager.attempt.worker_pool import WorkerPool
from penstock.runtime.jobmanager.reporting.event_time_reports import EventTimeReports
from penstock.runtime.jobmanager.reporting.job_events import (
    AttemptRunning,
    JobEvent,
    WorkersStarted,
)
from penstock.runtime.jobmanager.reporting.job_metrics import JobMetrics
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.runtime.system.system import System


class ExecutionAttempt:
    """Runs one attempt of a job.

    While the attempt runs, `checkpoints` takes savepoints and stops it, and `workers` reports which
    workers are busy.

    Arguments:
        deployment: the data that the attempt deploys on its workers.
        numbers: the snapshot numbers that are reserved for its snapshots.
        system: the clock, connections, processes and threads that the attempt uses.
        publisher: publishes snapshots and commits their output.
        metrics: adds up the metrics that the workers report.
        event_time: finds faults of event time in these metrics.
        observe: called with each event of the job.
    """

    def __init__(
        self,
        deployment: Deployment,
        numbers: range,
        system: System,
        publisher: SnapshotPublisher,
        metrics: JobMetrics,
        event_time: EventTimeReports,
        observe: Callable[[JobEvent], None],
    ) -> None:
        self._deployment = deployment
        self._system = system
        self._metrics, self._event_time = metrics, event_time
        self._observe = observe
        self._loop = AttemptLoop()
        self.workers = WorkerPool(deployment, system, self._loop, self._handle)
        self._assigner = SplitAssigner(deployment.code, deployment.plan)
        self._alignment = AlignmentCoordinator.of(deployment.code, deployment.plan)
        self._splits = SplitServer(self._assigner, system.offload, self.workers, self._loop)
        self.checkpoints = CheckpointDriver(
            deployment,
            numbers,
            publisher,
            self.workers,
            self._splits,
            self._loop,
            observe,
            system.clock,
            metrics.captured,
        )
        self._running: Callable[[], None] = lambda: None

    async def run(self, running: Callable[[], None]) -> None:
        """Run the attempt until the job ends. Raise a `PenstockError` if it fails.

        Arguments:
            running: called when all tasks process records.
        """
        self._running = running
        try:
            async with trio.open_nursery() as nursery:
                self._loop.open(nursery)
                try:
                    await self._start(nursery)
                    await self._loop.run()
                    await self.workers.shut_down()
                finally:
                    await self.workers.kill()
                    nursery.cancel_scope.cancel()
        except* PenstockError as group:
            raise pinned(first_of(group)) from None
        except* OSError as group:
            fault = first_of(group)
            raise PenstockError(f"the workers cannot be run here: {fault}") from fault
        finally:
            self._assigner.close()

    async def _start(self, nursery: trio.Nursery) -> None:
        restored = self._deployment.restored
        manifest = None if restored is None else restored.manifest
        await self._system.offload(partial(self._assigner.start, manifest))
        await self.workers.start(nursery)
        self._observe(WorkersStarted(self.workers.pids))

    def _handle(self, slot: int, message: m.Message) -> None:
        """Handle a message of the worker in a slot."""
        match message:
            case m.Hello(_, _, _, address):
                addresses = self.workers.connected(slot, address)
                if addresses is not None:
                    self.workers.send_each(self._deployment.messages(addresses))
            case m.Ready():
                if self.workers.ready(slot):
                    self._loop.spawn(self._assign_and_start)
            case m.SplitWanted(chain, subtask):
                self._loop.spawn(self._splits.serve, chain, subtask)
            case m.Acknowledge():
                self.checkpoints.acknowledged(message)
            case m.Decline(chain, subtask, number, reason):
                self.checkpoints.declined((chain, subtask), number, reason)
            case m.InputEnded(chain, subtask):
                self.checkpoints.input_ended((chain, subtask))
            case m.OutsideEnded(chain, subtask):
                self.checkpoints.outside_ended((chain, subtask))
            case m.Failed():
                self._loop.fail(failure_of(message))
            case m.SourceWatermark(chain, subtask, watermark):
                for member, index, limit in self._alignment.report(chain, subtask, watermark):
                    self.workers.send(index, m.WatermarkLimit(member, index, limit))
            case m.Metrics():
                self.workers.reported(slot)
                with malformed("metrics"):
                    self._metrics.update(self._deployment.number, message)
                    now = self._system.clock()
                    for warning in self._event_time.update(self._deployment.number, message, now):
                        self._observe(warning)
            case _:
                raise ProtocolError(f"the JobManager received a {type(message).__name__}")

    async def _assign_and_start(self) -> None:
        try:
            await self._splits.assign_initial()
        except PenstockError as error:
            self._loop.post_failure(error)
        else:
            self._loop.post(self._start_tasks)

    def _start_tasks(self) -> None:
        self._observe(AttemptRunning(self._deployment.ordinal))
        self.workers.send_all(m.Start())
        # The first checkpoint interval begins now. The time to start the workers does not count.
        self.checkpoints.start()
        self._running()
