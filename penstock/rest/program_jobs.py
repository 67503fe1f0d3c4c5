"""Serve the HTTP API for the jobs of a program, inside its process: `penstock run --ui`.

Observers of jobs, such as `penstock run --otel`, run here as well, with the API or without it.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.job_client import JobStatus
from penstock.dataflow.program import Program
from penstock.rest.access import ApiAccess
from penstock.rest.observers import JobObserver
from penstock.rest.operations import RefusedRequest
from penstock.rest.server import ServerCertificate, serve_application
from penstock.rest.state_reader import StateReader
from penstock.runtime.client.job_connection import JobConnection
from penstock.runtime.control.job_state import JobState, ShadowRequest, SnapshotRequest
from penstock.runtime.control.requests import Request
from penstock.runtime.control.state_queries import (
    ANSWER,
    CONFLICT,
    UNKNOWN,
    LiveQuery,
    RecordQuery,
    StateQuery,
)
from penstock.runtime.dispatcher.job_registry import JobRecord
from penstock.runtime.dispatcher.open_queries import OpenQueries
from penstock.saved.state_requests import StateRequest

_Post = Callable[..., None]


class WatchedJob(JobConnection):
    """Follows a job, and passes its events to the thread of the server.

    Arguments:
        job: the connection to the job.
        state: the state of the job. Only the thread of the server uses it.
        post: calls a function with arguments in that thread.
        observers: see the events of the job, in that thread.
    """

    def __init__(
        self, job: JobConnection, state: JobState, post: _Post, observers: Sequence[JobObserver]
    ) -> None:
        self._job, self.state, self._post = job, state, post
        self._observers = observers
        #: What observers know of a job beside its state. It has the fields of a service's job.
        self._record = JobRecord(state.id, state.name, submitted=time.time(), log=state.id)
        self._cancelled = False
        #: Whether a JobManager of the job has started.
        self._started = False
        #: The queries of clients of the server. Only its thread uses them.
        self.queries = OpenQueries()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the job."""
        for event in self._job.events():
            if event["event"] == ANSWER:
                self._post(self.queries.answered, event)
                yield event
                continue
            if event["event"] == "started":
                if self._started:
                    self._post(self.queries.end)  # the JobManager before has died
                self._started = True
            self._post(self._handle, event)
            yield event

    def _handle(self, event: dict[str, Any]) -> None:
        """Take an event, in the thread of the server."""
        self.state.handle(event)
        if event["event"] == "finished":
            self._record.state = "stopped" if event.get("stopped") else "finished"
        for observer in self._observers:
            observer.event(self._record, self.state, event)

    def _end(self, how: str) -> None:
        """Take the end of the job, in the thread of the server."""
        self.state.connection_ended(how)
        record, failures = self._record, self.state.failures
        if self.state.status is not JobStatus.FINISHED:
            record.state = "killed" if self.state.status is JobStatus.CANCELED else "failed"
            record.error = failures[-1].error.get("message", how) if failures else how
        for observer in self._observers:
            observer.ended(record, self.state)

    def stop(self) -> None:
        """Request the JobManager to stop the job with a final snapshot."""
        self._job.stop()

    def savepoint(self) -> None:
        """Request the JobManager to take a savepoint."""
        self._job.savepoint()

    def query(self, query: LiveQuery) -> None:
        """Request entries of keyed state. The answer is an event."""
        self._job.query(query)

    def profile(self) -> None:
        """Request the call stacks of the workers."""
        self._job.profile()

    def drain(self) -> None:
        """Discard all data from the JobManager until it has ended."""
        self._job.drain()

    @property
    def running(self) -> bool:
        """Whether the JobManager is still running."""
        return self._job.running

    def kill(self) -> None:
        """End the JobManager at once."""
        self._job.kill()

    def cancel(self) -> None:
        """End the JobManager at once, because a client has cancelled the job."""
        self._cancelled = True
        self._job.kill()

    def wait(self) -> str:
        """Wait until the JobManager has ended, and return a text that says how it ended."""
        how = self._job.wait()
        if self._cancelled:
            how = "was killed, since the job was cancelled"
        self._post(self.queries.end)
        self._post(self._end, how)
        return how


