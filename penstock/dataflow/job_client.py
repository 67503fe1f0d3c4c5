"""Define `JobClient`, with which a program controls a job that runs in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.errors import GraphError
from penstock.dataflow.program import JobExecutionResult, Program
from penstock.dataflow.type_variables import UserValue


class JobStatus(Enum):
    """The state of a job. (Flink: `JobStatus`.)

    Examples:
        >>> JobStatus.FINISHED.is_globally_terminal_state()
        True
    """

    CREATED = 0
    RUNNING = 1
    FAILING = 2
    FAILED = 3
    CANCELLING = 4
    CANCELED = 5
    FINISHED = 6
    RESTARTING = 7
    SUSPENDED = 8
    RECONCILING = 9
    INITIALIZING = 10

    def is_globally_terminal_state(self) -> bool:
        """Return whether the job has ended, and is not continued elsewhere."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)

    def is_terminal_state(self) -> bool:
        """Return whether the job has ended here."""
        return self.is_globally_terminal_state() or self is JobStatus.SUSPENDED


class JobID(str):
    """The id of a job. It is a text. (Flink: `JobID`.)

    Examples:
        >>> _ = env.from_collection(["a", "b"]).sink_to(FileSink("letters"))
        >>> client = env.execute_async("letters")
        >>> isinstance(client.get_job_id(), JobID)
        True
        >>> result = client.get_job_execution_result().result()
    """

    __slots__ = ()


class StateAnswer(NamedTuple):
    """The answer to a query of keyed state.

    Arguments:
        entries: the entries, each a `StateEntry`.
        live: whether running tasks have answered, each at another time. If not, the entries are
            those of one snapshot.
        snapshot: the number of the snapshot; None if the answer is live.
        age_seconds: the time since the snapshot was taken, in seconds; None if the answer is live.
        more: whether the state has more such entries than the limit.

    Examples:
        >>> StateAnswer([], False, 7, 0.4, False).snapshot
        7
    """

    entries: Sequence[UserValue]
    live: bool
    snapshot: int | None
    age_seconds: float | None
    more: bool


class BackgroundJob(Protocol):
    """A job that runs while the program continues."""

    @property
    def id(self) -> str:
        """The id of the job."""

    @property
    def status(self) -> JobStatus:
        """The current state of the job."""

    @property
    def result(self) -> Future[JobExecutionResult]:
        """The result of the job, or its error."""

    def cancel(self) -> None:
        """End the job at once, without a final snapshot."""

    def stop(self) -> Future[str]:
        """Stop the job with a final snapshot; return a future of the path of the snapshot."""

    def savepoint(self) -> Future[str]:
        """Take a savepoint; return a future of its path."""

    def query_state(
        self,
        operator: str,
        state: str,
        key: UserValue,
        prefix: str | None,
        top: int | None,
        by: str,
        limit: int,
        live: bool,
    ) -> Future[StateAnswer]:
        """Return a future of entries of a state; see `JobClient.query_state`."""

    def end(self) -> None:
        """Begin to stop the job, with a final snapshot if it has a folder; do not wait."""

    def unseen_error(self) -> BaseException | None:
        """Wait for the end of the job. Return its error unless the program asked for the result."""


