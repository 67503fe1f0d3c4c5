"""Deals a job's splits to its source tasks: one enumerator per source, beside the JobManager."""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.dataflow.compile import ExecutionGraph
from penstock.dataflow.errors import GraphError, StoreError
from penstock.dataflow.source import Split, SplitEnumerator
from penstock.runtime.control.code import JobCode
from penstock.snapshot.manifest import Manifest
from penstock.snapshot.store import Store

__all__ = ["SplitDealer"]


class SplitDealer:
    """All enumerators of one attempt.

    Arguments:
        code: the job, with its sources.
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
        #: Splits that readers had begun when the job ran at another parallelism.
        self._begun: dict[int, deque[tuple[Split, Any]]] = {}
        #: The manifests that `retain` has read, by number.
        self._held: dict[int, Manifest] = {}

    def start(self, restore: Manifest | None) -> None:
        """Begin afresh or from a snapshot; may block. Raises what the source raises."""
        for chain, (info, source) in self._sources.items():
            enumerator = self._enumerators[chain] = source.create_enumerator(info.parallelism)
            self._begun[chain] = deque()
            if restore is None or info.uid not in restore.enumerators:
                enumerator.start()
                continue
            state = restore.enumerators[info.uid]
            enumerator.restore(state["enumerator"])
            for id, payload, position in state["begun"]:
                self._begun[chain].append((Split(id, payload), position))
            if rescaled(restore, info.uid, info.parallelism):
                if not source.bounded and info.parallelism < parallelism_of(restore, info.uid):
                    raise GraphError(
                        f"source {info.name!r} never ends, so its "
                        f"{parallelism_of(restore, info.uid)} readers cannot be merged into "
                        f"{info.parallelism}: resume it with at least its former parallelism"
                    )
                for handle in restore.handles:
                    if handle.uid == info.uid and handle.small:
                        for id, payload, position in handle.small:
                            self._begun[chain].append((Split(id, payload), position))

    def next_split(self, chain: int, subtask: int) -> tuple[Split, Any] | None:
        """The next split with the position to read it from."""
        if self._begun[chain]:
            return self._begun[chain].popleft()
        split = self._enumerators[chain].next_split(subtask)
        return None if split is None else (split, None)

    def exhausted(self, chain: int) -> bool:
        """Whether there will be no more splits for this source."""
        return self._enumerators[chain].exhausted

    def snapshot(self) -> dict[str, Any]:
        """What is not handed out yet, per uid of the source."""
        return {
            info.uid: {
                "enumerator": self._enumerators[chain].snapshot(),
                "begun": [[split.id, split.payload, at] for split, at in self._begun[chain]],
            }
            for chain, (info, _) in self._sources.items()
        }

    def retain(self, store: Store) -> None:
        """Let sources remove what no snapshot of the store needs; blocks."""
        wanting = {
            info.uid: self._enumerators[chain]
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
            return  # what a damaged one needs can't be told, so nothing is removed
        for uid, enumerator in wanting.items():
            states = [m.enumerators[uid] for m in self._held.values() if uid in m.enumerators]
            begun = [Split(id, payload) for state in states for id, payload, _ in state["begun"]]
            begun += [
                Split(id, payload)
                for manifest in self._held.values()
                for handle in manifest.handles
                if handle.uid == uid and handle.small
                for id, payload, _ in handle.small
            ]
            enumerator.retain([state["enumerator"] for state in states], begun)

    def close(self) -> None:
        """Close the enumerators."""
        for enumerator in self._enumerators.values():
            enumerator.close()


def parallelism_of(manifest: Manifest, uid: str) -> int:
    """The parallelism of an operator in a snapshot; `GraphError` if the snapshot lacks it."""
    for entry in manifest.operators:
        if entry.uid == uid:
            return entry.parallelism
    raise GraphError(f"the snapshot knows no operator with the uid {uid!r}")


def rescaled(manifest: Manifest, uid: str, parallelism: int) -> bool:
    """Whether an operator had another parallelism in a snapshot."""
    return parallelism_of(manifest, uid) != parallelism
