"""Keep the sources of a watermark group from running ahead of each other.

Each source task of a group reports its watermark periodically. The lowest watermark of the group,
plus the allowed drift, is the limit for all its tasks. A split whose watermark is higher is not
read until the limit has risen. (Flink: FLIP-182, FLIP-217.)
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.regions import watermark_groups
from penstock.dataflow.time.watermark import MAX_WATERMARK
from penstock.runtime.control.job_code import JobCode


class AlignmentCoordinator:
    """Computes the limits of all watermark groups of a job.

    Arguments:
        groups: the group and the allowed drift in milliseconds of each source, keyed by the id of
            its chain.
        parallelism: the number of subtasks of each of these chains.
    """

    def __init__(
        self, groups: Mapping[int, tuple[str, int]], parallelism: Mapping[int, int]
    ) -> None:
        self._groups, self._parallelism = groups, parallelism
        self._watermarks: dict[str, dict[tuple[int, int], int]] = {}
        self._lowest: dict[str, int] = {}

    @classmethod
    def of(cls, code: JobCode, plan: ExecutionGraph) -> AlignmentCoordinator:
        """Return the coordinator of a job.

        Arguments:
            code: the job's code, which has the watermark strategies of the sources.
            plan: the execution graph.
        """
        groups = watermark_groups(code.graph, plan)
        return cls(groups, {chain.id: chain.parallelism for chain in plan.running_chains})

    def report(self, chain: int, subtask: int, watermark: int) -> list[tuple[int, int, int]]:
        """Handle the report of a source task.

        Arguments:
            chain: the id of the chain of the source.
            subtask: the index of the subtask.
            watermark: its watermark, in milliseconds since the epoch; `MAX_WATERMARK` if no source
                has to wait for the task, because it is idle or at its end.

        Returns:
            The new limits, each with the chain and the subtask; none if nothing has changed.
        """
        group = self._groups[chain][0]
        reported = self._watermarks.setdefault(group, {})
        reported[chain, subtask] = watermark
        lowest = min(reported.values())
        if self._lowest.get(group) == lowest:
            return []
        self._lowest[group] = lowest
        return [
            (member, index, min(lowest + drift, MAX_WATERMARK))
            for member, (name, drift) in self._groups.items()
            if name == group
            for index in range(self._parallelism[member])
        ]
