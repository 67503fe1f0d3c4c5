"""Start a run from a snapshot, or with the workers of an earlier JobManager: `RunStart`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from penstock.runtime.jobmanager.reporting.job_events import JobEvent, Note
from penstock.runtime.jobmanager.snapshots.restore_planner import RestorePlan, RestorePlanner
from penstock.runtime.jobmanager.takeover.adoption import Adoption
from penstock.runtime.jobmanager.takeover.decision import TakeOver, decide_takeover
from penstock.runtime.jobmanager.takeover.rejoin_server import RejoinServer
from penstock.runtime.system.threads import Offload


class RunStart:
    """Plans the start of one run, and finds out whether living workers can be taken over.

    Arguments:
        planner: decides from which snapshot the run starts.
        packed_code: the job's code, from `job_code.pack`.
        offload: runs a blocking function outside of the event loop.
        observe: called with each event of the job.
    """

    def __init__(
        self,
        planner: RestorePlanner,
        packed_code: bytes,
        offload: Offload,
        observe: Callable[[JobEvent], None],
    ) -> None:
        self._planner = planner
        self._code = hashlib.sha256(packed_code).digest()
        self._offload = offload
        self._observe = observe

    async def plan(
        self, server: RejoinServer | None, slots: int
    ) -> tuple[RestorePlan, Adoption | None]:
        """Return the plan for the start, and the workers to continue with if there are some.

        Arguments:
            server: receives the offers of the workers; None without a supervisor.
            slots: the number of workers of the job.

        Raises:
            GraphError: if the client's request or the program does not fit the snapshot.
            StoreError: if the snapshot is missing or damaged.
        """
        workers = [] if server is None else await server.gather(slots)
        if server is None or not workers:
            return await self._offload(self._planner.plan), None
        try:
            start = await self._offload(partial(self._planner.plan, keep_work=True))
            decision = decide_takeover(
                [worker.offer for worker in workers],
                start.restored.manifest if start.restored is not None and start.own else None,
                start.plan,
                self._code,
                start.types.to_wire(),
            )
        except BaseException:
            await server.refuse(workers)
            raise
        if isinstance(decision, TakeOver):
            return start, Adoption(decision, server, workers)
        await server.refuse(workers)
        await self.go_without_workers(start, decision.reason)
        return start, None

    async def go_without_workers(self, start: RestorePlan, reason: str) -> None:
        """Report why the workers of an earlier JobManager were ended, and remove their files."""
        text = "the workers of the JobManager before are not taken over"
        self._observe(Note(f"{text}: {reason}; new ones start from the newest snapshot"))
        if start.own:
            await self._offload(self._planner.clean)
