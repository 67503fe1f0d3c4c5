"""Receive the offers of workers whose JobManager has died: `RejoinServer`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control import messages as m
from penstock.runtime.control.admission import Admission
from penstock.runtime.control.framing import Frames
from penstock.runtime.system.adopted_process import AdoptedProcess
from penstock.runtime.system.signal import Signal

logger = logging.getLogger("penstock.jobmanager")

#: The time that all workers have to offer their tasks, in seconds. Workers connect as soon as their
#: JobManager has died, so they usually wait already. A function of the user may keep one busy.
GATHER_SECONDS = 5.0
#: The time after which no worker is expected if none has come, in seconds.
NOBODY_SECONDS = 0.3
#: The time for which a JobManager waits until refused workers have ended, in seconds.
REFUSE_SECONDS = 0.5
#: The time for which it waits until those have ended that it has killed, in seconds.
KILL_SECONDS = 1.0


class RejoinedWorker:
    """A worker that has offered its tasks, and waits for the answer.

    Arguments:
        offer: the offer.
        frames: the connection to the worker.
    """

    def __init__(self, offer: m.Rejoin, frames: Frames) -> None:
        self.offer = offer
        self.process = AdoptedProcess(offer.pid)
        self._frames = frames
        self._serve: Callable[[Frames], Awaitable[None]] | None = None
        self._decided = trio.Event()

    def accept(self, serve: Callable[[Frames], Awaitable[None]]) -> None:
        """Let a function serve the connection from now on."""
        self._serve = serve
        self._decided.set()

    def refuse(self) -> None:
        """Order the worker to end."""
        self._decided.set()

    async def run(self, ended: Callable[[], None]) -> None:
        """Wait for the decision, and serve the connection.

        Arguments:
            ended: called if the process of the worker ends before the decision.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, ended)
            await self._decided.wait()
            nursery.cancel_scope.cancel()
        if self._serve is not None:
            await self._serve(self._frames)
        else:
            await self._frames.send(m.encode(m.Shutdown()))

    async def _watch(self, ended: Callable[[], None]) -> None:
        await self.process.wait()
        ended()


class RejoinServer:
    """Gathers the workers of a dead JobManager until the next one decides about them.

    A worker that comes later is refused, and ends.

    Arguments:
        token: the secret of the connections.
        gathers: whether workers of an earlier JobManager may come.
    """

    def __init__(self, token: bytes, gathers: bool) -> None:
        self._admission = Admission(token)
        self._gathers = gathers
        self._workers: list[RejoinedWorker] = []
        self._came = Signal()
        #: Whether a worker that has come has ended, so that the others cannot go on without it.
        self._broken = False
        #: The attempt whose heartbeats are received, with the function that is called with them.
        self._attempt = -1
        self._contacted: Callable[[m.Heartbeat], None] = lambda _: None
        self._decided = trio.Event()
        if not gathers:
            self._decided.set()

    async def gather(self, count: int) -> list[RejoinedWorker]:
        """Wait until `count` workers have come, at most for `GATHER_SECONDS`.

        If one of them ends, the others are not waited for.

        Returns:
            The workers, which wait for an answer. Those of different attempts may be among them.
        """
        if not self._gathers:
            return []
        # Workers open their connections at the same time.
        self._admission.expect(2 * count)
        until = trio.current_time() + GATHER_SECONDS
        if not self._workers:
            await self._came.wait(trio.current_time() + NOBODY_SECONDS)
        while self._workers and not self._broken and trio.current_time() < until:
            if len(self._workers) >= count:
                break
            await self._came.wait(until)
        self._gathers = False
        return list(self._workers)

    def take_over(self, attempt: int, contacted: Callable[[m.Heartbeat], None]) -> None:
        """Receive the heartbeats of an attempt, and refuse those of others.

        Arguments:
            attempt: the number of the attempt.
            contacted: called with each heartbeat.
        """
        self._attempt, self._contacted = attempt, contacted
        self._decided.set()

    async def refuse(self, workers: Sequence[RejoinedWorker]) -> None:
        """Order workers to end, and kill those that do not end in time."""
        self._gathers = False
        self._attempt = -1
        self._decided.set()
        for worker in workers:
            worker.refuse()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(REFUSE_SECONDS) as scope:
                for worker in workers:
                    await worker.process.wait()
            if scope.cancelled_caught:
                for worker in workers:
                    worker.process.kill()
                with trio.move_on_after(KILL_SECONDS):
                    for worker in workers:
                        await worker.process.wait()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection of a worker, for messages or for heartbeats."""
        with contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
            frames = await self._admission.admit(stream)
            frame = None if frames is None else await frames.receive()
            if frames is None or frame is None:
                return
            match m.decode(frame):
                case m.Rejoin() as offer:
                    worker = RejoinedWorker(offer, frames)
                    if self._gathers:
                        self._workers.append(worker)
                        self._came.set()
                    else:
                        logger.info("worker %d is not taken over, and ends", offer.worker)
                        worker.refuse()
                    await worker.run(self._worker_ended)
                case m.Heartbeat() as heartbeat:
                    await self._receive_heartbeats(heartbeat, frames)

    def _worker_ended(self) -> None:
        self._broken = True
        self._came.set()

    async def _receive_heartbeats(self, first: m.Heartbeat, frames: Frames) -> None:
        await self._decided.wait()
        message: m.Message = first
        while isinstance(message, m.Heartbeat):
            if message.attempt != self._attempt:
                await frames.send(m.encode(m.Shutdown()))
                return
            self._contacted(message)
            frame = await frames.receive()
            if frame is None:
                return
            message = m.decode(frame)