class ProgramJobs:
    """Owns the jobs of a program.

    Its methods are called in the thread of the server, except `watch`.

    Arguments:
        post: calls a function with arguments in the thread of the server.
        observers: see the events of all jobs.
    """

    def __init__(self, post: _Post, observers: Sequence[JobObserver]) -> None:
        self._post, self._observers = post, observers
        self._jobs: dict[str, WatchedJob] = {}
        self.state_reader = StateReader()

    @property
    def takes_jobs(self) -> bool:
        """False: the program starts its jobs itself."""
        return False

    def watch(self, program: Program, job: JobConnection) -> JobConnection:
        """Add a job that has started, and return the connection with which to follow it."""
        state = JobState(secrets.token_hex(16), program.config.name)
        watched = WatchedJob(job, state, self._post, self._observers)
        self._post(self._jobs.__setitem__, state.id, watched)
        return watched

    def jobs(self) -> Sequence[JobState]:
        """Return the states of all jobs, oldest first."""
        return [watched.state for watched in self._jobs.values()]

    def slots(self) -> int:
        """Return 0: a program starts as many workers as its jobs need."""
        return 0

    def free_slots(self) -> int:
        """Return 0: a program starts as many workers as its jobs need."""
        return 0

    async def submit(
        self, path: str, options: list[str], arguments: list[str], folder: str
    ) -> JobState:
        """Refuse: only a service takes jobs."""
        del options, arguments, folder
        raise _no_service(f"takes no jobs such as {path[:200]}")

    async def keep_files(self, archive: bytes) -> Path:
        """Refuse: only a service takes jobs."""
        del archive
        raise _no_service("takes no jobs")

    async def answers(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """Refuse: the command line controls the jobs of a service."""
        raise _no_service(f"answers no {type(request).__name__}")
        yield {}

    async def upgrade(
        self, job: JobState, path: str, options: list[str], arguments: list[str], folder: str
    ) -> None:
        """Refuse: the job belongs to its program."""
        del path, options, arguments, folder
        raise RefusedRequest(
            409,
            f"job {job.id} belongs to the program that runs it: stop it, and start the other "
            f"program with --resume",
        )

    async def shadow_run(
        self, job: JobState, path: str, options: list[str], arguments: list[str], folder: str
    ) -> ShadowRequest:
        """Refuse: only jobs of a service have shadow runs."""
        del job, path, options, arguments, folder
        raise _no_service("has no shadow runs")

    async def cancel(self, job: JobState) -> None:
        """End a job at once."""
        job.cancelling()
        await trio.to_thread.run_sync(self._jobs[job.id].cancel)

    async def stop(self, job: JobState, target: str | None) -> SnapshotRequest:
        """Stop a job with a final snapshot."""
        _require_no_target(target)
        request = job.request_snapshot("final")
        await trio.to_thread.run_sync(self._jobs[job.id].stop)
        return request

    async def savepoint(self, job: JobState, target: str | None) -> SnapshotRequest:
        """Take a savepoint.

        Raises:
            RefusedRequest: if the job has no folder for it, or a target is given.
        """
        _require_no_target(target)
        if job.config.get("checkpoint_dir") is None:
            raise RefusedRequest(
                409, f"job {job.id} has no checkpoint folder: start it with --checkpoint-dir"
            )
        request = job.request_snapshot("savepoint")
        await trio.to_thread.run_sync(self._jobs[job.id].savepoint)
        return request

    async def profile(self, job: JobState) -> None:
        """Request the call stacks of a job's workers."""
        await trio.to_thread.run_sync(self._jobs[job.id].profile)

    async def rescale(self, job: JobState, parallelism: int) -> None:
        """Refuse: the job belongs to its program."""
        raise RefusedRequest(
            409,
            f"job {job.id} belongs to the program that runs it: stop it, and start the program "
            f"with --resume --parallelism {parallelism}",
        )

    async def restart(self, job: JobState) -> None:
        """Refuse: the job belongs to its program."""
        raise RefusedRequest(
            409,
            f"job {job.id} belongs to the program that runs it: start the program with --resume",
        )

    async def state_names(self, job: JobState) -> dict[str, Any]:
        """Return the states of the newest snapshot of a job."""
        return await self.state_reader.names(job)

    async def query_state(self, job: JobState, request: StateRequest, live: bool) -> dict[str, Any]:
        """Return entries of a state of a job: those of its newest snapshot, or live ones."""
        if not live:
            return await self.state_reader.saved(job, request)

        async def ask(fields: dict[str, Any]) -> dict[str, Any]:
            return await self._ask(job, StateQuery(secrets.token_hex(8), **fields))

        return await self.state_reader.live(request, ask)

    async def sample_edge(
        self, job: JobState, edge: str, limit: int, seconds: float
    ) -> dict[str, Any]:
        """Return records that travel on an edge of a job from now on."""
        return await self._ask(job, RecordQuery(secrets.token_hex(8), edge, limit, seconds))

    async def _ask(self, job: JobState, query: LiveQuery) -> dict[str, Any]:
        watched = self._jobs[job.id]

        async def send(query: LiveQuery) -> bool:
            await trio.to_thread.run_sync(watched.query, query)
            return True

        answer = await watched.queries.ask(query, send)
        if answer["problem"]:
            status = {UNKNOWN: 404, CONFLICT: 409}.get(answer["problem"], 400)
            raise RefusedRequest(status, f"job {job.id}: {answer['reason']}")
        return answer

    def log_file(self, job: JobState) -> Path | None:
        """Return None: the output of the job goes where that of the program goes."""
        del job
        return None


def _require_no_target(target: str | None) -> None:
    if target is not None:
        raise RefusedRequest(
            400,
            "the program that runs the job copies no savepoints: leave the directory out, and copy "
            "the savepoint with `penstock snapshots copy`",
        )


def _no_service(what: str) -> RefusedRequest:
    return RefusedRequest(
        409,
        f"this is the API of one program, and {what}: submit jobs to a service, "
        f"penstock jobmanager --ui",
    )


@dataclass(frozen=True)
class ApiServer:
    """Describes the server of an HTTP API.

    Arguments:
        listener: the socket of `listen`.
        access: decides which requests are allowed.
        tls: the certificate; None for a server without TLS.
    """

    listener: socket.socket
    access: ApiAccess
    tls: ServerCertificate | None = None


class ProgramServer:
    """Serves the jobs of a program in a thread, while its `with` block runs.

    Arguments:
        api: the server of the HTTP API; None for no API.
        observers: see the events of all jobs.
    """

    def __init__(self, api: ApiServer | None, observers: Sequence[JobObserver] = ()) -> None:
        self._api, self._observers = api, observers
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._error: BaseException | None = None
        self.jobs = ProgramJobs(self._post, observers)
        self._thread = threading.Thread(target=self._run, name="penstock-http", daemon=True)

    def __enter__(self) -> ProgramServer:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._post(self._stop.set)
        self._thread.join()

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        if self._token is None:
            return
        try:
            self._token.run_sync_soon(function, *arguments)
        except trio.RunFinishedError:
            return  # the server has ended, and the job continues without it

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        stop = self._stop = trio.Event()
        async with trio.open_nursery() as nursery:
            self._token = trio.lowlevel.current_trio_token()
            for observer in self._observers:
                nursery.start_soon(observer.run, self.jobs.jobs)
            if self._api is None:
                self._started.set()
                await stop.wait()
            else:
                nursery.start_soon(self.jobs.state_reader.run)
                await self._serve_api(self._api, stop)
            nursery.cancel_scope.cancel()

    async def _serve_api(self, api: ApiServer, stop: trio.Event) -> None:
        # Observers need no packages of the server.
        from penstock.rest.application import make_application

        application = make_application(self.jobs, api.access)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_application, application, api.listener, api.tls, stop.wait)
            self._started.set()
