"""The snapshot store of a running job: off the event loop, one call at a time.

A call is never abandoned, since its thread would go on when its caller is cancelled. The manifest
of a failed attempt could appear after the next attempt had looked for the newest snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import StoreError
from penstock.runtime.system.threads import Offload
from penstock.snapshot.storage.confirmed_output import Confirmed
from penstock.snapshot.storage.store import Store

__all__ = ["JobStore"]

#: The snapshot numbers that are reserved at a time; each reservation costs one fsync.
RESERVED_NUMBERS = 64


class JobStore:
    """Serialises the calls of a job to its snapshot store.

    Arguments:
        files: the store.
        offload: runs a blocking function off the event loop.
        keep: whether the job's snapshots hold state; without it only numbers are reserved.
    """

    def __init__(self, files: Store, offload: Offload, keep: bool) -> None:
        self.files = files
        self.keep = keep
        self._offload = offload
        self._one_at_a_time = trio.Lock()
        #: The snapshot whose folder was made last, and the lock for making one.
        self._made, self._making = -1, trio.Lock()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function of the store to its end, after those that were called before."""
        with trio.CancelScope(shield=True):
            async with self._one_at_a_time:
                return await self._offload(function)

    async def reserve_numbers(self) -> range:
        """Reserve snapshot numbers durably. Raises `StoreError`."""
        numbers: range = await self.call(lambda: self.files.reserve_numbers(RESERVED_NUMBERS))
        return numbers

    async def make_folder(self, number: int) -> None:
        """Make the folder of a snapshot, if it is not there yet. Raises `StoreError`."""
        if not self.keep:
            return
        async with self._making:
            if self._made != number:
                await self.call(partial(self.files.create_folder, number))
                self._made = number

    async def prepare_folder(self, number: int) -> None:
        """Make the folder of a snapshot ahead; what fails is tried again when it begins."""
        if not self.keep:
            return
        with contextlib.suppress(StoreError):
            await self.make_folder(number)
            await self.call(partial(self.files.persist_folder, number))

    async def discard(self, numbers: Iterable[int]) -> None:
        """Remove the files of aborted snapshots to which no task writes any more.

        All in one call, since the next snapshot waits for each call. A file that cannot be removed
        stays.
        """

        def discard() -> None:
            for number in numbers:
                self.files.discard(number)

        if self.keep:
            with contextlib.suppress(StoreError):
                await self.call(discard)

    async def record_confirmed(self, confirmed: Confirmed) -> None:
        """Record which output is published.

        If it cannot be recorded, a resumed job publishes it again, which committers recognise.
        """
        if self.keep:
            with contextlib.suppress(StoreError):
                await self.call(partial(self.files.confirm, confirmed))
