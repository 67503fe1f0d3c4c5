"""A running region of an attempt, and the set of all running regions.

Records pass only between tasks of one region. So a region can restart while the others run. Their
snapshots are taken together, as long as they run together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control import messages as m
from penstock.runtime.jobmanager.attempt.attempt_loop import AttemptLoop
from penstock.runtime.jobmanager.attempt.split_server import SplitServer
from penstock.runtime.jobmanager.attempt.worker_pool import WorkerPool
from penstock.snapshot.coordination.loop_termination import Loop, LoopTerminationDetector


@dataclass(frozen=True, eq=False)
class Region:
    """Holds what the checkpoint driver uses of a running region.

    Arguments:
        plan: the execution graph, in which only the chains of the region run.
        workers: the workers of the region.
        splits: assigns the splits of its sources.
        loop: the event loop of the region.
        feedback_loops: finds out when its loops have ended.
    """

    plan: ExecutionGraph
    workers: WorkerPool
    splits: SplitServer
    loop: AttemptLoop
    feedback_loops: LoopTerminationDetector

    @classmethod
    def of(
        cls, plan: ExecutionGraph, workers: WorkerPool, splits: SplitServer, loop: AttemptLoop
    ) -> Region:
        """Create a region whose tasks start now."""
        tasks = plan.tasks()
        running = {chain.id for chain in plan.running_chains}
        loops = LoopTerminationDetector(
            Loop(
                index,
                frozenset(task for task in tasks if task[0] in chains),
                plan.has_end_input(index),
            )
            for index, chains in enumerate(plan.loops)
            if running.issuperset(chains)
        )
        return cls(plan, workers, splits, loop, loops)


class RunningRegions:
    """The regions of an attempt that are running."""

    def __init__(self) -> None:
        self._regions: list[Region] = []

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)

    def add(self, region: Region) -> None:
        """Add a region whose tasks process records."""
        self._regions.append(region)

    def remove(self, region: Region) -> None:
        """Remove a region that has failed."""
        self._regions.remove(region)


def send_all(regions: Iterable[Region], message: m.Message) -> None:
    """Send a message to all workers of some regions."""
    for region in regions:
        region.workers.send_all(message)


@asynccontextmanager
async def paused(regions: Iterable[Region]) -> AsyncIterator[None]:
    """Pause the assignment of splits in some regions."""
    async with AsyncExitStack() as stack:
        for region in regions:
            await stack.enter_async_context(region.splits.paused())
        yield
