"""Call the snapshot store of a running job in threads, one call at a time.

A call always runs to its end, even if its caller is cancelled. Otherwise its thread would continue
alone. Then the manifest of a failed attempt could appear after the next attempt has looked for the
newest snapshot.
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

#: The number of snapshot numbers that one reservation takes. Each reservation costs one fsync.
RESERVED_NUMBERS = 64


class JobStore:
    """Runs the calls of a job to its snapshot store one after the other.

    Arguments:
        files: the snapshot store.
        offload: runs a blocking function outside of the event loop.
        keep: whether the job's snapshots hold state. If not, only snapshot numbers are stored.
    """

    def __init__(self, files: Store, offload: Offload, keep: bool) -> None:
        self.files = files
        self.keep = keep
        self._offload = offload
        self._one_at_a_time = trio.Lock()
        #: The number of the snapshot whose folder was made last, and the lock for making a folder.
        self._made, self._making = -1, trio.Lock()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function of the store to its end, after all earlier calls."""
        with trio.CancelScope(shield=True):
            async with self._one_at_a_time:
                return await self._offload(function)

    async def reserve_numbers(self) -> range:
        """Reserve snapshot numbers durably. Raise `StoreError` if they cannot be written."""
        numbers: range = await self.call(lambda: self.files.reserve_numbers(RESERVED_NUMBERS))
        return numbers

    async def make_folder(self, number: int) -> None:
        """Make the folder of a snapshot if it does not exist yet.

        Raise `StoreError` if the folder cannot be made.
        """
        if not self.keep:
            return
        async with self._making:
            if self._made != number:
                await self.call(partial(self.files.create_folder, number))
                self._made = number

    async def prepare_folder(self, number: int) -> None:
        """Make the folder of a snapshot before the snapshot begins.

        An error is ignored: the folder is then made when the snapshot begins.
        """
        if not self.keep:
            return
        with contextlib.suppress(StoreError):
            await self.make_folder(number)
            await self.call(partial(self.files.persist_folder, number))

    async def discard(self, numbers: Iterable[int]) -> None:
        """Remove the files of aborted snapshots to which no task still writes.

        All files are removed in one call, because the next snapshot has to wait for each call. An
        error is ignored, and the remaining files are left in place.
        """

        def discard() -> None:
            for number in numbers:
                self.files.discard(number)

        if self.keep:
            with contextlib.suppress(StoreError):
                await self.call(discard)

    async def record_confirmed(self, confirmed: Confirmed) -> None:
        """Record durably which output is published.

        An error is ignored. A resumed job then publishes the output again, and its committers must
        recognise output that is already published.
        """
        if self.keep:
            with contextlib.suppress(StoreError):
                await self.call(partial(self.files.confirm, confirmed))
