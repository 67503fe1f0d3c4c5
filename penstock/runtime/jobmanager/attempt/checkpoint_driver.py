"""Drive the snapshots of one attempt: execute the commands of the coordinator.

The coordinator (`penstock.snapshot.coordination.coordinator`) and the loop termination detector
(`penstock.snapshot.coordination.loop_termination`) decide without I/O. This module orders the
workers to emit barriers, gathers acknowledgements, and starts the publishing of manifests. All
methods run in the event loop of the attempt, except background work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from penstock.dataflow.config import RuntimeExecutionMode
from penstock.dataflow.errors import PenstockError, Recoverability, StoreError
from penstock.dataflow.sink import Committable
from penstock.runtime.control import messages as m
from penstock.runtime.control.packing import build, malformed
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.region import Region, RunningRegions, paused, send_all
from penstock.runtime.jobmanager.reporting.job_events import (
    Committed,
    JobEvent,
    JobSnapshotAborted,
    JobSnapshotBegan,
    JobSnapshotCompleted,
)
from penstock.runtime.jobmanager.reporting.snapshot_delays import SnapshotDelays
from penstock.runtime.jobmanager.snapshots.pending_snapshot import PendingSnapshot
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.runtime.jobmanager.takeover.decision import TakeOver
from penstock.runtime.system.signal import Signal
from penstock.snapshot.coordination import coordinator as c
from penstock.snapshot.coordination import loop_termination as t
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.protocols.events import SnapshotKind

#: The number of further aborted snapshots after which the files of an aborted snapshot are removed.
#: They are removed earlier if a snapshot completes.
MAX_ABORTED = 500
#: The maximum and the minimum time between two ticks of the clock, in seconds.
MAX_TICK_SECONDS, MIN_TICK_SECONDS = 1.0, 0.0005
#: The time after which a savepoint that was aborted is taken again, in seconds.
SAVEPOINT_RETRY_SECONDS = 1.0

Task = tuple[int, int]


class CheckpointDriver:
    """Drives the snapshots of one attempt after its tasks have started.

    Arguments:
        deployment: the deployment of the attempt.
        numbers: the snapshot numbers that are reserved for the attempt.
        publisher: publishes snapshots and commits their output.
        regions: the regions that run. Their tasks take part in the next snapshot.
        loop: the event loop of the attempt.
        observe: called with each event of the job.
        clock: returns the time in seconds.
        captured: for each task, the last snapshot for which the task has captured its state.
        completed: called when the output of a snapshot with state is committed, unless it is the
            last one.
    """

    def __init__(
        self,
        deployment: Deployment,
        numbers: range,
        publisher: SnapshotPublisher,
        regions: RunningRegions,
        loop: AttemptLoop,
        observe: Callable[[JobEvent], None],
        clock: Callable[[], float],
        captured: Mapping[Task, int],
        completed: Callable[[], None],
    ) -> None:
        self._deployment = deployment
        self._numbers = numbers
        self._publisher = publisher
        self._regions = regions
        self._loop = loop
        self._observe = observe
        self._clock = clock
        self._captured = captured
        self._completed = completed
        #: The event that the coordinator handles, and those that its commands have caused.
        self._events: deque[c.CoordinatorEvent] = deque()
        self._pending: dict[int, PendingSnapshot] = {}
        #: The regions that take part in each pending snapshot.
        self._members: dict[int, tuple[Region, ...]] = {}
        #: Set while no manifest is being written.
        self._settled = trio.Event()
        self._settled.set()
        self._aborted: list[int] = []
        self._delays = SnapshotDelays(deployment.plan)
        self._rescheduled = Signal()
        self._stopping = False
        #: The number of savepoints that were requested and are not complete.
        self._savepoints = 0
        #: The recoverability of the error because of which the last failed snapshot was aborted.
        self._recoverability = Recoverability.ENVIRONMENT

    # ---- requests and messages

    def start(self) -> None:
        """Begin to take snapshots. The first checkpoint interval begins now."""
        deployment, config, now = self._deployment, self._deployment.config, self._clock()
        self._coordinator = c.Coordinator(
            deployment.plan.tasks(),
            now=now,
            interval=deployment.interval,
            timeout=config.checkpoint_timeout_seconds,
            min_pause=config.min_pause_seconds,
            tolerable_failures=config.tolerable_failures,
            numbers=self._numbers,
            announce=deployment.keep,
        )
        self._coordinate(c.Tick(now))
        self._loop.spawn(self._watch_clock)

    def resume(self, region: Region, decision: TakeOver) -> None:
        """Begin to take snapshots of tasks that an earlier JobManager has started.

        The snapshots that it had begun are aborted.

        Arguments:
            region: the only region of the job.
            decision: what the earlier JobManager knew.
        """
        region.workers.send_all(m.Complete(decision.completed))
        for number in decision.aborted:
            region.workers.send_all(m.Abort(number))
            self._aborted.append(number)
        self.start()
        for task in decision.ended:
            self.input_ended(task)
        for task in decision.outside_ended:
            self.outside_ended(region, task)

    def stop(self) -> None:
        """Take a last snapshot, and finish the attempt with it.

        In batch mode, finish it without a snapshot, unless the final snapshot is in progress.
        """
        if self._deployment.config.runtime_mode is RuntimeExecutionMode.BATCH:
            if not self._pending:
                self._loop.post(self._loop.finish)
            return
        self._stopping = True
        self._loop.post(partial(self._coordinate, c.StopRequested()))

    def savepoint(self) -> None:
        """Take a snapshot that retention never removes.

        If the snapshot is aborted, another one is taken after `SAVEPOINT_RETRY_SECONDS`.
        """
        self._savepoints += 1
        self._loop.post(partial(self._coordinate, c.SavepointRequested()))

    @property
    def savepoint_pending(self) -> bool:
        """Return whether a savepoint was requested and is not complete."""
        return self._savepoints > 0

    def lost(self, region: Region) -> None:
        """Continue without the tasks of a region, which has failed and will restart."""
        self._regions.remove(region)
        self._coordinate(c.TasksLost(frozenset(region.plan.tasks())))

    def returned(self, region: Region, numbers: range) -> None:
        """Take snapshots of a region again, whose tasks have started.

        Arguments:
            region: the region.
            numbers: the snapshot numbers to use from now on.
        """
        self._regions.add(region)
        self._coordinate(c.TasksReturned(frozenset(region.plan.tasks()), numbers))

    def tasks_lost(self, tasks: frozenset[Task]) -> None:
        """Take no snapshots until some tasks of a region, which restart, have returned."""
        self._coordinate(c.TasksLost(tasks, alone=False))

    def tasks_returned(self, tasks: frozenset[Task], numbers: range) -> None:
        """Take snapshots again, since restarted tasks have sent what others have processed.

        Arguments:
            tasks: the tasks.
            numbers: the snapshot numbers to use from now on.
        """
        self._coordinate(c.TasksReturned(tasks, numbers))

    @property
    def ended(self) -> frozenset[Task]:
        """Return the tasks that have processed all of their input."""
        ended = self._coordinator.ended
        return frozenset(task for task in self._deployment.plan.tasks() if task in ended)

    async def settled(self) -> None:
        """Wait until no manifest is being written."""
        await self._settled.wait()

    def acknowledged(self, region: Region, message: m.Acknowledge) -> None:
        """Add the acknowledgement of a task of a region to its snapshot.

        Raise `ProtocolError` if the message is malformed.
        """
        pending = self._pending.get(message.number)
        if pending is None:
            return
        with malformed("acknowledgement"):
            handles = [OperatorHandle.from_wire(wire) for wire in message.handles]
            committables = [build(Committable, wire) for wire in message.committables]
            status = None if message.loop is None else build(t.LoopStatus, message.loop)
        chain = self._deployment.plan.chains[message.chain]
        uids = {node.operator.uid for node in chain.root.walk()}
        pending.add_handles(handles, uids, message.subtask)
        pending.add(message, committables, self._clock())
        self._publisher.types.record_written(message.types)
        task: Task = (message.chain, message.subtask)
        if status is not None:
            self._watch_loops(region, t.StatusReported(task, message.number, status))
        if self._publisher.store.sends and any(handle.files for handle in handles):
            self._loop.spawn(self._send, task, pending, handles)
        else:
            self._coordinate(c.Acknowledged(task, message.number))

    async def _send(
        self, task: Task, pending: PendingSnapshot, handles: Sequence[OperatorHandle]
    ) -> None:
        """Send the files of a task to the object store, and then count its acknowledgement.

        So the time that it takes is a part of the time that the snapshot may take.
        """
        number = pending.number
        try:
            sent = await self._publisher.store.send(
                number, handles, lambda: number in self._pending
            )
        except PenstockError as error:
            # The files of an aborted snapshot are removed, also while they are being sent.
            if number in self._pending:
                declined = c.Declined("the store", number, str(error))
                self._loop.post(partial(self._snapshot_failed, error, declined))
        else:
            pending.add_sent(sent.count, sent.size)
            self._loop.post(partial(self._coordinate, c.Acknowledged(task, number)))

    def declined(self, task: Task, number: int, reason: str) -> None:
        """Abort a snapshot in which a task cannot take part."""
        self._recoverability = Recoverability.ENVIRONMENT
        self._coordinate(c.Declined(task, number, reason))

    def input_ended(self, task: Task) -> None:
        """Notify the coordinator that a task has processed all of its input."""
        self._coordinate(c.TaskInputEnded(task))

    def outside_ended(self, region: Region, task: Task) -> None:
        """Record that a task of a loop has processed all input from outside of the loop."""
        self._watch_loops(region, t.ExternalInputEnded(task))

    # ---- time

    async def _watch_clock(self) -> None:
        """Post a tick when the coordinator needs one, at least each `MAX_TICK_SECONDS`."""
        while True:
            now = self._clock()
            due = self._coordinator.next_tick()
            latest = now + MAX_TICK_SECONDS
            wake = latest if due is None else max(min(latest, due), now + MIN_TICK_SECONDS)
            await self._rescheduled.wait(wake)
            self._loop.post(self._tick)

    def _tick(self) -> None:
        self._coordinate(c.Tick(self._clock()))
        self._report_delay()

    def _report_delay(self) -> None:
        """Report the snapshot in flight if it takes a long time."""
        number = self._coordinator.number
        pending = None if number is None else self._pending.get(number)
        if pending is None:
            return
        seconds = self._clock() - pending.began
        acknowledged = self._coordinator.acknowledged
        tasks = [task for region in self._members[pending.number] for task in region.plan.tasks()]
        missing = [task for task in tasks if task not in acknowledged]
        event = self._delays.report(pending.number, seconds, missing, self._captured)
        if event is not None:
            self._observe(event)

    # ---- decisions

    def _coordinate(self, event: c.CoordinatorEvent) -> None:
        """Pass an event to the coordinator, and execute its commands.

        A command may cause another event, which waits until all commands before it are executed.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return
        try:
            while self._events:
                commands = self._coordinator.handle(self._events[0])
                if not isinstance(self._events[0], c.Tick):
                    self._rescheduled.set()  # the next tick of the coordinator may be due earlier
                for command in commands:
                    self._execute(command)
                self._events.popleft()
        finally:
            self._events.clear()

    def _execute(self, command: c.CoordinatorCommand) -> None:
        spawn = self._loop.spawn
        match command:
            case c.PrepareSnapshot(number, seconds):
                send_all(self._regions, m.Prepare(number, seconds))
                spawn(self._publisher.store.prepare_folder, number)
            case c.InjectBarriers(number, kind):
                now, wall_ms = self._clock(), int(time.time() * 1000)
                self._pending[number] = PendingSnapshot(number, kind, now, wall_ms)
                self._members[number] = tuple(self._regions)
                if self._deployment.keep:
                    self._observe(JobSnapshotBegan(number, kind.value, wall_ms))
                spawn(self._inject, number, kind)
            case c.PublishSnapshot(number):
                self._settled = trio.Event()
                spawn(self._publish, self._pending[number])
            case c.HoldSavepoint(number):
                # For the tasks it is as if the snapshot was aborted: they keep its committables.
                send_all(self._members.pop(number), m.Abort(number))
                self._snapshot_ended(number)
            case c.CompleteSnapshot(number, savepoints):
                self._complete(number, savepoints)
                self._snapshot_ended(number)
            case c.FinishJob(number, savepoints):
                self._complete(number, savepoints, final=True)
            case c.AbortSnapshot(number, reason):
                self._abort(number, reason)
                self._snapshot_ended(number)
            case c.ReserveNumbers():
                spawn(self._reserve)
            case c.FailAttempt(reason):
                self._loop.fail(StoreError(reason, recoverability=self._recoverability))

    def _snapshot_ended(self, number: int) -> None:
        for region in self._regions:
            self._watch_loops(region, t.SnapshotEnded(number))

    def _watch_loops(self, region: Region, event: t.LoopEvent) -> None:
        """Pass an event to a region's loop termination detector, and execute its commands."""
        for command in region.feedback_loops.handle(event):
            match command:
                case t.RunEndOfInputHooks(index, round):
                    region.workers.send_all(m.EndInput(index, round))
                case t.TerminateLoop(index):
                    region.workers.send_all(m.CloseLoop(index))
                case t.RequestCheckpoint(delay):
                    self._coordinate(c.Tick(self._clock()))  # the delay begins at this tick
                    self._coordinate(c.CheckpointRequested(delay))

    # ---- one snapshot

    async def _inject(self, number: int, kind: SnapshotKind) -> None:
        try:
            await self._publisher.store.make_folder(number)
        except PenstockError as error:
            declined = c.Declined("the store", number, str(error))
            self._loop.post(partial(self._snapshot_failed, error, declined))
            return
        members = self._members.get(number, ())
        async with paused(members):
            pending = self._pending.get(number)
            if pending is None:
                return  # the snapshot was aborted meanwhile
            for region in members:
                try:
                    pending.add_enumerators(region.splits.snapshot(number))
                except PenstockError as error:
                    region.loop.post_failure(error)
                    return
            send_all(members, m.Inject(number, kind.value))

    async def _publish(self, pending: PendingSnapshot) -> None:
        # A final snapshot may have begun before all input had ended. Then it lacks the records
        # after its barrier, and the job is not finished.
        ended = self._coordinator.ended == self._coordinator.tasks
        finished = pending.kind is SnapshotKind.FINAL and ended and not self._stopping
        number = self._deployment.number
        present = [region.plan.uids() for region in self._members[pending.number]]
        absent = self._deployment.plan.uids().difference(*present)
        try:
            await self._publisher.publish(pending, attempt=number, finished=finished, absent=absent)
        except PenstockError as error:
            failed = c.PublishFailed(pending.number, str(error))
            self._loop.post(partial(self._snapshot_failed, error, failed))
        else:
            self._loop.post(partial(self._coordinate, c.Published(pending.number)))

    def _snapshot_failed(self, error: PenstockError, event: c.CoordinatorEvent) -> None:
        """Abort a snapshot, or fail the attempt if no restart can mend the error."""
        self._recoverability = error.recoverability
        if self._recoverability is Recoverability.NON_RECOVERABLE:
            self._loop.fail(error)
        else:
            self._coordinate(event)

    def _complete(self, number: int, savepoints: Sequence[int], final: bool = False) -> None:
        pending = self._pending.pop(number)
        self._settled.set()
        send_all(self._members.pop(number), m.Complete(number))
        self._report_complete(pending)
        aborted, self._aborted = self._aborted, []
        held = [self._pending.pop(savepoint) for savepoint in savepoints]
        self._loop.spawn(self._commit_output, pending, held, aborted, final)

    def _report_complete(self, snapshot: PendingSnapshot) -> None:
        if self._deployment.keep:
            # A snapshot without state only commits output, and is not reported.
            figures = snapshot.figures(self._clock(), self._deployment.ordinal)
            self._observe(JobSnapshotCompleted(figures, snapshot.tasks))

    async def _commit_output(
        self,
        snapshot: PendingSnapshot,
        held: Sequence[PendingSnapshot],
        aborted: list[int],
        final: bool,
    ) -> None:
        """Commit the output of a complete snapshot, and remove snapshots by retention.

        Arguments:
            snapshot: the snapshot.
            held: the savepoints before it, whose output is committed with it.
            aborted: the numbers of aborted snapshots, whose files are removed.
            final: whether the job ends with the snapshot.
        """
        publisher = self._publisher
        try:
            await publisher.commits.commit()
            self._observe(Committed())
            for savepoint in held:
                await self._publish_savepoint(savepoint)
            await publisher.tidy(aborted)
        except PenstockError as error:
            self._loop.post_failure(error)
            return
        if publisher.store.keep:
            for region in tuple(self._regions):
                if region.loop.closed:
                    continue
                notified = trio.Event()
                region.loop.spawn(self._notify_sources, region, snapshot, notified)
                await notified.wait()
        if final:
            self._loop.post(self._loop.finish)
        elif publisher.store.keep:
            self._loop.post(self._completed)

    async def _publish_savepoint(self, savepoint: PendingSnapshot) -> None:
        """Complete a savepoint whose output is committed; take another one if that fails.

        Raises:
            StoreError: if another JobManager has taken the job over.
        """
        number = savepoint.number
        try:
            await self._publisher.publish_savepoint(savepoint, attempt=self._deployment.number)
        except PenstockError as error:
            if error.recoverability is Recoverability.NON_RECOVERABLE:
                raise
            self._aborted.append(number)
            self._observe(JobSnapshotAborted(number, str(error)))
            self._loop.spawn(self._retry_savepoint)
        else:
            self._savepoints -= 1
            self._report_complete(savepoint)

    async def _notify_sources(
        self, region: Region, snapshot: PendingSnapshot, notified: trio.Event
    ) -> None:
        """Notify the sources of a region that a snapshot is complete."""
        store = self._publisher.store
        try:
            if region.splits.retains:
                await store.call(partial(region.splits.retain, store.files))
            await region.splits.snapshot_completed(snapshot.number, snapshot.handles)
        except PenstockError as error:
            region.loop.post_failure(error)
        finally:
            notified.set()

    def _abort(self, number: int, reason: str) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None and pending.kind is SnapshotKind.SAVEPOINT:
            self._loop.spawn(self._retry_savepoint)
        self._aborted.append(number)
        if len(self._aborted) >= 2 * MAX_ABORTED:
            old = self._aborted[:MAX_ABORTED]
            del self._aborted[:MAX_ABORTED]
            self._loop.spawn(self._publisher.store.discard, old)
        self._settled.set()
        send_all(self._members.pop(number, ()), m.Abort(number))
        self._observe(JobSnapshotAborted(number, reason))

    async def _retry_savepoint(self) -> None:
        await trio.sleep(SAVEPOINT_RETRY_SECONDS)
        self._loop.post(partial(self._coordinate, c.SavepointRequested()))

    async def _reserve(self) -> None:
        try:
            numbers = await self._publisher.store.reserve_numbers()
        except PenstockError as error:
            self._loop.post_failure(error)
        else:
            self._loop.post(partial(self._coordinate, c.NumbersReserved(numbers)))
