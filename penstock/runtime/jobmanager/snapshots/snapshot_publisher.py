"""Publish the snapshots of one run of a job, and apply retention."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from functools import partial

import trio

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import StoreError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
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

    def begin(self, first_number: int) -> None:
        """Record the first snapshot number that an attempt may use."""
        if not self._own:
            self._since = self._since or first_number

    async def publish(self, snapshot: PendingSnapshot, *, attempt: int, finished: bool) -> None:
        """Make the manifest of a snapshot durable, and its committables pending.

        Arguments:
            snapshot: a snapshot that all tasks have acknowledged.
            attempt: the number of the attempt.
            finished: whether the snapshot was taken at the end of all input.

        Raises:
            StoreError: if the manifest cannot be written.
        """
        if self.store.keep:
            manifest = Manifest(
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
                committables=self.commits.for_manifest(snapshot.committables),
                types=self.types.schemas(),
                sizes=snapshot.size,
                finished=finished,
                format=FORMAT,
            )
            await self.store.call(partial(self.store.files.publish, manifest))
            self.newest = manifest
        self.finished = finished
        self.commits.add(snapshot.committables)

    async def tidy(self, aborted: Sequence[int]) -> None:
        """Remove snapshots by retention, and the files of aborted snapshots."""
        if not self.store.keep:
            return
        store = self.store.files
        async with self._tidying:
            protect = needed_numbers(self.commits.pending)
            for number in aborted:
                await self.store.call(partial(store.discard, number))
            await self.store.call(partial(store.retain, self._config.retained, protect))
            if self._adopted:
                # The run now has a snapshot of its own, so it no longer needs that of the parent.
                self._adopted = False
                await self.store.call(partial(remove_parent, store.paths))

    async def restore_newest(self) -> RestoredSnapshot | None:
        """Publish the pending output, and return the newest snapshot of this run.

        Return None if the run has no snapshot that holds state.

        Raises:
            JobError: if a sink cannot publish its output.
            StoreError: if the snapshot is damaged.
        """
        await self.commits.commit()
        if not self.store.keep:
            return None
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
        )
        for info in plan.operators
    ]
