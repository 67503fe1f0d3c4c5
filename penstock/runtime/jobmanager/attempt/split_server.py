"""Serves the source tasks of an attempt with splits."""

from __future__ import annotations

from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control import messages as m
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.attempt.worker_pool import WorkerPool
from penstock.runtime.system.threads import Offload
from penstock.snapshot.storage.store import Store

__all__ = ["SplitServer"]

#: A source that has no split for a task, but may have one later, is asked again after this time.
RETRY_SECONDS = 0.1


class SplitServer:
    """Answers requests for splits.

    Arguments:
        assigner: the enumerators of the attempt.
        offload: runs the enumerators off the event loop.
        workers: run the tasks.
        loop: of the attempt; the failure of an enumerator ends it.
    """

    def __init__(
        self, assigner: SplitAssigner, offload: Offload, workers: WorkerPool, loop: AttemptLoop
    ) -> None:
        self._assigner = assigner
        self._offload = offload
        self._workers = workers
        self._loop = loop
        #: Held while a split is on its way from its enumerator to its task.
        self._assigning = trio.Lock()

    async def serve(self, chain: int, subtask: int) -> None:
        """Send a task its next split as soon as there is one, or that there are no more."""
        try:
            while not await self._answer(chain, subtask):
                await trio.sleep(RETRY_SECONDS)
        except PenstockError as error:
            self._loop.post_failure(error)

    async def _answer(self, chain: int, subtask: int) -> bool:
        """Answer a request; return False if there is no answer yet."""
        async with self._assigning:
            # An enumerator may list folders, or ask other systems. The call is never abandoned:
            # the enumerator of the next attempt must not find this one still at work.
            with trio.CancelScope(shield=True):
                given, exhausted = await self._offload(
                    lambda: (
                        self._assigner.next_split(chain, subtask),
                        self._assigner.exhausted(chain, subtask),
                    )
                )
            if given is not None:
                split, position = given
                self._workers.send(
                    subtask, m.SplitAssigned(chain, subtask, split.id, split.payload, position)
                )
            elif exhausted:
                self._workers.send(subtask, m.NoMoreSplits(chain, subtask))
            return exhausted or given is not None

    def paused(self) -> trio.Lock:
        """Return a lock; no split is on its way to a task while it is held."""
        return self._assigning

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the enumerators, per uid; only while paused.

        A split is then either in the state, or sent to its reader before the barrier that is sent
        before the end of the pause. Raises `JobError` if an enumerator fails.
        """
        return self._assigner.snapshot()

    def retain(self, store: Store) -> None:
        """Let sources remove data that no snapshot needs; blocks. Raises `JobError`."""
        self._assigner.retain(store)
