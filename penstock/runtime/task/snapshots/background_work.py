"""Run work in slices, and define the work of a checkpoint writer besides writing snapshots.

Entries of keyed state are evicted when the state exceeds its memory limit. Before a snapshot,
entries are flushed and files are prepared, so that less work is left when the barrier arrives.
Each kind of work is a `BackgroundWork`. The checkpoint writer runs the first kind that has work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from penstock.runtime.task.snapshots.write_scheduler import WriteScheduler
from penstock.snapshot.state import KeyedBackend

#: The delay after which a task no longer expects an announced snapshot, in seconds.
LATE_SECONDS = 0.1
#: The minimum time from an announcement to its snapshot, in seconds. If the time is shorter, the
#: task does no work ahead of the snapshot.
LEAST_LEAD_SECONDS = 0.05

#: A function that runs a blocking call off the event loop.
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]
#: A function that lets the other coroutines of the event loop run once.
Pause = Callable[[], Awaitable[None]]


async def drive(
    steps: Generator[Callable[[], Any] | None, Any, Any], offload: Offload, pause: Pause
) -> Any:
    """Run a generator of slices, and return its result.

    Arguments:
        steps: the generator. It yields None after a slice, so that other coroutines run. It can
            also yield a blocking function, and then receives the result or the exception of that
            function.
        offload: a function that runs a blocking function off the event loop.
        pause: a function that lets other coroutines run.
    """
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as stop:
            return stop.value
        answer = failure = None
        if step is None:
            await pause()
            continue
        try:
            answer = await offload(step)
        except Exception as error:
            failure = error


class LeadTime:
    """Decides when a task has time for work ahead of its next snapshot.

    There is time after a snapshot was announced and before it begins, and while the task is idle.

    Arguments:
        clock: a function that returns the time in seconds.
        scheduler: the write scheduler, which returns whether the worker is idle.
        writing: a function that returns whether a snapshot of the task is being written.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        scheduler: WriteScheduler,
        writing: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._writing = writing
        self._until = -math.inf
        self._idle = False

    def announce(self, seconds: float) -> bool:
        """Expect a snapshot, and return whether there is time for work before it.

        Arguments:
            seconds: the time until the snapshot is due, in seconds.
        """
        if seconds < LEAST_LEAD_SECONDS:
            return False
        self._until = self._clock() + seconds + LATE_SECONDS
        return True

    def set_idle(self, idle: bool) -> None:
        """Record whether the task is idle."""
        self._idle = idle

    def is_open(self) -> bool:
        """Return whether there may be time for work ahead of a snapshot."""
        return not self._writing() and (self._idle or self._clock() < self._until)

    def snapshot_is_due(self) -> bool:
        """Return whether a snapshot was announced and has not begun.

        In that case, busy tasks also work ahead of the snapshot.
        """
        return self._clock() < self._until and not self._writing()

    def worker_is_quiet(self) -> bool:
        """Return whether the task is idle and no other part of its worker has work."""
        return self._idle and not self._writing() and self._scheduler.quiet()


class BackgroundWork(ABC):
    """One kind of background work on one keyed backend."""

    def __init__(self, backend: KeyedBackend, lead_time: LeadTime) -> None:
        self._backend = backend
        self._lead_time = lead_time

    @abstractmethod
    def is_wanted(self) -> bool:
        """Return whether there is work of this kind to do now."""

    @abstractmethod
    async def run(self, offload: Offload, pause: Pause) -> None:
        """Do the work of this kind, or a part of it.

        Arguments:
            offload: a function that runs a blocking call off the event loop.
            pause: a function that lets the other coroutines of the event loop run once.
        """


class Eviction(BackgroundWork):
    """Evicts entries while the backend exceeds its memory limit. Meanwhile records wait."""

    def is_wanted(self) -> bool:
        """Return whether the backend is over its memory limit."""
        return self._backend.over_memory_limit

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Evict entries until the backend is within its memory limit."""
        await drive(self._backend.evict(), offload, pause)


class CheckpointPreparation(BackgroundWork):
    """Prepares the files of an announced snapshot before its barrier arrives."""

    def is_wanted(self) -> bool:
        """Return whether the files of an announced snapshot can be prepared now."""
        return self._backend.wants_preparation and self._lead_time.snapshot_is_due()

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Prepare the files of the announced snapshot."""
        await drive(self._backend.prepare_checkpoint(), offload, pause)


class EagerFlush(BackgroundWork):
    """Writes changed entries before a snapshot needs them. It can stop after each slice."""

    def is_wanted(self) -> bool:
        """Return whether there are changed entries and time to write them."""
        lead = self._lead_time
        return self._backend.wants_eager_flush and (
            lead.snapshot_is_due() or lead.worker_is_quiet()
        )

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Write changed entries until there are none left, or there is no more time."""
        del offload
        lead = self._lead_time
        for _ in self._backend.flush_eagerly():
            await pause()
            if lead.snapshot_is_due():
                if self._backend.wants_preparation:
                    return
                continue
            # Two pauses are needed. A task that slept until now wakes in the first pause, and
            # works in the second.
            await pause()
            if not lead.worker_is_quiet():
                return


class Checksums(BackgroundWork):
    """Computes the checksums of files that the next snapshot will contain."""

    def is_wanted(self) -> bool:
        """Return whether checksums are missing and there is time to compute them."""
        lead = self._lead_time
        return self._backend.wants_checksums and (lead.snapshot_is_due() or lead.worker_is_quiet())

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Compute checksums until none is missing, or there is no more time."""
        while await drive(self._backend.compute_checksum(), offload, pause):
            if not self._lead_time.is_open():
                return
