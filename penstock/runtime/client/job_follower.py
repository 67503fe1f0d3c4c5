"""Follow a job in a thread, while its program continues: `JobFollower`."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.dataflow.config import ExternalizedCheckpointRetention
from penstock.dataflow.errors import JobError, PenstockError, StoreError
from penstock.dataflow.job_client import JobStatus, StateAnswer
from penstock.dataflow.program import JobExecutionResult
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.control.state_queries import ANSWER
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store

if TYPE_CHECKING:
    from penstock.runtime.client.job_queries import JobQueries

_LOGGER = logging.getLogger("penstock")
_STATES = {"workers": JobStatus.RUNNING, "restarting": JobStatus.RESTARTING}


class _Result(Future[JobExecutionResult]):
    """The result of a job. It records whether the program has asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        self._wait(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception()

    def _wait(self, timeout: float | None) -> None:
        """Wait for the result. Raise `TimeoutError` if there is none after `timeout` seconds."""
        super().exception(timeout)
        self.seen = True

    def add_done_callback(self, fn: Callable[[Future[JobExecutionResult]], object]) -> None:
        self.seen = True
        super().add_done_callback(fn)


class JobFollower:
    """Reads the events of a job in a thread, and controls the job.

    The program waits for the thread before it exits. So a job that it has forgotten is not stopped.

    Arguments:
        id: the id of the job.
        job: the connection to its JobManager.
        monitor: makes the result of the job.
        folder: the checkpoint folder of the job; None if it has none.
        retention: whether the checkpoints in this folder are kept when the job is cancelled.
        cleanup: is closed when the job has ended.
    """

    def __init__(
        self,
        id: str,
        job: JobConnection,
        monitor: JobMonitor,
        folder: str | None,
        cleanup: ExitStack,
        retention: ExternalizedCheckpointRetention | None = None,
    ) -> None:
        self.id = id
        self.status = JobStatus.INITIALIZING
        self.result = _Result()
        self._job, self._monitor, self._cleanup = job, monitor, cleanup
        self._paths = None if folder is None else JobPaths(Path(folder).absolute())
        self._deletes = retention is not None and retention.deletes_when_cancelled
        self._cancelled = False
        self._lock = threading.Lock()
        #: The futures of the snapshots that were requested, by the kind of the snapshot.
        self._requested: dict[str, list[Future[str]]] = {"savepoint": [], "final": []}
        #: Whether a JobManager of the job has started.
        self._started = False
        #: The queries of the state of the job; None before the first one.
        self._queries: JobQueries | None = None
        atexit.register(self._report_unseen_error)
        threading.Thread(target=self._follow, name=f"penstock-job-{id}").start()

    def cancel(self) -> None:
        """End the job at once, without a final snapshot."""
        with self._lock:
            if not self.result.done():
                self._cancelled, self.status = True, JobStatus.CANCELLING
                self._job.kill()

    def stop(self) -> Future[str]:
        """Stop the job with a final snapshot; return a future of the path of the snapshot."""
        return self._request("final")

    def savepoint(self) -> Future[str]:
        """Take a savepoint; return a future of its path."""
        return self._request("savepoint")

    def query_state(
        self,
        operator: str,
        state: str,
        key: Any,
        prefix: str | None,
        top: int | None,
        by: str,
        limit: int,
        live: bool,
    ) -> Future[StateAnswer]:
        """Return a future of entries of a state; see `JobClient.query_state`."""
        if self._queries is None:
            from penstock.runtime.client.job_queries import JobQueries

            with self._lock:
                folder = None if self._paths is None else str(self._paths.root)
                self._queries = self._queries or JobQueries(folder, self._job.query)
        return self._queries.ask(operator, state, key, prefix, top, by, limit, live)

    def end(self) -> None:
        """Begin to stop the job, with a final snapshot if it has a folder; do not wait."""
        self._job.stop()

    def unseen_error(self) -> BaseException | None:
        """Wait for the end of the job. Return its error unless the program asked for the result."""
        seen, error = self.result.seen, self.result.exception()
        return None if seen or self.status is JobStatus.CANCELED else error

    def _request(self, kind: str) -> Future[str]:
        path: Future[str] = Future()
        with self._lock:
            if self._paths is None:
                path.set_exception(
                    StoreError("the job has no checkpoint folder: call set_checkpoint_storage_dir")
                )
            elif self.result.done():
                path.set_exception(JobError("the job has ended, and takes no more snapshots"))
            else:
                self._requested[kind].append(path)
                if kind == "final":
                    self._job.stop()
                else:
                    self._job.savepoint()
        return path

    def _follow(self) -> None:
        outcome: JobExecutionResult | BaseException
        try:
            with self._cleanup:
                for event in self._job.events():
                    if event["event"] == ANSWER:
                        if self._queries is not None:
                            self._queries.answered(event)
                        continue
                    if event["event"] == "started":
                        if self._started and self._queries is not None:
                            self._queries.refuse("the JobManager has died; ask again in a moment")
                        self._started = True
                    self._monitor.handle(event)
                    self._handle(event)
                ended = self._job.wait()
                if self._cancelled:
                    self._remove_checkpoints()
                outcome = replace(self._monitor.result(ended), job_id=self.id)
                if self._monitor.signal is not None:
                    name = signal.Signals(self._monitor.signal).name
                    outcome = JobError(f"the JobManager received {name}, and stopped the job")
        except BaseException as error:
            outcome = error
        if self._queries is not None:
            self._queries.end()
        with self._lock:
            self._end(outcome)

    def _remove_checkpoints(self) -> None:
        """Remove the checkpoints of a cancelled job, unless they are kept.

        The JobManager was killed, so it cannot do it.
        """
        if self._paths is None or not self._deletes:
            return
        store = Store(self._paths.root)
        try:
            store.lock()
            store.remove_checkpoints()
        except StoreError as error:
            _LOGGER.warning("the checkpoints could not be removed: %s", error)
        finally:
            store.unlock()

    def _handle(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind in _STATES and not self._cancelled:
            self.status = _STATES[kind]
        elif kind == "snapshot" and self._paths is not None:
            with self._lock:
                waiting = self._requested.get(event["kind"], [])
                path = str(self._paths.snapshot(event["number"]))
                while waiting:
                    waiting.pop().set_result(path)

    def _end(self, outcome: JobExecutionResult | BaseException) -> None:
        """Set the futures of a job that has ended."""
        if self._cancelled and isinstance(outcome, PenstockError):
            self.status = JobStatus.CANCELED
            self.result.set_exception(JobError("the job was cancelled"))
        elif isinstance(outcome, BaseException):
            self.status = JobStatus.FAILED
            self.result.set_exception(outcome)
        else:
            self.status = JobStatus.FINISHED
            self.result.set_result(outcome)
            atexit.unregister(self._report_unseen_error)
        for path in [*self._requested["savepoint"], *self._requested["final"]]:
            path.set_exception(JobError("the job ended before it took the snapshot"))

    def _report_unseen_error(self) -> None:
        """Print the job's error when the process exits, unless the program asked for it."""
        error = self.unseen_error() if self.result.done() else None
        if error is not None:
            print(f"penstock: a job of execute_async has failed: {error}", file=sys.stderr)
