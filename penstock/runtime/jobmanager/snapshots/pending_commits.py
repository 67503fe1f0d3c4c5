"""Publish the committables of a job that are staged and not yet published.

A committable becomes pending when the manifest of its snapshot is durable. It is pending until its
committer has returned, and each manifest until then contains it. Commits run one after the other,
in order. They are recorded (`snapshot/storage/confirmed_output.py`), so that a resumed job does not
publish the same output again.

`docs/inside/decisions/006-commit-in-the-jobmanager.md` has the reasons.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.sink import Committable, Committer, CommitterContext, Sink
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.storage.confirmed_output import Confirmed, unconfirmed

logger = logging.getLogger("penstock.jobmanager")

_NOT_PUBLISHED = "output could not be published"


class PendingCommits:
    """Publishes the committables of one job.

    Arguments:
        sinks: the sinks, keyed by uid.
        names: the names of the job's operators, keyed by uid, for error messages.
        former_uids: the present uids of sinks that were renamed, keyed by their former uids.
        offload: runs the committers outside of the event loop.
        record: records durably the newest snapshot that each sink has published. It must not raise.
    """

    def __init__(
        self,
        sinks: dict[str, Sink],
        names: Mapping[str, str],
        former_uids: Mapping[str, str],
        offload: Callable[[Callable[[], Any]], Awaitable[Any]],
        record: Callable[[Confirmed], Awaitable[None]],
    ) -> None:
        self._offload = offload
        self._record = record
        self._sinks = sinks
        self._names = names
        self._former_uids = {old: new for old, new in former_uids.items() if new in sinks}
        self._committers: dict[str, Committer | None] = {}
        self._pending: dict[tuple[Any, ...], Committable] = {}
        self._confirmed: dict[tuple[str, str], int] = {}
        self._one_at_a_time = trio.Lock()
        self._context = CommitterContext("", "")
        self._markers: Mapping[str, int] = {}

    def begin(self, context: CommitterContext, markers: Mapping[str, int]) -> None:
        """Set the run for which committers are opened.

        Arguments:
            context: describes the run, without the values that differ from sink to sink.
            markers: the user's markers, keyed by the uid of the sink.
        """
        self._context, self._markers = context, markers

    async def close(self) -> None:
        """Close all committers. An error is only logged, since nothing depends on it."""
        for uid, committer in self._committers.items():
            if committer is not None:
                try:
                    await self._call(uid, "its committer could not be closed", committer.close)
                except JobError as error:
                    logger.warning("%s", error)
        self._committers.clear()

    @property
    def pending(self) -> tuple[Committable, ...]:
        """Return the pending committables in the order in which they must be published."""
        order = sorted(
            self._pending.values(), key=lambda c: (c.snapshot, c.uid, c.subtask, c.attempt)
        )
        return tuple(order)

    def for_manifest(self, acknowledged: Iterable[Committable]) -> tuple[Committable, ...]:
        """Return the committables for a manifest.

        These are all pending committables, and the acknowledged ones of the new snapshot.
        """
        fresh = {self._key(item): item for item in unconfirmed(acknowledged, self._confirmed)}
        return tuple({**self._pending, **fresh}.values())

    def add(self, items: Iterable[Committable]) -> None:
        """Make committables pending. The caller has written a manifest that contains them."""
        for item in unconfirmed(items, self._confirmed):
            self._pending[self._key(item)] = item

    def confirm(self, confirmed: Confirmed) -> None:
        """Record the newest snapshot whose output is published, for each lineage and sink."""
        for sink, number in confirmed.items():
            self._confirmed[sink] = max(number, self._confirmed.get(sink, 0))

    def without_sink(self) -> dict[str, int]:
        """Return the number of pending committables that no sink publishes, keyed by uid."""
        return Counter(item.uid for item in self.pending if not self._publishes(item.uid))

    def _publishes(self, uid: str) -> bool:
        sink = self._sinks.get(self._present(uid))
        return sink is not None and type(sink).create_committer is not Sink.create_committer

    def drop(self, uids: Iterable[str]) -> None:
        """Remove the pending committables of the sinks with these uids, unpublished."""
        self._pending = {
            key: item for key, item in self._pending.items() if item.uid not in set(uids)
        }

    async def commit(self) -> None:
        """Publish the pending output. Raise `JobError` if a sink cannot publish it."""
        async with self._one_at_a_time:
            by_uid: dict[str, list[Committable]] = {}
            for item in self.pending:
                by_uid.setdefault(item.uid, []).append(item)
            try:
                for uid, mine in by_uid.items():
                    await self._commit(uid, mine)
            finally:
                if by_uid:
                    # This is recorded even if a sink fails, since the sinks before it have
                    # published their output.
                    with trio.CancelScope(shield=True):
                        await self._record(dict(self._confirmed))

    async def _commit(self, uid: str, mine: list[Committable]) -> None:
        committer = self._created(uid)
        if committer is None:
            raise JobError(
                "output is staged that was not published yet, and the sink has no committer",
                operator=self._name(uid),
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        # The commit runs to its end even if the attempt is cancelled. Otherwise it could run at the
        # same time as a commit of the next attempt.
        with trio.CancelScope(shield=True):
            await self._call(uid, _NOT_PUBLISHED, partial(committer.commit, mine))
        for item in mine:
            self._pending.pop(self._key(item), None)
            self.confirm({(item.lineage, uid): item.snapshot})

    async def finish(self, lineage: str) -> None:
        """Publish the pending output, and finish the committer of each sink.

        Raise `JobError` if a committer fails.
        """
        await self.commit()
        for uid in self._sinks:
            committer = self._created(uid)
            if committer is not None:
                finish = partial(committer.finish, lineage, uid)
                with trio.CancelScope(shield=True):
                    await self._call(uid, _NOT_PUBLISHED, finish)

    async def clean(
        self, lineage: str, before_attempt: int, uids: Collection[str] | None = None
    ) -> None:
        """Let committers remove output that older attempts staged and no snapshot has.

        Raise `JobError` if a committer fails.

        Arguments:
            lineage: the lineage of the run.
            before_attempt: the number of the attempt that begins.
            uids: the present uids of the operators that begin an attempt; None for all.
        """
        for uid in (*self._sinks, *self._former_uids):
            if uids is not None and self._present(uid) not in uids:
                continue
            committer = self._created(uid)
            if committer is not None:
                clean = partial(committer.clean, lineage, uid, before_attempt)
                await self._call(uid, "old staged output could not be removed", clean)

    def _created(self, uid: str) -> Committer | None:
        """Return the committer of a sink, and create it if needed.

        Return None if the sink does not exist or has no committer.
        """
        uid = self._present(uid)
        if uid not in self._committers:
            sink, name = self._sinks.get(uid), self._name(uid)
            with calling(name, "its committer could not be created"):
                committer = None if sink is None else sink.create_committer()
                if committer is not None:
                    known = dict(self._confirmed)
                    marker = self._markers.get(uid)
                    committer.open(
                        replace(self._context, name=name, confirmed=known, marker=marker)
                    )
                self._committers[uid] = committer
        return self._committers[uid]

    def _present(self, uid: str) -> str:
        """Return the uid that a sink has in the program, given its present or former uid."""
        return self._former_uids.get(uid, uid)

    def _name(self, uid: str) -> str:
        return self._names.get(self._present(uid), f"sink {uid}")

    async def _call(self, uid: str, problem: str, method: Callable[[], object]) -> None:
        """Call a method of a committer in a thread. Raise `JobError` with `problem` if it fails."""

        def call() -> None:
            with calling(self._name(uid), problem):
                method()

        await self._offload(call)

    @staticmethod
    def _key(item: Committable) -> tuple[Any, ...]:
        return (*item.identity, repr(item.payload))


def sinks_of(code: JobCode, plan: ExecutionGraph) -> dict[str, Sink]:
    """Return the sinks of a program, keyed by the uid of the operator."""
    operators = {operator.id: operator for operator in code.graph.operators}
    return {info.uid: operators[info.id].function for info in plan.operators if info.spec.is_sink}
