"""Answer the requests of source tasks for splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.source import Split
from penstock.runtime.control import messages as m
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.attempt.worker_pool import WorkerPool
from penstock.runtime.jobmanager.takeover.decision import AssignedSplit, TakeOverFailed
from penstock.runtime.system.threads import Offload
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.storage.store import Store

#: The time in seconds after which a source is asked for a split again, if it had none but may have
#: one later.
RETRY_SECONDS = 0.1


class SplitServer:
    """Answers the requests of source tasks for splits.

    Arguments:
        assigner: has the enumerators of the attempt.
        offload: runs the enumerators outside of the event loop.
        workers: the workers, to which the answers are sent.
        loop: the event loop of the attempt. The failure of an enumerator ends it.
        tasks_restart: whether source tasks can restart while the attempt continues.
    """

    def __init__(
        self,
        assigner: SplitAssigner,
        offload: Offload,
        workers: WorkerPool,
        loop: AttemptLoop,
        *,
        tasks_restart: bool = False,
    ) -> None:
        self._tasks_restart = tasks_restart
        self._assigner = assigner
        self._offload = offload
        self._workers = workers
        self._loop = loop
        #: A lock that is held from the call of an enumerator until its split is sent to a task.
        self._assigning = trio.Lock()
        #: The number of splits that each task has got.
        self.given: Counter[tuple[int, int]] = Counter()
        #: The number of splits that were sent to tasks.
        self._sent = 0
        #: The splits that were sent since the newest snapshot, and their number at each later one.
        self._log: list[tuple[int, int, Split]] = []
        self._logged_at: dict[int, int] = {}
        #: The number of restarts of each task. Requests of an earlier one are not answered.
        self._restarts: Counter[tuple[int, int]] = Counter()
        #: The lock that is held while enumerators are notified of a complete snapshot, and the
        #: number of the last one.
        self._notifying, self._notified = trio.Lock(), -1

    async def assign_initial(self) -> None:
        """Send the tasks the splits that they read in turns. Raise `JobError` if a source fails."""
        async with self._assigning:
            with trio.CancelScope(shield=True):
                initial = await self._offload(lambda: list(self._assigner.initial_splits()))
            for chain, subtask, split in initial:
                self._send(chain, subtask, split)

    def _send(self, chain: int, subtask: int, split: Split) -> None:
        self.given[chain, subtask] += 1
        if self._tasks_restart:
            self._log.append((chain, subtask, split))
        self._send_again(chain, subtask, split)

    def _send_again(self, chain: int, subtask: int, split: Split) -> None:
        message = m.SplitAssigned(chain, subtask, split.id, split.payload, self._sent)
        self._workers.send_to(chain, subtask, message)
        self._sent += 1

    async def repeat_for(self, tasks: Collection[tuple[int, int]], number: int) -> None:
        """Send restarted tasks the splits again that they got after snapshot `number`.

        Arguments:
            tasks: the tasks, which have not requested a split yet.
            number: a snapshot that may still be restored, or one from before this attempt.
        """
        async with self._assigning:
            self._restarts.update(tasks)
            for chain, subtask, split in self._log[self._logged_at.get(number, 0) :]:
                if (chain, subtask) in tasks:
                    self._send_again(chain, subtask, split)

    async def repeat(self, splits: Sequence[AssignedSplit]) -> None:
        """Assign splits again that an earlier JobManager has assigned to the same tasks.

        Nothing is sent, since the tasks have them.

        Raises:
            TakeOverFailed: if an enumerator returns another split than in the earlier JobManager.
            JobError: if an enumerator fails.
        """
        for split in splits:
            ask = partial(self._assigner.next_split, split.chain, split.subtask)
            with trio.CancelScope(shield=True):
                found = await self._offload(ask)
            if found != Split(split.id, split.payload):
                raise TakeOverFailed(
                    f"its split {split.id!r} is not the next one of the source any more"
                )
            self._sent = split.sequence + 1

    async def serve(self, chain: int, subtask: int) -> None:
        """Send a task its next split when there is one, or `NoMoreSplits` at the end."""
        restarts = self._restarts[chain, subtask]
        try:
            while not await self._answer(chain, subtask, restarts):
                await trio.sleep(RETRY_SECONDS)
        except PenstockError as error:
            self._loop.post_failure(error)

    async def _answer(self, chain: int, subtask: int, restarts: int) -> bool:
        """Answer a request for a split, or return False if there is no answer yet."""
        async with self._assigning:
            if restarts != self._restarts[chain, subtask]:
                return True  # the task that has requested the split is gone
            # An enumerator may take long, for example to list a folder. Its call runs to its end
            # even if the attempt is cancelled: it must not run at the same time as the enumerator
            # of the next attempt.
            with trio.CancelScope(shield=True):
                split, exhausted = await self._offload(
                    lambda: (
                        self._assigner.next_split(chain, subtask),
                        self._assigner.exhausted(chain, subtask),
                    )
                )
            if split is not None:
                self._send(chain, subtask, split)
            elif exhausted:
                self._workers.send_to(chain, subtask, m.NoMoreSplits(chain, subtask))
            return exhausted or split is not None

    def paused(self) -> trio.Lock:
        """Return the lock that pauses the assignment of splits while a caller holds it."""
        return self._assigning

    def snapshot(self, number: int) -> dict[str, Any]:
        """Return the state of the enumerators for snapshot `number`, keyed by uid.

        The caller must hold the lock that `paused` returns, and send the barrier before it releases
        the lock. So each split is either in the state, or was sent to its reader before the
        barrier. Raise `JobError` if an enumerator fails.
        """
        if self._tasks_restart:
            self._logged_at[number] = len(self._log)
        return self._assigner.snapshot()

    @property
    def retains(self) -> bool:
        """Return whether any source has data that `retain` may remove."""
        return self._assigner.overrides("retain")

    def _forget_before(self, number: int) -> None:
        """Forget the splits that were sent before snapshot `number`, which is complete."""
        if (first := self._logged_at.get(number)) is not None:
            del self._log[:first]
            later = self._logged_at.items()
            self._logged_at = {n: place - first for n, place in later if n >= number}

    def retain(self, store: Store) -> None:
        """Let sources remove data that no snapshot needs. This blocks on files.

        Raise `JobError` if an enumerator fails.
        """
        self._assigner.retain(store)

    async def snapshot_completed(self, number: int, handles: Sequence[OperatorHandle]) -> None:
        """Notify the enumerators that a snapshot is complete, unless a later one is already.

        Raise `JobError` if an enumerator fails.
        """
        async with self._notifying:
            if number <= self._notified:
                return
            self._notified = number
            self._forget_before(number)
            if not self._assigner.overrides("snapshot_completed"):
                return
            with trio.CancelScope(shield=True):
                await self._offload(lambda: self._assigner.snapshot_completed(handles))
