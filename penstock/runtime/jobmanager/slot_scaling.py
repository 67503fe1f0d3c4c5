"""Make the execution graph of each attempt for the slots that are left: `SlotScaling`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.jobmanager.attempt.rescaling import Rescaling, WorkersNotStarted
from penstock.runtime.jobmanager.lost_slots import LostSlots, Shrink, TryAgain
from penstock.runtime.jobmanager.reporting.job_description import describe_graph
from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note, SlotsChanged
from penstock.runtime.system.system import System
from penstock.snapshot.metadata.manifest import Manifest

#: Returns why a snapshot cannot be restored into an execution graph; None if it can.
Misfit = Callable[[ExecutionGraph, Manifest], str | None]


class SlotScaling:
    """Chooses the execution graph of each attempt of a job.

    Without `restart_reactive`, this is always the graph for which the program asks. With it, the
    job runs with fewer workers while slots are lost, and with more when they have returned.

    Arguments:
        config: the configuration of the job.
        regions: the parts of the job that restart alone, as the program asks for them.
        misfit: says why a snapshot cannot be restored into a graph.
        system: starts the workers.
        observe: called with each event.
    """

    def __init__(
        self,
        config: JobConfig,
        regions: Sequence[ExecutionGraph],
        misfit: Misfit,
        system: System,
        observe: Callable[[JobEvent], None],
    ) -> None:
        self._regions = {region_number(region): region for region in regions}
        self._misfit = misfit
        self._observe = observe
        wanted = {number: region.slots for number, region in self._regions.items()}
        self._lost = LostSlots(wanted, config.restart_slot_timeout_seconds)
        self._reactive = config.restart_reactive and not system.workers_start_together
        if config.restart_reactive and not self._reactive:
            text = "restart_reactive has no effect: Spark starts all workers together"
            observe(Note(text))
        #: The slots of the last attempt, and why the next one has others.
        self._slots, self._reason = dict(wanted), ""
        #: The last reason for which a snapshot could not be restored with other slots.
        self._refusal = ""

    def plans(self, newest: Manifest | None) -> tuple[ExecutionGraph, tuple[ExecutionGraph, ...]]:
        """Return the execution graph of the next attempt, and its regions.

        Arguments:
            newest: the snapshot from which it starts; None starts from the beginning.
        """
        whole = self._graph(self._lost.slots)
        if self.changes and self._refused(whole, newest):
            self._lost.refused()
            whole = self._graph(self._lost.slots)
        if self.changes:
            self._slots = dict(self._lost.slots)
            count, wanted = sum(self._slots.values()), sum(self._lost.wanted.values())
            self._observe(SlotsChanged(count, wanted, self._reason, describe_graph(whole)))
        regions = self._regions.values()
        return whole, tuple(replace(whole, running=region.running) for region in regions)

    @property
    def changes(self) -> bool:
        """Whether the next attempt has other slots than the last one."""
        return self._lost.slots != self._slots

    def missing(self, region: ExecutionGraph) -> int:
        """Return how many slots of a region are lost."""
        number = region_number(region)
        return self._lost.wanted[number] - self._lost.slots[number]

    def restart_delay(self, error: PenstockError, now: float) -> float | None:
        """Return the seconds until the next attempt, or None if the restart strategy decides.

        It decides on all failures but those of slots that are lost or have returned.

        Arguments:
            error: the failure of the last attempt.
            now: the time of the failure, in seconds.
        """
        if isinstance(error, Rescaling):
            return 0.0
        if not (self._reactive and isinstance(error, WorkersNotStarted)):
            return None
        match self._lost.failed(now, error.region, error.count):
            case TryAgain(delay_seconds):
                return delay_seconds
            case Shrink():
                self._reason = str(error)
                return 0.0
        return None

    def began(self) -> None:
        """Record that an attempt, or a region of it, processes records."""
        self._lost.began()

    def grow(self, found: Mapping[int, int], newest: Manifest | None) -> str | None:
        """Use slots that have returned, and return the reason for the restart.

        Return None if the newest snapshot cannot be restored with them.

        Arguments:
            found: how many more workers of each region can be started.
            newest: the newest snapshot.
        """
        slots = {region: n + found.get(region, 0) for region, n in self._lost.slots.items()}
        if self._refused(self._graph(slots), newest):
            return None
        for region, count in found.items():
            self._lost.returned(region, count)
        self._reason = f"{sum(found.values())} more can be started again"
        return f"workers: {self._reason}"

    def _graph(self, slots: Mapping[int, int]) -> ExecutionGraph:
        """Return the graph of the whole job, with the given number of slots for each region."""
        limits = {
            chain.id: slots[number]
            for number, region in self._regions.items()
            for chain in region.running_chains
        }
        first = next(iter(self._regions.values()))
        return replace(first, running=None).limited_to(limits)

    def _refused(self, graph: ExecutionGraph, newest: Manifest | None) -> bool:
        """Return whether a snapshot cannot be restored into a graph. Note the reason once."""
        reason = None if newest is None else self._misfit(graph, newest)
        if reason is not None and reason != self._refusal:
            self._observe(Note(f"the job cannot continue with {graph.slots} slots now: {reason}"))
        self._refusal = reason or ""
        return reason is not None


def region_number(region: ExecutionGraph) -> int:
    """Return a number that identifies a region: the index of its first chain."""
    return region.running_chains[0].id
