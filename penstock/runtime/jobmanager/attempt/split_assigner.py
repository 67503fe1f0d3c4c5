"""Assign the splits of a job to its source tasks. (Flink: `SplitAssigner`.)

Each source has one enumerator, which runs in the process of the JobManager.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from penstock.dataflow.errors import JobError, StoreError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.source import Split, SplitEnumerator
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.snapshots.restored_snapshot import rescaled
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.plain_values import require_plain
from penstock.snapshot.storage.store import Store

__all__ = ["SplitAssigner"]

#: The beginning of the message if an enumerator raises an error.
FAILED = "the source could not assign its splits"

logger = logging.getLogger("penstock.jobmanager")


class _EvenShares:
    """Divides the splits of an unbounded source evenly among its tasks.

    Such a split may never end, so a task that asks early must not take the splits of other tasks.
    A task gets a split only if no other task has fewer splits. Tasks for which the source had no
    split do not count.

    Arguments:
        parallelism: the number of tasks that read the source.
    """

    def __init__(self, parallelism: int) -> None:
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
            for chain in plan.chains
            if chain.is_source
        }
        self._enumerators: dict[int, SplitEnumerator] = {}
        #: For each chain of a source, the splits that readers had begun when the job ran at another
        #: parallelism, with their positions.
        self._begun: dict[int, deque[tuple[Split, Any]]] = {}
        #: The shares of the tasks of each unbounded source, keyed by the chain's index.
        self._shares = {
            chain: _EvenShares(info.parallelism)
            for chain, (info, source) in self._sources.items()
            if not source.bounded
        }
        #: The manifests that `retain` has read, keyed by the number of the snapshot.
        self._held: dict[int, Manifest] = {}

    def start(self, restore: Manifest | None) -> None:
        """Start the enumerators, from a snapshot if there is one. This may block.

        Raise `JobError` if a source fails.
        """
        for chain, (info, source) in self._sources.items():
            self._begun[chain] = deque()
            state = None if restore is None else restore.enumerators.get(info.uid)
            with calling(info.name, FAILED):
                enumerator = self._enumerators[chain] = source.create_enumerator(info.parallelism)
                if state is None:
                    enumerator.start()
                else:
                    enumerator.restore(state["enumerator"])
            if restore is None or state is None:
                continue
            for id, payload, position in state["begun"]:
                self._begun[chain].append((Split(id, payload), position))
            moved = rescaled(restore, info.uid, info.parallelism)
            for handle in restore.handles:
                if handle.uid == info.uid and handle.small:
                    if moved:
                        for id, payload, position in handle.small:
                            self._begun[chain].append((Split(id, payload), position))
                    elif chain in self._shares:
                        self._shares[chain].restored(handle.subtask, len(handle.small))

    def next_split(self, chain: int, subtask: int) -> tuple[Split, Any] | None:
        """Return the next split for a task, and its position; None if it gets none now.

        A position of None is the start of the split.
        """
        share = self._shares.get(chain)
        if share is not None and not share.may_take(subtask):
            return None
        if self._begun[chain]:
            given: tuple[Split, Any] | None = self._begun[chain].popleft()
        else:
            with self._calling(chain):
                split = self._enumerators[chain].next_split(subtask)
            given = None if split is None else (split, None)
            if split is not None:
                name = self._sources[chain][0].name
                require_plain(f"payload of split {split.id!r}", split.payload, name)
                if type(split.id) is not str:
                    raise JobError(f"the id of a split must be a str: {split.id!r}", operator=name)
        if share is not None:
            share.answered(subtask, given is not None)
        return given

    def exhausted(self, chain: int, subtask: int) -> bool:
        """Return whether a task that has got no split now will get none later either."""
        share = self._shares.get(chain)
        if share is not None and not share.may_take(subtask):
            return False
        with self._calling(chain):
            return self._enumerators[chain].exhausted

    def snapshot(self) -> dict[str, Any]:
        """Return the state of each source, as plain values keyed by uid.

        The state is that of the enumerator, and the begun splits that no task has yet.
        """
        states = {}
        for chain, (info, _) in self._sources.items():
            with self._calling(chain):
                state = self._enumerators[chain].snapshot()
            begun = [[split.id, split.payload, at] for split, at in self._begun[chain]]
            states[info.uid] = {"enumerator": state, "begun": begun}
        return states

    def retain(self, store: Store) -> None:
        """Let sources remove data that no snapshot needs. This blocks on files.

        Raise `JobError` if an enumerator fails.
        """
        wanting = {
            chain: info.uid
            for chain, (info, _) in self._sources.items()
            if type(self._enumerators[chain]).retain is not SplitEnumerator.retain
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
            states = [m.enumerators[uid] for m in self._held.values() if uid in m.enumerators]
            begun = [Split(id, payload) for state in states for id, payload, _ in state["begun"]]
            begun += [
                Split(id, payload)
                for manifest in self._held.values()
                for handle in manifest.handles
                if handle.uid == uid and handle.small
                for id, payload, _ in handle.small
            ]
            with self._calling(chain):
                self._enumerators[chain].retain([state["enumerator"] for state in states], begun)

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
