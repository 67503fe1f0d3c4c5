"""Call the snapshot store of a running job in threads, one call at a time.

A call always runs to its end, even if its caller is cancelled. Otherwise its thread would continue
alone. Then the manifest of a failed attempt could appear after the next attempt has looked for the
newest snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, StoreError
from penstock.runtime.system.threads import Offload
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.storage.confirmed_output import Confirmed
from penstock.snapshot.storage.store import Store, Upload

#: The number of snapshot numbers that one reservation takes. Each reservation costs one fsync.
RESERVED_NUMBERS = 64
#: The number of files that are sent to an object store at a time.
CONCURRENT_SENDERS = 8


@dataclass(frozen=True)
class SentFiles:
    """The files that were sent to the object store for a snapshot.

    Arguments:
        count: the number of files.
        size: their size, in bytes.
    """

    count: int
    size: int


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
        self._senders = trio.CapacityLimiter(CONCURRENT_SENDERS)
        #: The number of the snapshot whose folder was made last, and the lock for making a folder.
        self._made, self._making = -1, trio.Lock()

    @property
    def sends(self) -> bool:
        """Whether the files of a snapshot must be sent to an object store."""
        return self.keep and self.files.sends

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function of the store to its end, after all earlier calls."""
        with trio.CancelScope(shield=True):
            async with self._one_at_a_time:
                return await self._offload(function)

    async def reserve_numbers(self, attempts: int = 1) -> range:
        """Reserve snapshot numbers durably. Raise `StoreError` if they cannot be written.

        Arguments:
            attempts: how many of the numbers are used as those of attempts.
        """
        count = RESERVED_NUMBERS - 1 + attempts
        numbers: range = await self.call(lambda: self.files.reserve_numbers(count))
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

    async def send(
        self, number: int, handles: Iterable[OperatorHandle], wanted: Callable[[], bool]
    ) -> SentFiles:
        """Send the files of some handles to the object store, unless it has them already.

        Several files are sent at a time. Other calls of the store are not delayed.

        Arguments:
            number: the number of the snapshot.
            handles: the handles.
            wanted: returns whether the snapshot is still being taken.

        Raises:
            StoreError: if a file cannot be sent.
        """
        uploads = await self.call(partial(self.files.uploads, number, tuple(handles)))
        errors: list[PenstockError] = []

        async def send(upload: Upload) -> None:
            async with self._senders:
                if errors or not wanted():
                    return
                try:
                    await self._offload(partial(self.files.send, upload))
                except PenstockError as error:
                    errors.append(error)

        async with trio.open_nursery() as nursery:
            for upload in uploads:
                nursery.start_soon(send, upload)
        if errors:
            raise errors[0]
        if wanted():
            await self.call(partial(self.files.sent, uploads))
        return SentFiles(len(uploads), sum(upload.size for upload in uploads))

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