class JobClient(PyFlinkNames):
    """Controls a job that `execute_async` has started. (Flink: `JobClient`.)

    The program ends only when its jobs have ended. The methods return a
    `concurrent.futures.Future`, which has the methods of PyFlink's `CompletableFuture`: `result`,
    `done`, `exception` and `add_done_callback`.

    Arguments:
        job: the running job.

    Examples:
        >>> _ = env.from_collection(["a", "b"]).sink_to(FileSink("letters"))
        >>> client = env.execute_async("letters")
        >>> result = client.get_job_execution_result().result()
        >>> client.get_job_status().result()
        <JobStatus.FINISHED: 6>
    """

    _missing: ClassVar[Mapping[str, str]] = {
        "get_accumulators": "jobs have no accumulators; use a counter of get_metrics_group()",
    }

    def __init__(self, job: BackgroundJob) -> None:
        self._job = job

    def get_job_id(self) -> JobID:
        """Return the id of the job."""
        return JobID(self._job.id)

    def get_job_status(self) -> Future[JobStatus]:
        """Return a future of the state of the job, which is known at once."""
        found: Future[JobStatus] = Future()
        found.set_result(self._job.status)
        return found

    def cancel(self) -> Future[None]:
        """End the job at once, without a final snapshot.

        Its result is then a `JobError`, and its state `CANCELED`. The future is done when the job
        has ended.
        """
        ended: Future[None] = Future()
        self._job.cancel()
        self._job.result.add_done_callback(lambda _: ended.set_result(None))
        return ended

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool = False, savepoint_directory: str | None = None
    ) -> Future[str]:
        """Stop the job with a final snapshot, from which it can be resumed.

        Arguments:
            advance_to_end_of_event_time: must be False: windows and timers stay in the snapshot.
            savepoint_directory: must be None: snapshots are in the checkpoint folder of the job.

        Returns:
            A future of the path of the snapshot.

        Raises:
            GraphError: if an argument has another value.
        """
        if advance_to_end_of_event_time:
            raise GraphError(
                "stop_with_savepoint cannot advance to the end of event time: windows and timers "
                "stay in the snapshot, and continue when the job is resumed; give False"
            )
        _check_directory("stop_with_savepoint", savepoint_directory)
        return self._job.stop()

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> Future[str]:
        """Take a snapshot that is never removed, and return a future of its path.

        Arguments:
            savepoint_directory: must be None: snapshots are in the checkpoint folder of the job.

        Raises:
            GraphError: if the argument has another value.
        """
        _check_directory("trigger_savepoint", savepoint_directory)
        return self._job.savepoint()

    def query_state(
        self,
        operator: str,
        state: str,
        key: UserValue = None,
        *,
        prefix: str | None = None,
        top: int | None = None,
        by: str = "value",
        limit: int = 100,
        live: bool = False,
    ) -> Future[StateAnswer]:
        """Return a future of entries of a state of the running job.

        Arguments:
            operator: the uid of the operator, set with `uid`.
            state: the name of the state; that of a window is "window-contents".
            key: the key whose entries are wanted; None for any key.
            prefix: the beginning of the keys, which are texts; None for any key.
            top: the number of entries with the largest values; None for any entries.
            by: with `top`, the value that is compared: "value", or a field such as "value.amount".
            limit: the largest number of entries.
            live: whether the running tasks answer, between two batches. If not, the newest
                complete snapshot is read, which is consistent.

        Raises:
            GraphError: if there is no such operator or state, or the key is of another type. The
                future of a live query raises it.
            StoreError: if there is no snapshot.
            JobError: if the job has ended, and the query is live.
        """
        return self._job.query_state(operator, state, key, prefix, top, by, limit, live)

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        """Return a future of the result of the job. It raises the error of a failed job."""
        return self._job.result


@runtime_checkable
class AsyncExecutor(Protocol):
    """An executor that can start a program and return before its job has ended."""

    def submit(self, program: Program) -> JobClient:
        """Start a program, and return a client that controls its job."""


def end_job(client: JobClient) -> None:
    """Begin to stop a job, because a signal ends the program; do not wait."""
    client._job.end()


def unseen_error(client: JobClient) -> BaseException | None:
    """Wait until a job has ended, and return its error, unless the program knows of it.

    Return None if the job has not failed, or if the program has cancelled it or has asked for its
    result.
    """
    return client._job.unseen_error()


def _check_directory(method: str, directory: str | None) -> None:
    if directory is not None:
        raise GraphError(
            f"{method} takes no folder: snapshots are in the checkpoint folder of the job, see "
            f"set_checkpoint_storage_dir"
        )
