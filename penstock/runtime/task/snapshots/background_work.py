"""The work of a checkpoint writer between the records of its task, apart from writing snapshots.

Keyed state that has outgrown its memory is evicted. Ahead of a snapshot, entries are flushed and
files are prepared, so that less is left to be done when its barrier comes. Each kind of work is a
`BackgroundWork`; the checkpoint writer runs the first one that is wanted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from penstock.runtime.task.snapshots.write_scheduler import WriteScheduler
from penstock.snapshot.state import KeyedBackend

__all__ = [
    "BackgroundWork",
    "CheckpointPreparation",
    "Checksums",
    "EagerFlush",
    "Eviction",
    "LeadTime",
    "Offload",
    "Pause",
    "drive",
]

#: An announced snapshot is not waited for any more when it is this late, in seconds.
LATE_SECONDS = 0.1
#: A snapshot that is announced later than this before it is due leaves no time for work ahead.
LEAST_LEAD_SECONDS = 0.05

#: Runs a blocking call off the event loop.
Offload = Callable[[Callable[[], Any]], Awaitable[Any]]
#: Lets others of the event loop run once.
Pause = Callable[[], Awaitable[None]]


async def drive(
    steps: Generator[Callable[[], Any] | None, Any, Any], offload: Offload, pause: Pause
) -> Any:
    """Run a generator of slices, and return its result.

    Arguments:
        steps: yields None after a slice, so that others run; or a blocking function, whose result
            or exception it is given.
        offload: runs a blocking function off the event loop.
        pause: lets others run.
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
    """When a task has time to work ahead of its next snapshot.

    There is time while a snapshot is announced and has not come, and while the task is idle.

    Arguments:
        clock: seconds.
        scheduler: knows whether the worker has anything to do.
        writing: whether a snapshot of the task is being written.
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
        """Expect a snapshot; return whether it leaves time for work ahead.

        Arguments:
            seconds: time until it is due.
        """
        if seconds < LEAST_LEAD_SECONDS:
            return False
        self._until = self._clock() + seconds + LATE_SECONDS
        return True

    def set_idle(self, idle: bool) -> None:
        """Note whether the task has nothing else to do."""
        self._idle = idle

    def is_open(self) -> bool:
        """Return whether there may be time."""
        return not self._writing() and (self._idle or self._clock() < self._until)

    def snapshot_is_due(self) -> bool:
        """Return whether an announced snapshot has not come yet; then busy tasks write, too."""
        return self._clock() < self._until and not self._writing()

    def worker_is_quiet(self) -> bool:
        """Return whether the task is idle, and nothing else in its worker has work."""
        return self._idle and not self._writing() and self._scheduler.quiet()


class BackgroundWork(ABC):
    """One kind of work on one keyed backend."""

    def __init__(self, backend: KeyedBackend, lead_time: LeadTime) -> None:
        self._backend = backend
        self._lead_time = lead_time

    @abstractmethod
    def is_wanted(self) -> bool:
        """Return whether there is something to do now."""

    @abstractmethod
    async def run(self, offload: Offload, pause: Pause) -> None:
        """Do it, or a part of it."""


class Eviction(BackgroundWork):
    """Evict entries while the backend has more than its budget of memory; records wait for it."""

    def is_wanted(self) -> bool:
        """Return whether the backend is over its memory limit."""
        return self._backend.over_memory_limit

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Evict entries until the backend is within its limit."""
        await drive(self._backend.evict(), offload, pause)


class CheckpointPreparation(BackgroundWork):
    """Begin the files of a snapshot before its barrier comes."""

    def is_wanted(self) -> bool:
        """Return whether files can be begun for an announced snapshot."""
        return self._backend.wants_preparation and self._lead_time.snapshot_is_due()

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Begin the files."""
        await drive(self._backend.prepare_checkpoint(), offload, pause)


class EagerFlush(BackgroundWork):
    """Write entries that have changed before a snapshot needs them; may stop after any slice."""

    def is_wanted(self) -> bool:
        """Return whether entries have changed and there is time."""
        lead = self._lead_time
        return self._backend.wants_eager_flush and (
            lead.snapshot_is_due() or lead.worker_is_quiet()
        )

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Flush entries, until there is no more time."""
        del offload
        lead = self._lead_time
        for _ in self._backend.flush_eagerly():
            await pause()
            if lead.snapshot_is_due():
                if self._backend.wants_preparation:
                    return
                continue
            # Twice: a task that slept until now is awake after the first pause, and at work
            # after the second.
            await pause()
            if not lead.worker_is_quiet():
                return


class Checksums(BackgroundWork):
    """Compute the checksums of files that the next snapshot will hold."""

    def is_wanted(self) -> bool:
        """Return whether checksums are missing and there is time."""
        lead = self._lead_time
        return self._backend.wants_checksums and (lead.snapshot_is_due() or lead.worker_is_quiet())

    async def run(self, offload: Offload, pause: Pause) -> None:
        """Compute checksums, until there is no more time."""
        while await drive(self._backend.compute_checksum(), offload, pause):
            if not self._lead_time.is_open():
                return
