"""Assign the splits of a job to its source tasks. (Flink: `SplitAssigner`.)

Each source has one enumerator, which runs in the process of the JobManager.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from penstock.dataflow.errors import JobError, StoreError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.source import Split, SplitEnumerator
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.snapshots.restored_snapshot import assigned_splits
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.plain_values import require_plain
from penstock.snapshot.metadata.split_positions import split_position
from penstock.snapshot.storage.store import Store

#: The beginning of the message if an enumerator raises an error.
FAILED = "the source could not assign its splits"

#: The beginning of the message if an enumerator fails when a snapshot is complete.
NOT_NOTICED = "the source failed after a snapshot was complete"

logger = logging.getLogger("penstock.jobmanager")


class _EvenShares:
    """Divides the splits of a source that reads them in turns evenly among its tasks.

    Such a split may never end, so a task that asks early must not take the splits of other tasks.
    A task gets a split only if no other task has fewer splits. Tasks for which the source had no
    split do not count.

    Arguments:
        parallelism: the number of tasks that read the source.
    """

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self._given = [0] * parallelism
        self._refused: set[int] = set()

    def restored(self, subtask: int, count: int) -> None:
        """Set the number of splits that a task restores from a snapshot."""
        self._given[subtask] = count

    def may_take(self, subtask: int) -> bool:
        """Return whether a task may take the next split, since no other task has fewer."""
        return not any(
            given < self._given[subtask]
            for other, given in enumerate(self._given)
            if other not in self._refused
        )

    def answered(self, subtask: int, given: bool) -> None:
        """Record whether a task that requested a split has got one."""
        if given:
            self._given[subtask] += 1
            self._refused.discard(subtask)
        else:
            self._refused.add(subtask)


class SplitAssigner:
    """Assigns the splits of all sources in one attempt.

    Arguments:
        code: the job's code, which has the sources.
        plan: the execution graph.
    """

    def __init__(self, code: JobCode, plan: ExecutionGraph) -> None:
        operators = {operator.id: operator for operator in code.graph.operators}
        self._sources = {
            chain.id: (chain.root.operator, operators[chain.root.operator.id].function)
            for chain in plan.running_chains
            if chain.is_source
        }
        self._enumerators: dict[int, SplitEnumerator] = {}
        #: The shares of the tasks of each source that reads its splits in turns, keyed by the
        #: chain's index.
        self._shares = {
            chain: _EvenShares(info.parallelism)
            for chain, (info, source) in self._sources.items()
            if source.reads_in_turns
        }
        #: The manifests that `retain` has read, keyed by the number of the snapshot.
        self._held: dict[int, Manifest] = {}

    def start(self, restore: Manifest | None) -> None:
        """Start the enumerators, from a snapshot if there is one. This may block.

        Raise `JobError` if a source fails.
        """
        for chain, (info, source) in self._sources.items():
            state: Any = None if restore is None else restore.enumerators.get(info.uid)
            with calling(info.name, FAILED):
                enumerator = self._enumerators[chain] = source.create_enumerator(info.parallelism)
                if state is None:
                    enumerator.start()
                else:
                    enumerator.restore(state["enumerator"])
            if restore is not None and state is not None and chain in self._shares:
                splits = assigned_splits(restore, info.uid, info.parallelism)
                for subtask, restored in enumerate(splits):
                    self._shares[chain].restored(subtask, len(restored))

    def initial_splits(self) -> Iterator[tuple[int, int, Split]]:
        """Assign the splits that tasks read in turns, as far as there are some now.

        The tasks get them before they read. Otherwise the watermark of a task could advance before
        it knows all its splits, and the records of the others would be late. This may block.

        Yields:
            The chain, the subtask and the split of each assignment.
        """
        for chain, share in self._shares.items():
            given = True
            while given:
                given = False
                for subtask in range(share.parallelism):
                    if (split := self.next_split(chain, subtask)) is not None:
                        given = True
                        yield chain, subtask, split

    def next_split(self, chain: int, subtask: int) -> Split | None:
        """Return the next split for a task, or None if it gets none now."""
        share = self._shares.get(chain)
        if share is not None and not share.may_take(subtask):
            return None
        with self._calling(chain):
            split = self._enumerators[chain].next_split(subtask)
        if split is not None:
            name = self._sources[chain][0].name
            require_plain(f"payload of split {split.id!r}", split.payload, name)
            if type(split.id) is not str:
                raise JobError(f"the id of a split must be a str: {split.id!r}", operator=name)
        if share is not None:
            share.answered(subtask, split is not None)
        return split

    def exhausted(self, chain: int, subtask: int) -> bool:
        """Return whether a task that has got no split now will get none later either."""
        share = self._shares.get(chain)
        if share is not None and not share.may_take(subtask):
            return False
        with self._calling(chain):
            return self._enumerators[chain].exhausted

    def snapshot(self) -> dict[str, Any]:
        """Return the state of each source's enumerator, as plain values keyed by uid."""
        states = {}
        for chain, (info, _) in self._sources.items():
            with self._calling(chain):
                state = self._enumerators[chain].snapshot()
            states[info.uid] = {"enumerator": state}
        return states

    def overrides(self, method: str) -> bool:
        """Return whether the class of any enumerator has its own version of a method."""
        return any(_overrides(enumerator, method) for enumerator in self._enumerators.values())

    def retain(self, store: Store) -> None:
        """Let sources remove data that no snapshot needs. This blocks on files.

        Raise `JobError` if an enumerator fails.
        """
        wanting = {
            chain: info.uid
            for chain, (info, _) in self._sources.items()
            if _overrides(self._enumerators[chain], "retain")
        }
        if not wanting:
            return
        published = [info.number for info in store.list() if info.published]
        try:
            self._held = {
                number: self._held.get(number) or store.load(number) for number in published
            }
        except StoreError:
            return  # a damaged snapshot may need any data, so nothing is removed
        for chain, uid in wanting.items():
            states: list[Any] = [
                m.enumerators[uid] for m in self._held.values() if uid in m.enumerators
            ]
            # Snapshots of older versions have splits that no task had yet.
            begun = [
                Split(id, payload) for state in states for id, payload, _ in state.get("begun", ())
            ]
            begun += [
                Split(id, payload)
                for manifest in self._held.values()
                for handle in manifest.handles
                if handle.uid == uid and handle.small
                for id, payload, _ in handle.small
            ]
            with self._calling(chain):
                self._enumerators[chain].retain([state["enumerator"] for state in states], begun)

    def snapshot_completed(self, handles: Iterable[OperatorHandle]) -> None:
        """Notify the enumerators that a snapshot is complete. This may block.

        Raise `JobError` if an enumerator fails.

        Arguments:
            handles: the handles of the snapshot.
        """
        positions: dict[str, list[tuple[Split, Any]]] = {
            info.uid: []
            for chain, (info, _) in self._sources.items()
            if _overrides(self._enumerators[chain], "snapshot_completed")
        }
        for handle in handles:
            if handle.uid in positions:
                positions[handle.uid] += [
                    (Split(id, payload), split_position(position)[0])
                    for id, payload, position in handle.small or ()
                ]
        for chain, (info, _) in self._sources.items():
            if info.uid in positions:
                with calling(info.name, NOT_NOTICED):
                    self._enumerators[chain].snapshot_completed(positions[info.uid])

    def close(self) -> None:
        """Close the enumerators. An error is only logged, since the attempt has ended."""
        for chain, enumerator in self._enumerators.items():
            try:
                enumerator.close()
            except Exception:
                name = self._sources[chain][0].name
                logger.exception("the enumerator of source %r could not be closed", name)

    def _calling(self, chain: int) -> AbstractContextManager[None]:
        return calling(self._sources[chain][0].name, FAILED)


def _overrides(enumerator: SplitEnumerator, method: str) -> bool:
    """Return whether the class of an enumerator has its own version of a method."""
    return getattr(type(enumerator), method) is not getattr(SplitEnumerator, method)
