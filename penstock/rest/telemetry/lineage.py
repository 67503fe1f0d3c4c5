"""Report the runs of jobs as OpenLineage events: `LineageReporter`."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import attr
import trio
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
)
from openlineage.client.facet_v2 import error_message_run
from openlineage.client.generated.base import RunFacet

from penstock.rest.telemetry.failures import ExportFailures
from penstock.runtime.control.job_state import JobState
from penstock.runtime.dispatcher.job_registry import JobRecord

#: What sends the events.
PRODUCER = "https://github.com/penstock/penstock"
#: The number of events that wait for the receiver. Further ones are dropped.
WAITING = 1_000
#: The time that the last events have when the service ends, in seconds.
END_SECONDS = 2.0
#: The last event of a job, by the state of its record.
_ENDS = {
    "finished": RunState.COMPLETE,
    "failed": RunState.FAIL,
    "stopped": RunState.ABORT,
    "killed": RunState.ABORT,
    "lost": RunState.ABORT,
}


@attr.define
class SnapshotRunFacet(RunFacet):
    """The newest snapshot of a run.

    Arguments:
        number: the number of the snapshot.
        bytesTotal: its size in bytes.
        durationMilliseconds: the time that it took.
    """

    number: int = 0
    bytesTotal: int = 0
    durationMilliseconds: float = 0.0


class LineageReporter:
    """Reports the start and the end of each run, and some of its snapshots.

    A run begins with the submission of a job, or when a job that had ended starts again. Its inputs
    and outputs are the sources and the sinks of the job, by the names of their operators. The
    receiver is that of OpenLineage's own settings: `OPENLINEAGE_URL`, or the file that
    `OPENLINEAGE_CONFIG` names.

    Arguments:
        every: each snapshot whose count is a multiple of this is reported as RUNNING.
        namespace: the namespace of jobs and datasets.
        client: sends the events; None makes one of the settings.
    """

    def __init__(
        self, every: int, namespace: str = "penstock", client: OpenLineageClient | None = None
    ) -> None:
        self._every, self._namespace = every, namespace
        self._client = client or OpenLineageClient()
        self.failures = ExportFailures("the receiver of OpenLineage events")
        self._snapshots: dict[str, int] = {}
        self._begun: set[str] = set()
        self._queue: queue.Queue[RunEvent | None] = queue.Queue(WAITING)

    # ---- as a `JobObserver`

    def event(self, record: JobRecord, state: JobState, event: dict[str, Any]) -> None:
        """Report the start of a run, or a snapshot."""
        run = _run_id(record)
        if event["event"] == "started" and run not in self._begun:
            self._begun.add(run)
            # A JobManager that replaces another one starts no new run.
            again = record.restarts or record.last_snapshot is not None
            self._put(RunState.RUNNING if again else RunState.START, record, state, {})
        elif event["event"] == "snapshot":
            count = self._snapshots[run] = self._snapshots.get(run, 0) + 1
            if count % self._every == 0:
                facet = SnapshotRunFacet(
                    event["number"], event["bytes_total"], event["duration_ms"]
                )
                self._put(RunState.RUNNING, record, state, {"penstock_snapshot": facet})

    def ended(self, record: JobRecord, state: JobState) -> None:
        """Report the end of a run."""
        facets: dict[str, RunFacet] = {}
        if record.state != "finished" and record.error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(record.error, "python")
        self._put(_ENDS.get(record.state, RunState.OTHER), record, state, facets)
        run = _run_id(record)
        self._snapshots.pop(run, None)
        self._begun.discard(run)

    async def run(self, jobs: Callable[[], Sequence[JobState]]) -> None:
        """Send the events from a thread, in their order, until cancelled."""
        del jobs
        # The thread may hang in a transport, so nothing waits for it for long.
        thread = threading.Thread(target=self._emit_all, name="penstock-lineage", daemon=True)
        thread.start()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(END_SECONDS, shield=True):
                await trio.to_thread.run_sync(self._queue.put, None, abandon_on_cancel=True)
                await trio.to_thread.run_sync(thread.join, abandon_on_cancel=True)

    # ---- events

    def _put(
        self, kind: RunState, record: JobRecord, state: JobState, facets: dict[str, RunFacet]
    ) -> None:
        vertices = state.graph["vertices"]
        event = RunEvent(
            eventType=kind,
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            run=Run(_run_id(record), facets),
            job=Job(self._namespace, record.name),
            inputs=[
                InputDataset(self._namespace, f"{record.name}.{one['operators'][0]['name']}")
                for one in vertices
                if one["source"]
            ],
            outputs=[
                OutputDataset(self._namespace, f"{record.name}.{one['operators'][-1]['name']}")
                for one in vertices
                if one["sink"]
            ],
        )
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.failures.failed(f"{WAITING:,} events wait for it")

    def _emit_all(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # of the transport, which may be anybody's
                self.failures.failed(f"{type(error).__name__}: {error}")
            else:
                self.failures.succeeded()


def _run_id(record: JobRecord) -> str:
    """Return the id of a run, which is the same after a restart of the service."""
    # The lineage of snapshots is empty at first; the folder of the log tells services apart.
    text = f"{record.log} {record.name} {record.submitted}"
    return str(uuid.uuid5(uuid.NAMESPACE_URL, text))
