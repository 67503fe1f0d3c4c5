"""Publish the snapshots of one run of a job, and apply retention."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from functools import partial

import trio

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import Recoverability, StoreError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.sink import Committable
from penstock.runtime.jobmanager.snapshots.job_store import JobStore
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.jobmanager.snapshots.pending_snapshot import PendingSnapshot
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.jobmanager.snapshots.restored_snapshot import (
    RestoredSnapshot,
    input_positions,
)
from penstock.snapshot.metadata.committables import needed_numbers, pending_committables
from penstock.snapshot.metadata.manifest import (
    FORMAT,
    Manifest,
    OperatorEntry,
    SnapshotNumber,
)
from penstock.snapshot.storage.claimed_snapshot import remove_claimed
from penstock.snapshot.storage.ownership import remove_parent
from penstock.version import VERSION


class SnapshotPublisher:
    """Publishes the snapshots of one run.

    Arguments:
        config: the configuration of the job.
        store: the store of the snapshots. If it keeps none, only output is committed.
        commits: receives the committables of the snapshots.
        plan: the execution graph.
        types: the record classes.
        lineage: the lineage of the run's snapshots.
        parent: the lineage and the number of the snapshot from which this lineage was forked.
        own: whether the run continues a lineage that already had snapshots.
        adopted: whether the files of another job's snapshot were linked or copied into the folder
            of this job.
    """

    def __init__(
        self,
        config: JobConfig,
        store: JobStore,
        commits: PendingCommits,
        plan: ExecutionGraph,
        types: RecordClasses,
        *,
        lineage: str,
        parent: tuple[str, int] | None,
        own: bool,
        adopted: bool,
    ) -> None:
        self.store = store
        self.commits = commits
        self.types = types
        self.lineage = lineage
        #: The manifest of the newest snapshot that this run has published.
        self.newest: Manifest | None = None
        #: Whether the last snapshot was taken at the end of all input.
        self.finished = False
        self._config = config
        self._plan = plan
        self._parent = parent
        self._own = own
        self._adopted = adopted
        #: The lowest number that a snapshot of this run can have. It is 0 if the run continues a
        #: lineage that already had snapshots.
        self._since = 0
        self._tidying = trio.Lock()
        #: Whether the job may own the snapshot of another job, which it then removes some time; see
        #: `snapshot/storage/claimed_snapshot.py`.
        self._claims = True
        #: The number of the snapshot from which operators have restarted, by their uids, until they
        #: have a part in a later one. So far they may read from its files.
        self._restored: dict[frozenset[str], int] = {}

    def begin(self, first_number: int, plan: ExecutionGraph) -> None:
        """Record the first snapshot number that an attempt may use, and its execution graph."""
        self._plan = plan
        if not self._own:
            self._since = self._since or first_number

    async def publish(
        self,
        snapshot: PendingSnapshot,
        *,
        attempt: int,
        finished: bool,
        absent: Collection[str] = (),
    ) -> None:
        """Make the manifest of a snapshot durable, and its committables pending.

        Arguments:
            snapshot: a snapshot that all of its tasks have acknowledged.
            attempt: the number of the attempt.
            finished: whether the snapshot was taken at the end of all input.
            absent: the uids of the operators without a part in the snapshot, because their region
                restarts. Their parts of the newest snapshot are carried over.

        Raises:
            StoreError: if the manifest cannot be written.
        """
        if self.store.keep:
            if absent:
                await self._carry_over(snapshot, absent)
            committables = self.commits.for_manifest(snapshot.committables)
            manifest = self._manifest(snapshot, attempt, committables, finished=finished)

            def publish() -> None:
                self.store.files.publish(manifest)
                self.newest = manifest  # before the next call of the store, which may need it

            await self.store.call(publish)
        self.finished = finished
        self.commits.add(snapshot.committables)
        self._restored = {
            uids: number
            for uids, number in self._restored.items()
            if number >= snapshot.number or not uids.isdisjoint(absent)
        }

    async def publish_savepoint(self, savepoint: PendingSnapshot, *, attempt: int) -> None:
        """Make the manifest of a savepoint durable.

        A later snapshot is complete, and its output is committed. It includes the output up to the
        savepoint. So the savepoint has no committables, and the job does not recover from it.

        Arguments:
            savepoint: a savepoint that all tasks have acknowledged.
            attempt: the number of the attempt.

        Raises:
            StoreError: if the manifest cannot be written.
        """
        if self.store.keep:
            manifest = self._manifest(savepoint, attempt, (), finished=False)
            await self.store.call(partial(self.store.files.publish, manifest))

    def _manifest(
        self,
        snapshot: PendingSnapshot,
        attempt: int,
        committables: tuple[Committable, ...],
        *,
        finished: bool,
    ) -> Manifest:
        return Manifest(
            job=self._config.name,
            lineage=self.lineage,
            parent=self._parent,
            number=SnapshotNumber(snapshot.number),
            kind=snapshot.kind,
            created_ms=snapshot.wall_ms,
            attempt=attempt,
            version=VERSION,
            fingerprint=self._plan.fingerprint,
            operators=tuple(operator_entries(self._plan)),
            handles=(*snapshot.handles, *snapshot.overtaken),
            enumerators=snapshot.enumerators,
            committables=committables,
            types=self.types.schemas(),
            sizes=snapshot.size,
            finished=finished,
            format=FORMAT,
        )

    async def _carry_over(self, snapshot: PendingSnapshot, absent: Collection[str]) -> None:
        """Add the parts of these operators in the newest snapshot to a new one."""
        newest = self.newest
        assert newest is not None, "the first snapshot of an attempt has all regions"
        handles = [handle for handle in newest.handles if handle.uid in absent]
        link = partial(self.store.files.carry_over, handles, newest.number, snapshot.number)
        await self.store.call(link)
        snapshot.carry_over(
            handles, {uid: state for uid, state in newest.enumerators.items() if uid in absent}
        )

    async def tidy(self, aborted: Sequence[int]) -> None:
        """Remove snapshots by retention, and the files of aborted snapshots."""
        if not self.store.keep:
            return
        store = self.store.files
        async with self._tidying:
            needed = needed_numbers(self.commits.pending)
            for number in aborted:
                await self.store.call(partial(store.discard, number))
            await self.store.call(
                lambda: store.retain(self._config.retained, {*needed, *self._restored.values()})
            )
            if self._adopted:
                # The run now has a snapshot of its own, so it no longer needs that of the parent.
                self._adopted = False
                await self.store.call(partial(remove_parent, store.paths))
            if self._claims:
                self._claims = not await self.store.call(self._end_claim)

    def _end_claim(self) -> bool:
        """Remove the claimed snapshot if the job has enough of its own; return whether it did."""
        store = self.store.files
        if len(store.published()) < self._config.retained:
            return False
        remove_claimed(store.paths)
        return True

    async def restore_newest(self) -> RestoredSnapshot | None:
        """Publish the pending output, and return the newest snapshot of this run.

        Return None if the run has no snapshot that holds state.

        Raises:
            JobError: if a sink cannot publish its output.
            StoreError: if the snapshot is damaged.
        """
        self._restored.clear()
        await self.commits.commit()
        if not self.store.keep:
            return None
        # The answer to the put of the last manifest may have been lost.
        await self.store.call(self.store.files.settle)
        # The files of aborted snapshots take up space until they are removed. But recovery is more
        # urgent, so an error is ignored here. The next restart tries again.
        with contextlib.suppress(StoreError):
            await self.store.call(self.store.files.clean_debris)
        newest: Manifest | None = await self.store.call(self._newest_own)
        if newest is None:
            return None
        self._own = True
        self.commits.add(pending_committables(newest))
        await self.commits.commit()
        return RestoredSnapshot(newest, self.store.files.paths)

    async def restore_part(self, uids: frozenset[str]) -> RestoredSnapshot | None:
        """Publish the pending output, and return the newest snapshot for the operators of a region.

        Other regions of the job keep running, and take snapshots meanwhile. Retention does not
        remove the returned snapshot before these operators have a part in a later one: they run
        before they have read all of its records in flight.

        Arguments:
            uids: the uids of the region's operators. Only their files are checked.

        Returns:
            The newest snapshot that this run has published, or None if there is none.

        Raises:
            JobError: if a sink cannot publish its output.
            StoreError: if the snapshot is damaged, or the answer to the put of a later one was
                lost.
        """
        await self.commits.commit()

        def choose() -> Manifest | None:
            if self.store.files.in_doubt:
                # A later snapshot than the newest one may be complete, and has its output.
                raise StoreError(
                    "it is unknown whether the newest snapshot is complete in the snapshot store; "
                    "the whole job restarts, and finds out",
                    recoverability=Recoverability.ENVIRONMENT,
                )
            if self.newest is not None:
                self._restored[uids] = self.newest.number
                mine = tuple(handle for handle in self.newest.handles if handle.uid in uids)
                self.store.files.verify(replace(self.newest, handles=mine))
            return self.newest

        newest: Manifest | None = await self.store.call(choose)
        return None if newest is None else RestoredSnapshot(newest, self.store.files.paths)

    def _newest_own(self) -> Manifest | None:
        """Check the files of the newest snapshot of the lineage, and return its manifest.

        Return None if there is no such snapshot.
        """
        newest = self.store.files.newest(self._since)
        if newest is None or newest.lineage != self.lineage:
            return None
        self.store.files.verify(newest)
        return newest

    def progress(self, rewindable: bool, restarts: int) -> Hashable:
        """Return a value that changes when the job has made progress.

        Progress means that a newer snapshot has read further in the input.

        Arguments:
            rewindable: whether all sources can be read again from a position.
            restarts: the number of restarts so far.
        """
        if not self.store.keep:
            return None if rewindable else restarts
        if self.newest is None or not rewindable:
            return self.newest and self.newest.number
        return input_positions(self.newest)


def operator_entries(plan: ExecutionGraph) -> list[OperatorEntry]:
    """Return the operators of an execution graph as entries of a manifest."""
    return [
        OperatorEntry(
            info.uid,
            info.name,
            info.spec.name,
            info.parallelism,
            plan.max_parallelism,
            info.stateful,
            info.key_version,
        )
        for info in plan.operators
    ]
