"""Start and watch the workers of one attempt, and exchange messages with them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from functools import partial

import trio

from penstock.dataflow.config.start_method import StartMethod
from penstock.dataflow.errors import ProtocolError
from penstock.runtime.control import messages as m
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.framing import Frames
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.deployment import Deployment
from penstock.runtime.jobmanager.attempt.rescaling import WorkersNotStarted
from penstock.runtime.jobmanager.attempt.worker_connection import WorkerConnection, WorkerLost
from penstock.runtime.jobmanager.takeover.rejoin_server import RejoinedWorker
from penstock.runtime.system.launcher import WorkerHandle, WorkerSpec
from penstock.runtime.system.system import System

#: The time that a worker may take to start and connect, in seconds.
START_SECONDS = 60.0
#: The time that workers may take to close their functions at the end, in seconds.
SHUTDOWN_SECONDS = 30.0
#: The time for which an attempt waits until its killed workers have ended, in seconds.
KILL_SECONDS = 1.0
#: The time without a report of its task loop after which a worker counts as busy, in seconds.
BUSY_SECONDS = 3.0
#: The time between two checks of the heartbeats, in seconds.
HEARTBEAT_CHECK_SECONDS = 1.0


class WorkerPool:
    """Starts and watches the workers of one attempt.

    Arguments:
        deployment: the deployment of the attempt.
        system: starts processes and serves connections.
        loop: the event loop of the attempt. The loss of a worker ends it.
        receive: called in the loop with the slot of a worker and each message of the worker.
        lost: called in the loop when the worker of a slot is lost.
    """

    def __init__(
        self,
        deployment: Deployment,
        system: System,
        loop: AttemptLoop,
        receive: Callable[[int, m.Message], None],
        lost: Callable[[int, WorkerLost], None],
    ) -> None:
        self._deployment = deployment
        self._system = system
        self._loop = loop
        self._receive = receive
        self._lost = lost
        self._tasks = frozenset(deployment.plan.tasks())
        self._token = secrets.token_bytes(32)
        self._admission = Admission(self._token)
        # Each worker opens two connections: one for messages, and one for heartbeats.
        self._admission.expect(2 * (deployment.plan.slots + deployment.missing_slots))
        self._workers: dict[int, WorkerConnection] = {}
        #: The address at which workers connect.
        self._address = ""
        #: The workers of this attempt that could not be started, by slot.
        self._not_started: dict[int, WorkerLost] = {}
        #: For each worker that is only started as a trial, whether it has connected, by slot.
        self._trials: dict[int, trio.Event] = {}
        self._launched = trio.Event()

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the workers, and watch them from now on.

        Raise `OSError` if a process cannot be started; `WorkersNotStarted` in a job that can
        continue with fewer.
        """
        name, slots = f"jm.{self._deployment.number}", self._deployment.plan.slots
        self._address = await self._system.transport.listen(name, self._serve, nursery)
        for slot in range(slots):
            try:
                await self._launch(slot)
            except OSError as error:
                if not self._deployment.config.restart_reactive:
                    raise
                # The system would refuse the others, too.
                text = f"{slots - slot} of {slots} workers could not be started: {error}"
                raise WorkersNotStarted(text, self._region, slots - slot) from error
        self._launched.set()
        self._report_not_started()
        self._loop.spawn(self._watch_heartbeats)

    async def _launch(self, slot: int) -> None:
        spec = self._spec(self._address, slot)
        handle = await self._system.launcher.launch(spec)
        worker = self._workers[slot] = WorkerConnection(handle, spec, self._system.clock())
        self._loop.spawn(self._watch_process, slot, worker)

    async def end(self, slots: Iterable[int]) -> None:
        """End the workers of some slots at once, and wait until they have ended.

        They do not count as lost. The wait takes at most `KILL_SECONDS`.
        """
        workers = [self._workers[slot] for slot in slots]
        for worker in workers:
            worker.retired = True
        await _end([worker.handle for worker in workers])

    async def replace(self, slots: Collection[int], deployment: Deployment) -> None:
        """Start new workers in some slots, whose workers have ended.

        Raise `OSError` if a process cannot be started.

        Arguments:
            slots: the slots.
            deployment: the deployment of the new workers.
        """
        self._deployment = deployment
        self._admission.expect(2 * len(slots))
        # A worker may connect before its launch has returned, and must not be taken for the worker
        # that was in its slot before.
        self._launched = trio.Event()
        for slot in slots:
            await self._launch(slot)
        self._launched.set()

    def adopt(self, workers: Sequence[RejoinedWorker]) -> None:
        """Continue with the workers of an earlier JobManager, and watch them from now on.

        Arguments:
            workers: the workers in the order of the slots. Their tasks process records.
        """
        for slot, worker in enumerate(workers):
            spec = WorkerSpec("", b"", slot, self._deployment.number, 0.0)
            connection = WorkerConnection(worker.process, spec, self._system.clock())
            connection.connected(worker.offer.address)
            connection.opened()
            self._workers[slot] = connection
        self._launched.set()
        for slot, worker in enumerate(workers):
            self._loop.spawn(self._watch_process, slot, self._workers[slot])
            worker.accept(partial(self._serve_adopted, slot))
        self._loop.spawn(self._watch_heartbeats)

    def _spec(self, address: str, slot: int) -> WorkerSpec:
        code = self._deployment.code
        return WorkerSpec(
            address,
            self._token,
            slot,
            self._deployment.number,
            code.config.heartbeat_seconds,
            code.search_path,
            code.folder,
            code.config.host,
            self._deployment.python,
            code.config.start_method is StartMethod.FORK,
            *(astuple(self._deployment.rejoin) if self._deployment.rejoin else ()),
        )

    async def stand_by(self, count: int) -> None:
        """Let `count` processes wait that can become workers of a later attempt."""
        deployment = self._deployment
        if self._system.stand_by is not None:
            # Files of the job must be unpacked before its code is loaded, so the worker does both.
            code = b"" if deployment.python_files else deployment.packed_code
            await self._system.stand_by(count, self._spec("", 0), code)

    @property
    def _region(self) -> int:
        return self._deployment.plan.running_chains[0].id

    async def count_startable(self) -> int:
        """Return how many of the missing workers could be started now.

        They are started, and end as soon as they have connected.
        """
        first, handles = self._deployment.plan.slots, []
        found = 0
        try:
            for slot in range(first, first + self._deployment.missing_slots):
                connected = self._trials[slot] = trio.Event()
                try:
                    handle = await self._system.launcher.launch(self._spec(self._address, slot))
                except OSError:
                    break
                handles.append(handle)
                with trio.move_on_after(START_SECONDS):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_cancel_after, nursery, handle.wait)
                        await connected.wait()
                        found += 1
                        nursery.cancel_scope.cancel()
        finally:
            self._trials.clear()
            await _end(handles)
        return found

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.handle.pid for worker in self._workers.values()]

    def connected(self, slot: int, address: str) -> list[str] | None:
        """Record the address of a worker, and return all addresses if they are known.

        Return None if another worker has not connected yet.
        """
        self._workers[slot].connected(address)
        self._report_not_started()
        addresses = [worker.address for _, worker in sorted(self._workers.items())]
        known = [address for address in addresses if address]
        return known if len(known) == len(addresses) else None

    def ready(self, slot: int) -> bool:
        """Record that a worker is ready, and return whether all workers are ready."""
        self._workers[slot].opened()
        return all(worker.ready for worker in self._workers.values())

    def reported(self, slot: int) -> None:
        """Record that the task loop of a worker has reported."""
        self._workers[slot].reported(self._system.clock())

    def busy(self) -> list[int]:
        """Return the slots of workers whose task loop has not reported for a while.

        Such a worker is alive, but user code may keep its event loop busy.
        """
        now = self._system.clock()
        workers = self._workers.items()
        return [slot for slot, worker in workers if worker.busy_for(now) > BUSY_SECONDS]

    def send(self, slot: int, message: m.Message) -> None:
        """Send a message to one worker."""
        self._workers[slot].send(message)

    def send_to(self, chain: int, subtask: int, message: m.Message) -> None:
        """Send a message to the worker that runs a task."""
        self.send(self._deployment.plan.slot_of(chain, subtask), message)

    def send_all(self, message: m.Message) -> None:
        """Send a message to all workers."""
        for worker in self._workers.values():
            worker.send(message)

    def send_each(self, messages: Sequence[m.Message]) -> None:
        """Send each worker its own message. The messages are in the order of the slots."""
        for slot, message in enumerate(messages):
            self.send(slot, message)

    async def kill(self) -> None:
        """End all workers at once, and wait until they have ended, at most for `KILL_SECONDS`.

        A process that has ended remains as a zombie until its parent has waited for it.
        """
        await _end([worker.handle for worker in self._workers.values()])

    async def shut_down(self) -> None:
        """Order the workers to end, and wait until they have closed their functions.

        Wait at most for `SHUTDOWN_SECONDS`.
        """
        self.send_all(m.Shutdown())
        with trio.move_on_after(SHUTDOWN_SECONDS):
            for worker in self._workers.values():
                await worker.handle.wait()

    # ---- watching

    async def _watch_process(self, slot: int, worker: WorkerConnection) -> None:
        self._lose(slot, worker, await worker.died())

    def _lose(self, slot: int, worker: WorkerConnection, lost: WorkerLost) -> None:
        """Report that a worker is lost, or that it could not be started."""
        if worker.retired:
            return
        if self._deployment.config.restart_reactive and worker.address is None:
            self._not_started[slot] = lost
            self._report_not_started()
        else:
            self._loop.post(partial(self._lost, slot, lost))

    def _report_not_started(self) -> None:
        """Report the workers that could not be started, when it is known of each."""
        lost, all_launched = self._not_started, self._launched.is_set()
        waiting = [slot for slot, worker in self._workers.items() if worker.address is None]
        if lost and all_launched and lost.keys() >= set(waiting):
            text = f"{len(lost)} of {len(self._workers)} workers could not be started"
            text = f"{text}: {next(iter(lost.values()))}"
            self._loop.post_failure(WorkersNotStarted(text, self._region, len(lost)))

    async def _watch_heartbeats(self) -> None:
        """Report workers that have sent neither a message nor a heartbeat for too long."""
        config, clock = self._deployment.config, self._system.clock
        while True:
            wake = clock() + HEARTBEAT_CHECK_SECONDS
            await trio.sleep_until(wake)
            now = clock()
            for slot, worker in self._workers.items():
                limit = config.heartbeat_timeout_seconds if worker.address else START_SECONDS
                if now > wake + config.heartbeat_seconds:
                    # This process itself did not run for a while, so it could not receive
                    # heartbeats.
                    worker.excuse(now - wake, now)
                elif worker.silent_for(now) > limit:
                    missing = "has sent no heartbeat" if worker.address else "has not connected"
                    self._lose(slot, worker, worker.lost(f"{missing} for {limit:g} s"))

    # ---- connections

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection of a worker, for messages or for heartbeats."""
        frames = await self._admission.admit(stream)
        if frames is None:
            return
        slot, worker = -1, None
        how, disconnected = "lost its connection", True
        try:
            while (frame := await frames.receive()) is not None:
                message = m.decode(frame)
                if isinstance(message, m.Heartbeat):
                    self.note_heartbeat(message)
                    continue
                if worker is None:
                    worker = await self._admit(message, frames)
                    if worker is None:
                        return
                    slot = worker.spec.worker
                worker.contacted(self._system.clock())
                self._loop.post(partial(self._handle, slot, worker, message))
        except ProtocolError as error:
            how, disconnected = f"sent a message that cannot be understood: {error}", False
        except (trio.BrokenResourceError, OSError):
            pass
        if worker is not None:
            self._lose(slot, worker, worker.lost(how, disconnected=disconnected))

    async def _serve_adopted(self, slot: int, frames: Frames) -> None:
        """Serve the connection for messages of an adopted worker."""
        worker = self._workers[slot]
        how, disconnected = "lost its connection", True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.write, frames)
            try:
                while (frame := await frames.receive()) is not None:
                    worker.contacted(self._system.clock())
                    self._loop.post(partial(self._handle, slot, worker, m.decode(frame)))
            except ProtocolError as error:
                how, disconnected = f"sent a message that cannot be understood: {error}", False
            except (trio.BrokenResourceError, OSError):
                pass
            nursery.cancel_scope.cancel()
        self._lose(slot, worker, worker.lost(how, disconnected=disconnected))

    def note_heartbeat(self, message: m.Heartbeat) -> None:
        """Record that a worker of this attempt has sent a heartbeat."""
        worker = self._workers.get(message.worker)
        if worker is not None and message.attempt == worker.spec.attempt:
            worker.contacted(self._system.clock())

    async def _admit(self, message: m.Message, frames: Frames) -> WorkerConnection | None:
        """Check the first message of a worker, and return the worker.

        Return None to refuse a worker of another attempt. Raise `ProtocolError` if the attempt has
        no such slot.
        """
        if not isinstance(message, m.Hello) or message.attempt != self._deployment.number:
            return None
        # A worker may connect before all workers are launched.
        await self._launched.wait()
        if message.worker in self._trials:
            self._trials[message.worker].set()
            return None
        worker = self._workers.get(message.worker)
        if worker is None:
            raise ProtocolError(f"there is no worker {message.worker}")
        if message.attempt != worker.spec.attempt:
            return None  # a worker of this slot that was replaced before it had connected
        self._loop.spawn(worker.write, frames)
        return worker

    def _handle(self, slot: int, worker: WorkerConnection, message: m.Message) -> None:
        if not worker.retired:
            self._check_task(slot, message)
            self._receive(slot, message)

    def _check_task(self, slot: int, message: m.Message) -> None:
        """Raise `ProtocolError` for a message of a task that its worker does not run."""
        chain, subtask = getattr(message, "chain", -1), getattr(message, "subtask", slot)
        # A failure of the worker itself has no task, and -1 as its chain.
        if chain == -1:
            runs_it = subtask == slot
        else:
            runs_it = (chain, subtask) in self._tasks and (
                self._deployment.plan.slot_of(chain, subtask) == slot
            )
        if not runs_it:
            raise ProtocolError(
                f"worker {slot} sent a {type(message).__name__} of a task that it does not run"
            )


async def _cancel_after(nursery: trio.Nursery, function: Callable[[], Awaitable[object]]) -> None:
    """Call a function, and cancel a nursery when it has returned."""
    await function()
    nursery.cancel_scope.cancel()


async def _end(handles: Sequence[WorkerHandle]) -> None:
    """End workers at once, and wait until they have ended, at most for `KILL_SECONDS`."""
    for handle in handles:
        handle.kill()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + KILL_SECONDS):
        for handle in handles:
            await handle.wait()
