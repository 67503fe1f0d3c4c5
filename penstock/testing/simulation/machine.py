"""Processes, connections and threads inside one trio run; all times virtual, all choices seeded.

A process can be killed at any await, with the effects of SIGKILL: the other ends of its connections
see the end of the stream, its threads never finish, and its locks are free again. Code of the
killed process that runs while it is cancelled can reach nothing outside it any more.

A process can be paused, and a connection can be cut. The other processes notice neither at once.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control import messages as m
from penstock.runtime.control.handshake import client_handshake
from penstock.runtime.system.launcher import WorkerHandle, WorkerSpec
from penstock.runtime.system.memory_connection import MemoryNetwork, MemoryStream
from penstock.runtime.system.processor import WholeProcessor
from penstock.runtime.system.system import System
from penstock.runtime.system.transport import ConnectionHandler
from penstock.runtime.taskmanager.taskmanager import TaskManager
from penstock.testing.simulation.scheduler import OWNER, PausedTasks

#: The way in which a killed process has ended, as `Process.how` names it.
KILLED = "killed by signal 9"
#: The time of day at the beginning of a run.
EPOCH_MS = 1_700_000_000_000


class Killed(BaseException):
    """The process that wanted this done is dead."""


@dataclass(eq=False)
class Process:
    """A simulated process: a cancel scope, and all that must end with it."""

    name: str
    pid: int
    paused: PausedTasks
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    dead: bool = False
    how: str = ""
    ended: trio.Event = field(default_factory=trio.Event)
    streams: list[SimulatedStream] = field(default_factory=list)
    waiting: set[trio.Event] = field(default_factory=set)
    on_kill: list[Callable[[], None]] = field(default_factory=list)
    #: When it began, and when it ended, in virtual seconds.
    begin: float = field(default_factory=trio.current_time)
    end: float | None = None
    #: How far its wall clock is ahead, in milliseconds.
    clock_ahead_ms: int = 0
    #: Whether a kill by another process does not reach it now.
    unreachable: bool = False
    #: Whether another process may have taken its place. It may fail then, but must change nothing.
    replaced: bool = False

    def kill(self) -> None:
        """End it at once, as SIGKILL does."""
        if self.dead:
            return
        self.dead, self.how = True, KILLED
        self.end = trio.current_time()
        self.paused.resume(self)
        self.scope.cancel()
        for stream in self.streams:
            stream.close()
        for event in self.waiting:
            event.set()
        for release in self.on_kill:
            release()


class SimulatedStream(trio.abc.Stream):
    """One end of a connection. Data arrives after random delays, in order.

    Arguments:
        machine: the machine.
        process: the process that has this end.
        inner: what it sends with and receives from.
    """

    def __init__(self, machine: Machine, process: Process, inner: MemoryStream) -> None:
        self._machine = machine
        self.process = process
        self._inner = inner
        #: The other end; None until it is served.
        self.peer: SimulatedStream | None = None
        #: The event before which data that has arrived is not received; None if nothing is held.
        self._held: trio.Event | None = None
        self._broken = False

    @property
    def is_open(self) -> bool:
        """Whether both processes are alive and connected."""
        ends = (self, self.peer) if self.peer is not None else ()
        return bool(ends) and not any(end.process.dead or end._inner.is_closed for end in ends)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        self._require_whole()
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until bytes can be sent."""
        self._require_whole()
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive bytes, some time after they have arrived."""
        try:
            data = await self._inner.receive_some(max_bytes)
        except trio.ClosedResourceError:
            self._require_whole()
            raise
        await self._machine.delay()
        if self._held is not None:
            await self._held.wait()
        self._require_whole()
        return data

    def _require_whole(self) -> None:
        if self._broken:
            raise trio.BrokenResourceError("the connection was cut")

    def hold(self) -> None:
        """Receive nothing from now on, without a sign of it."""
        if self._held is None:
            self._held = trio.Event()

    def let_go(self, broken: bool) -> None:
        """Receive the data that was held, or break the connection."""
        held, self._held = self._held, None
        if broken and not self._broken:
            self._broken = True
            self._inner.close()
        if held is not None:
            held.set()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    def close(self) -> None:
        """Close at once. The other end reads the sent data, then the end of the stream."""
        self._inner.close()


class Machine:
    """The machine that all processes of a simulation share.

    Arguments:
        rng: of all choices.
        nursery: for processes and their threads.
        delay_seconds: mean of the delays that are not zero.
    """

    def __init__(
        self, rng: random.Random, nursery: trio.Nursery, delay_seconds: float = 0.001
    ) -> None:
        self.rng = rng
        self.nursery = nursery
        self.delay_seconds = delay_seconds
        #: Exceptions of processes that were not killed: each is a bug.
        self.crashes: list[BaseException] = []
        self.processes: list[Process] = []
        #: The number of workers that can run at a time; None for any number.
        self.slots: int | None = None
        #: One end of each connection; see `SimulatedStream.peer` for the other.
        self.streams: list[SimulatedStream] = []
        self._network = MemoryNetwork()
        #: The ends that connected and are not served yet, by the other end.
        self._connecting: dict[MemoryStream, SimulatedStream] = {}
        self._paused = PausedTasks()

    async def delay(self) -> None:
        """Wait for a random time: often none, seldom a long one."""
        chance = self.rng.random()
        if chance < 0.6:
            await trio.lowlevel.checkpoint()
        else:
            scale = 10 if chance > 0.99 else 1
            await trio.sleep(self.rng.expovariate(1 / (self.delay_seconds * scale)))

    def process(self, name: str) -> Process:
        """Return a new process, which is not started yet."""
        process = Process(name, 1000 + len(self.processes), self._paused)
        self.processes.append(process)
        return process

    @property
    def running_workers(self) -> int:
        """The number of workers that run. Those that were replaced do not count."""
        return sum(
            not (process.dead or process.replaced or process.name == "JobManager")
            for process in self.processes
        )

    def start(self, process: Process, main: Callable[[], Awaitable[None]]) -> None:
        """Run a process to its end."""
        self.spawn(self._run, process, main)

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Run a function that belongs to no process, even if a process calls this."""
        token = OWNER.set(None)
        try:
            self.nursery.start_soon(function, *arguments)
        finally:
            OWNER.reset(token)

    def close(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
        self._paused.close()

    async def _run(self, process: Process, main: Callable[[], Awaitable[None]]) -> None:
        OWNER.set(process)
        try:
            with process.scope:
                await main()
        except (KeyboardInterrupt, SystemExit):
            raise  # the user ends the simulation
        except BaseException as error:
            # The operating system would discard an error of a process that was killed.
            if not (process.dead or process.replaced):
                self.crashes.append(error)
        OWNER.set(None)
        how = process.how or "exited with code 0"
        process.kill()
        process.how = how
        # Other processes notice a death at different times: by the process, or by a connection.
        await self.delay()
        process.ended.set()

    def system(self, process: Process) -> System:
        """Return the clock, connections, threads and processes of a process."""
        elapsed = 0.0

        def timer() -> float:
            # Made up, so that slices of work end at different places under different seeds.
            nonlocal elapsed
            elapsed += self.rng.expovariate(1 / 0.0002)
            return elapsed

        return System(
            trio.current_time,
            _Transport(self, process),
            _Launcher(self),
            lambda function: self.offload(process, function),
            pid=process.pid,
            rng=self.rng,
            timer=timer,
            processor=WholeProcessor(trio.current_time),
            start_heartbeat=lambda spec: self.nursery.start_soon(self._heartbeat, process, spec),
            wall_clock=lambda: EPOCH_MS + process.clock_ahead_ms + int(trio.current_time() * 1000),
            run="simulation",
        )

    async def _heartbeat(self, process: Process, spec: WorkerSpec) -> None:
        """Send heartbeats while the process lives, as the thread of a worker does."""
        try:
            stream = await self.connect(process, spec.address)
            connection = await client_handshake(stream, spec.token)
            while not process.dead:
                await connection.send(m.encode(m.Heartbeat(spec.worker, spec.attempt)))
                await trio.sleep(spec.heartbeat_seconds)
        except (PenstockError, trio.BrokenResourceError, trio.ClosedResourceError, OSError, Killed):
            pass  # the process, its JobManager or their connection has ended

    # ---- faults

    def pause(self, process: Process, seconds: float, *, unreachable: bool = False) -> None:
        """Let a process do nothing for a while.

        Arguments:
            process: the process.
            seconds: how long, in virtual seconds.
            unreachable: meanwhile, a kill by another process has no effect.
        """
        if not process.dead:
            process.unreachable = unreachable
            process.replaced |= unreachable
            self._paused.pause(process)
            self.spawn(self._wake, process, seconds)

    async def _wake(self, process: Process, seconds: float) -> None:
        await trio.sleep(seconds)
        process.unreachable = False
        self._paused.resume(process)

    def slow_down(self, process: Process, seconds: float) -> None:
        """Let a process run in bursts for a while, with short pauses between them."""
        self.spawn(self._slow, process, trio.current_time() + seconds)

    async def _slow(self, process: Process, end: float) -> None:
        while trio.current_time() < end and not process.dead:
            self._paused.pause(process)
            await trio.sleep(self.rng.expovariate(1 / 0.01))
            self._paused.resume(process)
            await trio.sleep(self.rng.expovariate(1 / 0.004))

    def cut(self, seconds: float, *, one_way: bool, heals: bool) -> str:
        """Hold the data on a connection for a while, and then break the connection.

        Arguments:
            seconds: how long, in virtual seconds.
            one_way: hold the data of one direction only.
            heals: deliver everything afterwards, instead of breaking the connection.

        Returns:
            The names of both processes; "" if there is no connection.
        """
        self.streams = [stream for stream in self.streams if stream.is_open]
        if not self.streams:
            return ""
        one = self.rng.choice(self.streams)
        assert one.peer is not None
        ends = [one, one.peer]
        self.rng.shuffle(ends)
        for end in ends[:1] if one_way else ends:
            end.hold()
        self.spawn(self._end_cut, ends, seconds, heals)
        return f"{ends[1].process.name} {'→' if one_way else '↔'} {ends[0].process.name}"

    async def _end_cut(self, ends: list[SimulatedStream], seconds: float, heals: bool) -> None:
        await trio.sleep(seconds)
        for end in ends:
            end.let_go(not heals)

    # ---- parts of the systems of processes

    async def offload(self, process: Process, function: Callable[[], Any]) -> Any:
        """Run a blocking function in a thread of the process: at one moment, at some time.

        As in reality the caller can be cancelled, and the thread then goes on alone.
        """
        if process.dead:
            raise Killed
        done = trio.Event()
        outcome: list[Any] = []

        async def thread() -> None:
            await self.delay()
            if process.dead:
                return
            try:
                outcome.append(function())
            except BaseException as error:
                outcome.append(_Raised(error))
            await self.delay()
            done.set()

        process.waiting.add(done)
        self.nursery.start_soon(thread)
        try:
            await done.wait()
        finally:
            process.waiting.discard(done)
        if process.dead:
            raise Killed
        (result,) = outcome
        if isinstance(result, _Raised):
            raise result.error
        return result

    async def listen(
        self, process: Process, name: str, handler: ConnectionHandler, nursery: Any
    ) -> str:
        """Serve connections until the nursery is cancelled."""

        async def serve(inner: MemoryStream) -> None:
            OWNER.set(process)
            peer = self._connecting.pop(inner.peer, None)
            if not process.dead:
                stream = SimulatedStream(self, process, inner)
                process.streams.append(stream)
                if peer is not None:
                    stream.peer, peer.peer = peer, stream
                    self.streams.append(stream)
                await handler(stream)

        address = f"sim:{process.pid}/{name}"
        self._network.listen(address, serve, nursery)
        await trio.lowlevel.checkpoint()
        return address

    async def connect(self, process: Process, address: str) -> trio.abc.Stream:
        """Connect, or be refused."""
        await self.delay()
        if process.dead:
            raise Killed
        inner = self._network.connect(address)
        stream = self._connecting[inner] = SimulatedStream(self, process, inner)
        process.streams.append(stream)
        return stream


@dataclass
class _Raised:
    error: BaseException


class _Transport:
    """The connections of one process."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine = machine
        self._process = process

    async def listen(self, name: str, handler: ConnectionHandler, nursery: trio.Nursery) -> str:
        return await self._machine.listen(self._process, name, handler, nursery)

    async def connect(self, address: str) -> trio.abc.Stream:
        return await self._machine.connect(self._process, address)

    def forget(self, attempt: int) -> None:
        del attempt  # a simulated process leaves nothing

    def close(self) -> None:
        return None


@dataclass
class _Handle:
    process: Process
    pid: int

    async def wait(self) -> str:
        await self.process.ended.wait()
        return self.process.how

    def kill(self) -> None:
        if not self.process.unreachable:
            self.process.kill()


class _Launcher:
    """Starts workers as processes of the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        machine = self._machine
        if machine.slots is not None and machine.running_workers >= machine.slots:
            raise OSError(errno.EAGAIN, "the machine has no slot left")
        process = machine.process(f"worker {spec.worker}")
        worker = TaskManager(spec, machine.system(process))

        async def main() -> None:
            await machine.delay()
            await worker.run()

        machine.start(process, main)
        await machine.delay()
        return _Handle(process, process.pid)
