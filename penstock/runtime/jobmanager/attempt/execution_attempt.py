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

__all__ = ["ExecutionAttempt"]


class ExecutionAttempt:
    """Runs one attempt of a job.

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
        self._workers = WorkerPool(deployment, system, self._loop, self._handle)
        self._assigner = SplitAssigner(deployment.code, deployment.plan)
        self._alignment = AlignmentCoordinator.of(deployment.code, deployment.plan)
        self._splits = SplitServer(self._assigner, system.offload, self._workers, self._loop)
        self._checkpoints = CheckpointDriver(
            deployment,
            numbers,
            publisher,
            self._workers,
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
                    await self._workers.shut_down()
                finally:
                    await self._workers.kill()
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
        await self._workers.start(nursery)
        self._observe(WorkersStarted(self._workers.pids))

    def stop(self) -> None:
        """Finish the attempt with a last snapshot. Call it only while the attempt runs."""
        self._checkpoints.stop()

    def savepoint(self) -> None:
        """Take a snapshot that retention never removes.

        Call it only while the attempt runs.
        """
        self._checkpoints.savepoint()

    @property
    def savepoint_pending(self) -> bool:
        """Return whether a savepoint was requested and is not complete."""
        return self._checkpoints.savepoint_pending

    def busy_workers(self) -> list[int]:
        """Return the slots of the workers whose event loop has sent no report recently.

        Such a worker is alive, but user code may keep its event loop busy.
        """
        return self._workers.busy()

    def _handle(self, slot: int, message: m.Message) -> None:
        """Handle a message of the worker in a slot."""
        match message:
            case m.Hello(_, _, _, address):
                addresses = self._workers.connected(slot, address)
                if addresses is not None:
                    self._workers.send_each(self._deployment.messages(addresses))
            case m.Ready():
                if self._workers.ready(slot):
                    self._loop.spawn(self._assign_and_start)
            case m.SplitWanted(chain, subtask):
                self._loop.spawn(self._splits.serve, chain, subtask)
            case m.Acknowledge():
                self._checkpoints.acknowledged(message)
            case m.Decline(chain, subtask, number, reason):
                self._checkpoints.declined((chain, subtask), number, reason)
            case m.InputEnded(chain, subtask):
                self._checkpoints.input_ended((chain, subtask))
            case m.OutsideEnded(chain, subtask):
                self._checkpoints.outside_ended((chain, subtask))
            case m.Failed():
                self._loop.fail(failure_of(message))
            case m.SourceWatermark(chain, subtask, watermark):
                for member, index, limit in self._alignment.report(chain, subtask, watermark):
                    self._workers.send(index, m.WatermarkLimit(member, index, limit))
            case m.Metrics():
                self._workers.reported(slot)
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
        self._workers.send_all(m.Start())
        # The first checkpoint interval begins now. The time to start the workers does not count.
        self._checkpoints.start()
        self._running()
