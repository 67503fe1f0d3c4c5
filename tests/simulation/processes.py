"""Processes, connections and threads inside one trio run; all times virtual, all choices seeded.

A process can be killed at any await. What a kill leaves is what SIGKILL leaves: connections whose
other ends see the end of the stream, threads that never finish, locks that are free again. Code of
the killed process that runs while it is cancelled can reach nothing outside it any more.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from penstock.runtime.system.launcher import WorkerHandle, WorkerSpec
from penstock.runtime.system.memory_connection import MemoryNetwork, MemoryStream
from penstock.runtime.system.processor import WholeProcessor
from penstock.runtime.system.system import System
from penstock.runtime.system.transport import ConnectionHandler
from penstock.runtime.taskmanager.taskmanager import TaskManager

#: How a process ended that was killed.
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
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    dead: bool = False
    how: str = ""
    ended: trio.Event = field(default_factory=trio.Event)
    streams: list[SimulatedStream] = field(default_factory=list)
    waiting: set[trio.Event] = field(default_factory=set)
    on_kill: list[Callable[[], None]] = field(default_factory=list)

    def kill(self) -> None:
        """End it at once, as SIGKILL does."""
        if self.dead:
            return
        self.dead, self.how = True, KILLED
        self.scope.cancel()
        for stream in self.streams:
            stream.close()
        for event in self.waiting:
            event.set()
        for release in self.on_kill:
            release()


class SimulatedStream(trio.abc.Stream):
    """One end of a connection; what arrives is delayed at random, in order."""

    def __init__(self, machine: Machine, inner: MemoryStream) -> None:
        self._machine = machine
        self._inner = inner

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await self._inner.receive_some(max_bytes)
        await self._machine.delay()
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()

    def close(self) -> None:
        """Close at once; the other end reads what is under way, then the end of the stream."""
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
        self._network = MemoryNetwork()

    async def delay(self) -> None:
        """Wait for a random time: often none, seldom a long one."""
        chance = self.rng.random()
        if chance < 0.6:
            await trio.lowlevel.checkpoint()
        else:
            scale = 10 if chance > 0.99 else 1
            await trio.sleep(self.rng.expovariate(1 / (self.delay_seconds * scale)))

    def process(self, name: str) -> Process:
        """A new process, not yet started."""
        process = Process(name, 1000 + len(self.processes))
        self.processes.append(process)
        return process

    def start(self, process: Process, main: Callable[[], Awaitable[None]]) -> None:
        """Run a process to its end."""
        self.nursery.start_soon(self._run, process, main)

    async def _run(self, process: Process, main: Callable[[], Awaitable[None]]) -> None:
        try:
            with process.scope:
                await main()
        except BaseException as error:
            # Whatever comes out of a killed process while it is torn down, nobody would see.
            if not process.dead:
                self.crashes.append(error)
        how = process.how or "exited with code 0"
        process.kill()
        process.how = how
        # The others hear of a death at different times: by the process, or by a connection.
        await self.delay()
        process.ended.set()

    def system(self, process: Process) -> System:
        """What the runtime in this process is given."""
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
            wall_clock=lambda: EPOCH_MS + int(trio.current_time() * 1000),
        )

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
            if not process.dead:
                stream = SimulatedStream(self, inner)
                process.streams.append(stream)
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
        stream = SimulatedStream(self, self._network.connect(address))
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
        self.process.kill()


class _Launcher:
    """Starts workers as processes of the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        machine = self._machine
        process = machine.process(f"worker {spec.worker}")
        worker = TaskManager(spec, machine.system(process))

        async def main() -> None:
            await machine.delay()
            await worker.run()

        machine.start(process, main)
        await machine.delay()
        return _Handle(process, process.pid)
