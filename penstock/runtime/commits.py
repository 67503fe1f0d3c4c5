"""What is staged and not yet published, and its publishing.

A committable is pending from the moment its snapshot's manifest is durable until its committer
has returned; every manifest in between holds it. Commits run one after the other, in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer, Sink
from penstock.runtime.user_calls import calling

__all__ = ["Commits"]


class Commits:
    """The pending committables of one job.

    Arguments:
        sinks: per uid, the sink.
        offload: runs the committers off the event loop.
    """

    def __init__(
        self,
        sinks: dict[str, Sink],
        offload: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._offload = offload
        self._sinks = sinks
        self._committers: dict[str, Committer | None] = {}
        self._pending: dict[tuple[Any, ...], Committable] = {}
        self._confirmed: set[tuple[Any, ...]] = set()
        self._one_at_a_time = trio.Lock()

    @property
    def pending(self) -> tuple[Committable, ...]:
        """All that is not confirmed, in the order in which it is to be published."""
        order = sorted(
            self._pending.values(), key=lambda c: (c.snapshot, c.uid, c.subtask, c.attempt)
        )
        return tuple(order)

    def held(self, acknowledged: Iterable[Committable]) -> tuple[Committable, ...]:
        """What a manifest must hold: all pending, and what its tasks acknowledged."""
        fresh = {
            self._key(item): item for item in acknowledged if self._key(item) not in self._confirmed
        }
        return tuple({**self._pending, **fresh}.values())

    def add(self, items: Iterable[Committable]) -> None:
        """These are in a durable manifest now."""
        for item in items:
            if self._key(item) not in self._confirmed:
                self._pending[self._key(item)] = item

    async def commit(self) -> None:
        """Publish all that is pending. Raises `JobError` if a sink cannot."""
        async with self._one_at_a_time:
            items = self.pending
            by_uid: dict[str, list[Committable]] = {}
            for item in items:
                by_uid.setdefault(item.uid, []).append(item)
            for uid, mine in by_uid.items():
                committer = self._committer(uid)
                # Not abandoned half-way when the attempt is cancelled: the next one must not
                # commit at the same time.
                with trio.CancelScope(shield=True), _publishing(uid):
                    await self._offload(partial(committer.commit, mine))
                for item in mine:
                    self._pending.pop(self._key(item), None)
                    self._confirmed.add(self._key(item))
        # Those of long ago cannot come again: tasks drop them when they hear of the snapshot.
        if len(self._confirmed) > 100_000:
            newest = max(key[3] for key in self._confirmed)
            self._confirmed = {key for key in self._confirmed if key[3] > newest - 100}

    async def finish(self, lineage: str) -> None:
        """Tell sinks that the job has ended and all is published. Raises `JobError`."""
        await self.commit()
        for uid in self._sinks:
            committer = self._created(uid)
            if committer is not None:
                with trio.CancelScope(shield=True), _publishing(uid):
                    await self._offload(partial(committer.finish, lineage, uid))

    async def clean(self, lineage: str, before_attempt: int) -> None:
        """Let sinks remove what older attempts staged and nothing will publish."""
        for uid in self._sinks:
            committer = self._created(uid)
            if committer is not None:
                with calling(f"sink {uid}", "old staged output could not be removed"):
                    await self._offload(partial(committer.clean, lineage, uid, before_attempt))

    def _created(self, uid: str) -> Committer | None:
        """Return the committer of a sink; None if there is none."""
        if uid not in self._committers:
            sink = self._sinks.get(uid)
            with calling(f"sink {uid}", "its committer could not be created"):
                self._committers[uid] = None if sink is None else sink.create_committer()
        return self._committers[uid]

    def _committer(self, uid: str) -> Committer:
        committer = self._created(uid)
        if committer is None:
            raise JobError(
                f"the snapshot holds output of a sink with the uid {uid!r} that was not published "
                f"yet, and the program has no such sink: give the sink its uid back",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return committer

    @staticmethod
    def _key(item: Committable) -> tuple[Any, ...]:
        return (*item.identity, repr(item.payload))


def _publishing(uid: str) -> AbstractContextManager[None]:
    return calling(f"sink {uid}", "output could not be published")
