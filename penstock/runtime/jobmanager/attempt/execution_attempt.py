"""One execution attempt: from starting the workers to the job's end, or the first failure.

The attempt hears everything through one queue, in one loop: messages of workers, their deaths,
the clock, finished file work. What to do about snapshots is decided by the coordinator; here it
is carried out. An attempt never survives a failure: the JobManager starts another.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING

import trio

from penstock.dataflow.errors import (
    PenstockError,
    ProtocolError,
    Recoverability,
    StoreError,
)
from penstock.dataflow.sink import Committable
from penstock.runtime.control import messages as m
from penstock.runtime.control.failures import ConnectionLost, failure_of, first_of, pinned
from penstock.runtime.control.handshakes import Handshakes
from penstock.runtime.control.packing import build, malformed
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerConnection, WorkerLost
from penstock.runtime.jobmanager.reporting.snapshot_delays import SnapshotDelays
from penstock.runtime.jobmanager.snapshots.pending_snapshot import PendingSnapshot
from penstock.runtime.system.launcher import WorkerSpec
from penstock.runtime.system.signal import Signal
from penstock.snapshot.coordination import coordinator as c
from penstock.snapshot.coordination import loop_termination as t
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.protocols.events import SnapshotKind

if TYPE_CHECKING:
    from penstock.runtime.jobmanager.jobmanager import JobManager

__all__ = ["ExecutionAttempt"]

#: How long a worker may take to start and call home.
START_SECONDS = 60.0
#: A failure that another worker's death explains is put down to that death, if it is seen soon.
EXPLAIN_SECONDS = 2.0
#: How long workers may take to close their functions at the end.
FAREWELL_SECONDS = 30.0
#: How soon a source that has no split for a task, but may have one later, is asked again.
DEAL_SECONDS = 0.1
#: A worker whose heartbeat comes and whose loop has not reported for so long is busy.
BUSY_SECONDS = 3.0
#: What is left of snapshots that were given up is removed with the next complete one, or when so
#: many were given up after it.
MAX_ABORTED = 500


class ExecutionAttempt:
    """One attempt to run the job.

    Arguments:
        job: the JobManager, with the job's plan, store and system.
        ordinal: how often this run has been restarted before.
        numbers: reserved snapshot numbers. The first of them is the attempt's own number, too: it
            is higher than that of every attempt before, also of runs that were killed and whose
            workers may still be about to notice, so folders and staged files never collide.
    """

    def __init__(self, job: JobManager, ordinal: int, numbers: range) -> None:
        self._job = job
        self._system = job.system
        self._ordinal = ordinal
        self._number = numbers.start
        self._token = secrets.token_bytes(32)
        self._handshakes = Handshakes(self._token)
        self._handshakes.expect(2 * job.plan.slots)  # each worker, and its heartbeat
        self._workers: dict[int, WorkerConnection] = {}
        self._send_event, self._events = trio.open_memory_channel[Callable[[], None]](float("inf"))
        self._flights: dict[int, PendingSnapshot] = {}
        self._aborted: list[int] = []
        self._tasks = frozenset(job.plan.tasks())
        self._failure: PenstockError | None = None
        #: Whether a restart may mend what the last snapshot failed with.
        self._blame = Recoverability.ENVIRONMENT
        self._finished = trio.Event()
        self._launched = trio.Event()
        self._started = False
        self._rescheduled = Signal()
        self._numbers = numbers[1:]
        self._delays = SnapshotDelays(job.plan)
        self._dealer = SplitAssigner(job.code, job.plan)
        #: The snapshot whose folder was made last, and what is held while one is being made.
        self._made, self._making = -1, trio.Lock()
        #: Held while a split is on its way from its enumerator to the task that it is for.
        self._dealing = trio.Lock()
        self._loops = t.LoopTerminationDetector(
            t.Loop(
                index,
                frozenset(task for task in job.plan.tasks() if task[0] in chains),
                job.plan.has_end_input(index),
            )
            for index, chains in enumerate(job.plan.loops)
        )

    async def run(self) -> None:
        """Run to the job's end. Raises what failed."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._run(nursery)
                finally:
                    for worker in self._workers.values():
                        worker.handle.kill()
                    nursery.cancel_scope.cancel()
        except* PenstockError as group:
            raise pinned(first_of(group)) from None
        except* OSError as group:
            fault = first_of(group)
            raise PenstockError(f"the workers cannot be run here: {fault}") from fault
        finally:
            self._dealer.close()

    async def _run(self, nursery: trio.Nursery) -> None:
        job, system = self._job, self._system
        restore = job.restore_from
        await system.offload(partial(self._dealer.start, restore))
        address = await system.transport.listen(f"jm.{self._number}", self._serve, nursery)
        for slot in range(job.plan.slots):
            spec = WorkerSpec(
                address,
                self._token,
                slot,
                self._number,
                job.config.heartbeat_seconds,
                job.code.search_path,
                job.code.folder,
                job.config.host,
            )
            launched = await system.launcher.launch(spec)
            worker = WorkerConnection(launched, spec, heard=system.clock())
            self._workers[slot] = worker
            nursery.start_soon(self._watch_process, worker)
        self._launched.set()
        nursery.start_soon(self._watch_clock)
        job.observe({"event": "workers", "pids": [w.handle.pid for w in self._workers.values()]})
        with contextlib.suppress(trio.EndOfChannel):
            while not self._finished.is_set():
                handle = await self._events.receive()
                try:
                    handle()
                except PenstockError as error:
                    self._fail(error)
                if self._failure is not None:
                    raise await self._explained(self._failure)
        await self._farewell()

    def post(self, handle: Callable[[], None]) -> None:
        """Have something done in the attempt's loop."""
        self._send_event.send_nowait(handle)

    def stop(self) -> None:
        """End the job with a last snapshot."""
        self.post(lambda: self._coordinate(c.StopRequested()))

    def busy_workers(self) -> list[int]:
        """Workers that live and have not reported for a while."""
        now = self._system.clock()
        return [
            slot
            for slot, worker in self._workers.items()
            if worker.reported and now - worker.reported > BUSY_SECONDS
        ]

    @property
    def first_snapshot(self) -> int:
        """Return the number of the first snapshot of this attempt."""
        return self._numbers.start

    def savepoint(self) -> None:
        """Take a snapshot that retention never removes."""
        self.post(lambda: self._coordinate(c.SavepointRequested()))

    # ---- workers

    def _lose(self, lost: WorkerLost) -> None:
        self.post(partial(self._fail, lost))

    async def _watch_process(self, worker: WorkerConnection) -> None:
        self._lose(await worker.died())

    async def _watch_clock(self) -> None:
        """Ticks the coordinator, and looks for workers that have fallen silent."""
        system, config = self._system, self._job.config
        while True:
            now = system.clock()
            due = self._coordinator.next_tick() if self._started else None
            wake = max(min(now + 1.0, due) if due is not None else now + 1.0, now + 0.0005)
            await self._rescheduled.wait(wake)
            if self._started:
                self.post(lambda: self._coordinate(c.Tick(system.clock())))
                self.post(self._report_delay)
            now = system.clock()
            for worker in self._workers.values():
                limit = config.heartbeat_timeout_seconds if worker.address else START_SECONDS
                if now > wake + config.heartbeat_seconds:
                    # While we stood still ourselves nothing could be heard.
                    worker.heard = min(now, worker.heard + now - wake)
                elif now - worker.heard > limit:
                    what = "has sent no heartbeat" if worker.address else "has not called home"
                    self._lose(worker.lost(f"{what} for {limit:g} s"))

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """A connection of a worker: its control connection, or its heartbeat thread's."""
        slot: int | None = None
        how = "lost its connection"
        frames = await self._handshakes.admit(stream)
        if frames is None:
            return
        try:
            while True:
                frame = await frames.receive()
                if frame is None:
                    break
                message = m.decode(frame)
                if isinstance(message, m.Heartbeat):
                    if message.attempt == self._number and message.worker in self._workers:
                        self._workers[message.worker].heard = self._system.clock()
                    continue
                if slot is None:
                    if not isinstance(message, m.Hello) or message.attempt != self._number:
                        return  # from an older attempt: fenced off
                    # A worker may call home before all are launched.
                    await self._launched.wait()
                    if message.worker not in self._workers:
                        raise ProtocolError(f"there is no worker {message.worker}")
                    slot = message.worker
                    self._workers[slot].frames = frames
                    self._nursery.start_soon(self._workers[slot].write)
                self._workers[slot].heard = self._system.clock()
                self.post(partial(self._hear, slot, message))
        except ProtocolError as error:
            how = f"sent a message that cannot be understood: {error}"
        except (trio.BrokenResourceError, OSError):
            pass
        if slot is not None:
            self._lose(self._workers[slot].lost(how))

    def _send(self, slot: int, message: m.Message) -> None:
        self._workers[slot].send(message)

    def _send_all(self, message: m.Message) -> None:
        for slot in self._workers:
            self._send(slot, message)

    def _hear(self, slot: int, message: m.Message) -> None:
        self._check_task(slot, message)
        match message:
            case m.Hello(_, _, _, address):
                self._workers[slot].address = address
                if all(worker.address for worker in self._workers.values()):
                    self._deploy()
            case m.Ready():
                self._workers[slot].ready = True
                if all(worker.ready for worker in self._workers.values()):
                    self._start()
            case m.SplitWanted(chain, subtask):
                self._nursery.start_soon(self._deal, chain, subtask)
            case m.Acknowledge():
                self._acknowledged(message)
            case m.Decline(chain, subtask, number, reason):
                self._blame = Recoverability.ENVIRONMENT
                self._coordinate(c.Declined((chain, subtask), number, reason))
            case m.InputEnded(chain, subtask):
                self._coordinate(c.TaskInputEnded((chain, subtask)))
            case m.OutsideEnded(chain, subtask):
                self._watch_loops(t.ExternalInputEnded((chain, subtask)))
            case m.Failed():
                self._fail(failure_of(message))
            case m.Metrics():
                self._workers[slot].reported = self._system.clock()
                with malformed("metrics"):
                    self._job.metrics.update(self._number, message)
            case _:
                raise ProtocolError(f"the JobManager received a {type(message).__name__}")

    def _check_task(self, slot: int, message: m.Message) -> None:
        """Refuse a message about a task that its worker does not run, with a `ProtocolError`."""
        chain, subtask = getattr(message, "chain", -1), getattr(message, "subtask", slot)
        # A failure may be the worker's and no task's.
        if subtask != slot or (chain != -1 and (chain, subtask) not in self._tasks):
            raise ProtocolError(
                f"worker {slot} sent a {type(message).__name__} of a task that it does not run"
            )

    def _deploy(self) -> None:
        job = self._job
        addresses = [worker.address or "" for _, worker in sorted(self._workers.items())]
        for slot in self._workers:
            deploy = m.Deploy(
                self._number,
                self._ordinal,
                job.blob,
                job.plan_bytes,
                job.types.to_wire(),
                addresses,
                job.handles_for(slot),
                job.lineage,
                str(job.store.paths.root),
                job.keep,
            )
            self._send(slot, deploy)

    def _start(self) -> None:
        job, config = self._job, self._job.config
        # Its clock starts now, and not while workers were being started.
        self._coordinator = c.Coordinator(
            job.plan.tasks(),
            now=self._system.clock(),
            interval=job.interval,
            timeout=config.checkpoint_timeout_seconds,
            min_pause=config.min_pause_seconds,
            tolerable_failures=config.tolerable_failures,
            numbers=self._numbers,
            announce=job.keep,
        )
        self._started = True
        self._job.observe({"event": "running", "attempt": self._ordinal})
        self._send_all(m.Start())
        self._coordinate(c.Tick(self._system.clock()))
        self._rescheduled.set()  # until now there was no tick to wait for
        self._job.running(self)

    async def _deal(self, chain: int, subtask: int) -> None:
        """Give a task its next split, when there is one."""
        try:
            while not await self._dealt(chain, subtask):
                await trio.sleep(DEAL_SECONDS)
        except PenstockError as error:
            self.post(partial(self._fail, error))

    async def _dealt(self, chain: int, subtask: int) -> bool:
        """Answer a task that wants a split; False if there is no answer yet."""
        async with self._dealing:
            # An enumerator may look into folders, or ask others. Never abandoned: that of the
            # next attempt must not find this one still at work.
            with trio.CancelScope(shield=True):
                given, exhausted = await self._system.offload(
                    lambda: (
                        self._dealer.next_split(chain, subtask),
                        self._dealer.exhausted(chain, subtask),
                    )
                )
            if given is not None:
                split, position = given
                self._send(
                    subtask, m.SplitAssigned(chain, subtask, split.id, split.payload, position)
                )
            elif exhausted:
                self._send(subtask, m.NoMoreSplits(chain, subtask))
            return exhausted or given is not None

    # ---- snapshots

    def _coordinate(self, event: c.CoordinatorEvent) -> None:
        commands = self._coordinator.handle(event)
        if not isinstance(event, c.Tick):
            self._rescheduled.set()  # its next tick may be due earlier now
        for command in commands:
            match command:
                case c.PrepareSnapshot(number, seconds):
                    self._send_all(m.Prepare(number, seconds))
                    self._nursery.start_soon(self._prepare, number)
                case c.InjectBarriers(number, kind):
                    self._flights[number] = PendingSnapshot(
                        number, kind, self._system.clock(), int(time.time() * 1000)
                    )
                    self._nursery.start_soon(self._inject, number, kind)
                case c.PublishSnapshot(number):
                    self._nursery.start_soon(self._publish, self._flights[number])
                case c.CompleteSnapshot(number):
                    self._complete(number)
                    self._watch_loops(t.SnapshotEnded(number))
                case c.FinishJob(number):
                    self._complete(number, final=True)
                case c.AbortSnapshot(number, reason):
                    self._flights.pop(number, None)
                    self._aborted.append(number)
                    if len(self._aborted) >= 2 * MAX_ABORTED:
                        old = self._aborted[:MAX_ABORTED]
                        del self._aborted[:MAX_ABORTED]
                        self._nursery.start_soon(self._discard, old)
                    self._send_all(m.Abort(number))
                    self._job.observe({"event": "aborted", "number": number, "reason": reason})
                    self._watch_loops(t.SnapshotEnded(number))
                case c.ReserveNumbers():
                    self._nursery.start_soon(self._reserve)
                case c.FailAttempt(reason):
                    self._fail(StoreError(reason, recoverability=self._blame))

    def _report_delay(self) -> None:
        """Report the snapshot in flight if it has been under way for long."""
        coordinator = self._coordinator
        flight = self._flights.get(-1 if coordinator.number is None else coordinator.number)
        if flight is None:
            return
        job, seconds = self._job, self._system.clock() - flight.began
        missing = [task for task in job.plan.tasks() if task not in coordinator.acknowledged]
        if event := self._delays.report(flight.number, seconds, missing, job.metrics.cuts):
            job.observe(event)

    async def _prepare(self, number: int) -> None:
        """Make a snapshot's folder ahead; what fails is tried again when it begins."""
        with contextlib.suppress(StoreError):
            await self._make_folder(number)
            await self._job.in_store(partial(self._job.store.persist_folder, number))

    async def _make_folder(self, number: int) -> None:
        async with self._making:
            if self._made != number:
                await self._job.in_store(partial(self._job.store.create_folder, number))
                self._made = number

    async def _inject(self, number: int, kind: SnapshotKind) -> None:
        if self._job.keep:
            try:
                await self._make_folder(number)
            except PenstockError as error:
                declined = c.Declined("the store", number, str(error))
                self.post(partial(self._snapshot_failed, error, declined))
                return
        # While none is being dealt: a split that is handed out is either still the enumerator's
        # or goes to its reader before the barrier.
        async with self._dealing:
            flight = self._flights.get(number)
            if flight is None:
                return  # given up meanwhile
            try:
                flight.enumerators = self._dealer.snapshot()
            except PenstockError as error:
                self.post(partial(self._fail, error))
                return
            self._send_all(m.Inject(number, kind.value))

    def _snapshot_failed(self, error: PenstockError, event: c.CoordinatorEvent) -> None:
        """Give a snapshot up, or the attempt if no later one could succeed either."""
        self._blame = error.recoverability
        if self._blame is Recoverability.NON_RECOVERABLE:
            self._fail(error)
        else:
            self._coordinate(event)

    def _acknowledged(self, message: m.Acknowledge) -> None:
        flight = self._flights.get(message.number)
        if flight is None:
            return
        with malformed("acknowledgement"):
            handles = [OperatorHandle.from_wire(wire) for wire in message.handles]
            committables = [build(Committable, wire) for wire in message.committables]
            loop = None if message.loop is None else build(t.LoopStatus, message.loop)
        for handle in handles:
            # What a task's barrier overtook on its way to another comes behind what that other
            # one had on the same channel.
            own = handle.subtask == message.subtask and self._is_in(handle.uid, message.chain)
            (flight.handles if own else flight.overtaken).append(handle)
        self._job.types.record_written(message.types)
        flight.add(message, committables)
        task: Hashable = (message.chain, message.subtask)
        if loop is not None:
            self._watch_loops(t.StatusReported(task, message.number, loop))
        self._coordinate(c.Acknowledged(task, message.number))

    def _is_in(self, uid: str, chain: int) -> bool:
        return any(node.operator.uid == uid for node in self._job.plan.chains[chain].walk())

    def _watch_loops(self, event: t.LoopEvent) -> None:
        for command in self._loops.handle(event):
            match command:
                case t.RunEndOfInputHooks(loop, round):
                    self._send_all(m.EndInput(loop, round))
                case t.TerminateLoop(loop):
                    self._send_all(m.CloseLoop(loop))
                case t.RequestCheckpoint(delay):
                    self._coordinate(c.Tick(self._system.clock()))  # the delay counts from it
                    self._coordinate(c.CheckpointRequested(delay))

    async def _publish(self, flight: PendingSnapshot) -> None:
        number = flight.number
        try:
            await self._job.publish(
                number,
                flight.kind,
                attempt=self._number,
                handles=flight.handles + flight.overtaken,
                enumerators=flight.enumerators,
                committables=flight.committables,
                size=flight.size,
                wall_ms=flight.wall_ms,
                # Not of one that was begun before the last input ended: what came behind its
                # barrier is not in it.
                finished=flight.kind is SnapshotKind.FINAL
                and self._coordinator.ended == self._coordinator.tasks,
            )
        except PenstockError as error:
            self.post(partial(self._snapshot_failed, error, c.PublishFailed(number, str(error))))
        else:
            self.post(lambda: self._coordinate(c.Published(number)))

    def _complete(self, number: int, final: bool = False) -> None:
        flight = self._flights.pop(number)
        self._send_all(m.Complete(number))
        self._job.completed(flight.figures(self._system.clock(), self._ordinal))
        aborted, self._aborted = self._aborted, []
        self._nursery.start_soon(self._after, aborted, final)

    async def _after(self, aborted: list[int], final: bool) -> None:
        try:
            await self._job.commits.commit()
            self._job.observe({"event": "committed"})
            await self._job.tidy(aborted)
            if self._job.keep:
                await self._job.in_store(partial(self._dealer.retain, self._job.store))
        except PenstockError as error:
            self.post(partial(self._fail, error))
            return
        if final:
            self.post(self._finished.set)

    async def _discard(self, numbers: list[int]) -> None:
        """Remove what is left of snapshots that were given up; no task writes to them any more."""
        store = self._job.store

        def discard() -> None:
            for number in numbers:
                store.discard(number)

        # At once: the next snapshot waits for each call in the store.
        if self._job.keep:
            with contextlib.suppress(StoreError):
                await self._job.in_store(discard)

    async def _reserve(self) -> None:
        try:
            numbers = await self._job.reserve_numbers()
        except PenstockError as error:
            self.post(partial(self._fail, error))
        else:
            self.post(lambda: self._coordinate(c.NumbersReserved(numbers)))

    # ---- the end

    def _fail(self, error: PenstockError) -> None:
        if self._failure is None and not self._finished.is_set():
            self._failure = pinned(error)

    async def _explained(self, error: PenstockError) -> PenstockError:
        """The death of a worker, if that is behind a failure that another worker reported."""
        broken = isinstance(error, ConnectionLost)
        if not (broken or (isinstance(error, WorkerLost) and "connection" in str(error))):
            return error
        cause = error
        with trio.move_on_after(EXPLAIN_SECONDS):
            while True:
                handle = await self._events.receive()
                self._failure = None
                with contextlib.suppress(PenstockError):
                    handle()
                failure = self._failure
                if isinstance(failure, WorkerLost):
                    if "connection" not in str(failure):
                        return failure
                    # It tells which worker, at least.
                    cause = cause if isinstance(cause, WorkerLost) else failure
        return cause

    async def _farewell(self) -> None:
        """Let the workers end by themselves: they close functions and flush what they print."""
        self._send_all(m.Shutdown())
        with trio.move_on_after(FAREWELL_SECONDS):
            for worker in self._workers.values():
                await worker.handle.wait()
