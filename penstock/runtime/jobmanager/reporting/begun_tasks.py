"""The tasks that begin a new attempt, whose reported figures begin at 0."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from penstock.dataflow.graph.execution_graph import ExecutionGraph


class BegunTasks:
    """The tasks that begin a new attempt: all that run in a graph, or some of them.

    Arguments:
        plan: the execution graph, in which the chains of a region run.
        tasks: the tasks; None for all. Then those of an earlier, higher parallelism count, too.
    """

    def __init__(
        self, plan: ExecutionGraph, tasks: Collection[tuple[int, int]] | None = None
    ) -> None:
        self.plan = plan
        self._tasks = None if tasks is None else frozenset(tasks)

    @cached_property
    def _chain_of(self) -> dict[str, int]:
        running = self.plan.running_chains
        return {node.operator.uid: chain.id for chain in running for node in chain.walk()}

    def has_operator(self, uid: str, subtask: int) -> bool:
        """Return whether a subtask of an operator is in one of the tasks."""
        chain = self._chain_of.get(uid)
        return chain is not None and self.has_task(chain, subtask)

    def has_task(self, chain: int, subtask: int) -> bool:
        """Return whether a task is one of them."""
        if self._tasks is not None:
            return (chain, subtask) in self._tasks
        return chain in self._chain_of.values()
