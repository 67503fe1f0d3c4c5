"""The workers of an earlier JobManager that an attempt continues with: `Adoption`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.runtime.control import messages as m
from penstock.runtime.jobmanager.takeover.decision import TakeOver
from penstock.runtime.jobmanager.takeover.rejoin_server import RejoinedWorker, RejoinServer


class Adoption:
    """The workers that are taken over, and the facts that they have reported.

    Arguments:
        decision: the decision to take them over.
        server: the server to which they are connected.
        workers: all workers that have come. Those of other attempts are refused.
    """

    def __init__(
        self, decision: TakeOver, server: RejoinServer, workers: Sequence[RejoinedWorker]
    ) -> None:
        self.decision = decision
        self._server = server
        self._came = workers
        by_slot = {
            worker.offer.worker: worker
            for worker in workers
            if worker.offer.attempt == decision.attempt
        }
        #: The workers in the order of the slots.
        self.workers = [worker for _, worker in sorted(by_slot.items())]

    def receive_heartbeats(self, contacted: Callable[[m.Heartbeat], None]) -> None:
        """Call a function with each heartbeat of the workers, and end all other workers."""
        self._server.take_over(self.decision.attempt, contacted)
        for worker in self._came:
            if worker not in self.workers:
                worker.refuse()

    async def refuse(self) -> None:
        """End all workers, since the job restarts instead."""
        await self._server.refuse(self._came)
