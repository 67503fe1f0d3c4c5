"""Serve the HTTP API for the jobs of a job service: `penstock jobmanager --ui`."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.job_client import JobStatus
from penstock.rest.access import ApiAccess
from penstock.rest.observers import JobObserver
from penstock.rest.operations import RefusedRequest
from penstock.rest.server import ServerCertificate, serve_application
from penstock.rest.state_reader import StateReader
from penstock.runtime.control.job_state import JobState, ShadowRequest, SnapshotRequest
from penstock.runtime.control.requests import (
    Cancel,
    Conflict,
    Events,
    QueryState,
    Refused,
    Request,
    Rescale,
    Restart,
    SampleEdge,
    Savepoint,
    Stop,
    SubmitScript,
    UnknownJob,
    UnknownName,
    UpgradeScript,
)
from penstock.runtime.dispatcher.answers import READING, answers
from penstock.runtime.dispatcher.control_plane import ControlPlane
from penstock.runtime.dispatcher.job_details import SnapshotTaken
from penstock.runtime.dispatcher.job_registry import JobRecord
from penstock.saved.savepoint_target import copy_savepoint, require_target
from penstock.saved.state_requests import StateRequest

logger = logging.getLogger(__name__)

#: The time between two looks for new jobs, in seconds. A request looks as well.
LOOK_SECONDS = 1.0
#: The time in which the service refuses an order that it cannot carry out, in seconds. An order
#: that it carries out may take minutes.
REFUSAL_SECONDS = 0.3
#: How the API shows a job whose events do not say how it has ended.
_ENDS = {
    "finished": JobStatus.FINISHED,
    "stopped": JobStatus.FINISHED,
    "killed": JobStatus.CANCELED,
    "failed": JobStatus.FAILED,
    "lost": JobStatus.FAILED,
}
_T = TypeVar("_T")


class ServiceJobs:
    """Gathers the states of the jobs of a service, and passes orders to it.

    Arguments:
        control: the operations of the service.
        slots: the number of slots of the service; None if it is not limited.
        observers: see the events of all jobs.
    """

    def __init__(
        self, control: ControlPlane, slots: int | None, observers: Sequence[JobObserver] = ()
    ) -> None:
        self._control, self._slots = control, slots
        self._observers = observers
        #: The time at which this object was made, in seconds since the epoch.
        self._began = time.time()
        self._states: dict[str, JobState] = {}
        #: The jobs whose events are read.
        self._followed: set[str] = set()
        #: The number of the last event of each job that its state contains.
        self._seen: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None
        self._state_reader = StateReader()

    @property
    def takes_jobs(self) -> bool:
        """True: a service can start jobs."""
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the jobs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._state_reader.run)
            for observer in self._observers:
                self._nursery.start_soon(observer.run, self.jobs)
            task_status.started()
            while True:
                self.jobs()
                await trio.sleep(LOOK_SECONDS)

    def jobs(self) -> Sequence[JobState]:
        """Return the states of all jobs, oldest first."""
        records = self._control.list()
        for record in records:
            state = self._states.get(record.id)
            if state is None:
                state = JobState(record.id, record.name)
                state.started_ms = int((record.started or record.submitted) * 1000)
                self._states[record.id] = state
                self._follow(record)
            elif record.active and state.log.closed and record.id not in self._followed:
                state.begin_again()
                self._follow(record)
            state.slots = record.slots
        for id in self._states.keys() - {record.id for record in records}:
            del self._states[id]
        return list(self._states.values())

    def _follow(self, record: JobRecord) -> None:
        if self._nursery is not None:
            self._followed.add(record.id)
            self._nursery.start_soon(self._read_events, record, self._states[record.id])

    async def _read_events(self, record: JobRecord, state: JobState) -> None:
        """Let a state handle the events of a job until the job has ended."""
        request = Events(record.id, self._seen.get(record.id, 0), follow=True)
        try:
            async with aclosing(self._control.events(request)) as events:
                async for event in events:
                    self._seen[record.id] = event.get("seq", self._seen.get(record.id, 0))
                    try:
                        state.handle(event)
                        self._show(record, state, event)
                    except (KeyError, TypeError, ValueError):
                        # The job may have been started by an older version.
                        logger.warning("job %s: an event is not understood", record.id)
        except Refused:
            pass  # the job was forgotten meanwhile
        finally:
            self._followed.discard(record.id)
        if not state.ended and not record.active:
            state.end(_ENDS.get(record.state, JobStatus.FAILED), record.error or record.state)
        state.connection_ended(record.error or f"has ended: the job is {record.state}")
        if record.ended is not None and record.ended >= self._began:
            for observer in self._observers:
                observer.ended(record, state)

    def _show(self, record: JobRecord, state: JobState, event: dict[str, Any]) -> None:
        """Show an event to the observers, unless it is older than the service."""
        if event.get("time", self._began) >= self._began:
            for observer in self._observers:
                observer.event(record, state, event)

    def slots(self) -> int:
        """Return the number of slots of the service; 0 if it is not limited."""
        return self._slots or 0

    def free_slots(self) -> int:
        """Return the number of slots that no running job takes."""
        return max(0, self.slots() - self._control.taken_slots())

    # ---- orders

    async def submit(
        self, path: str, options: list[str], arguments: list[str], folder: str
    ) -> JobState:
        """Run a job file of this machine up to its program, and take the program."""
        try:
            request = SubmitScript(path, options, arguments, folder)
            record = await self._control.submit_script(request)
        except Refused as error:
            raise _refusal(error) from error
        self.jobs()
        return self._states[record.id]

    async def keep_files(self, archive: bytes) -> Path:
        """Keep the files of a program, and return their folder."""
        try:
            return await self._control.keep_files(archive)
        except Refused as error:
            raise _refusal(error) from error

    async def answers(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """Carry out a request of the command line, and yield the answers."""
        if self._nursery is None:
            raise RefusedRequest(409, "the service is about to start or to end")
        try:
            if isinstance(request, READING):
                async with aclosing(answers(self._control, request)) as found:
                    async for answer in found:
                        yield answer
            else:
                # An order has one answer, and does not end with its client.
                into, result = trio.open_memory_channel[dict[str, Any] | Refused](1)
                self._nursery.start_soon(self._carry_out, request, into)
                one = await result.receive()
                if isinstance(one, Refused):
                    raise one
                yield one
        except Refused as error:
            raise _refusal(error) from error

    async def _carry_out(
        self, request: Request, into: trio.MemorySendChannel[dict[str, Any] | Refused]
    ) -> None:
        try:
            async with aclosing(answers(self._control, request)) as found:
                async for answer in found:
                    into.send_nowait(answer)
        except Refused as error:
            into.send_nowait(error)

    async def upgrade(
        self, job: JobState, path: str, options: list[str], arguments: list[str], folder: str
    ) -> None:
        """Replace the program of a job by that of a job file."""
        request = UpgradeScript(job.id, path, options, arguments, folder)
        await self._order(lambda: self._control.upgrade_script(request))

    async def shadow_run(
        self, job: JobState, path: str, options: list[str], arguments: list[str], folder: str
    ) -> ShadowRequest:
        """Compare the program of a job file with that of a job; return the request for the report.

        The run goes on without its client.
        """
        order = UpgradeScript(job.id, path, options, arguments, folder)
        request = job.request_shadow_run()

        def ended(report: dict[str, Any]) -> None:
            request.report = report

        def refused(error: Refused) -> None:
            request.failure = str(error)

        try:
            await self._order(lambda: self._control.shadow_script(order), ended, refused)
        except RefusedRequest:
            job.shadow_runs.pop(request.id, None)
            raise
        return request

    async def cancel(self, job: JobState) -> None:
        """End a job at once."""
        await self._order(lambda: self._control.cancel(Cancel(job.id, now=True)))
        job.cancelling()

    async def stop(self, job: JobState, target: str | None) -> SnapshotRequest:
        """Stop a job with a final snapshot, and copy it to the target if there is one."""
        request = Stop(job.id)
        return await self._snapshot(job, "final", lambda: self._control.stop(request), target)

    async def savepoint(self, job: JobState, target: str | None) -> SnapshotRequest:
        """Take a savepoint, and copy it to the target if there is one."""
        request = Savepoint(job.id)
        return await self._snapshot(
            job, "savepoint", lambda: self._control.savepoint(request), target
        )

    async def profile(self, job: JobState) -> None:
        """Request the call stacks of a job's workers."""
        await self._order(lambda: self._control.profile(job.id))

    async def rescale(self, job: JobState, parallelism: int) -> None:
        """Continue a job with another parallelism."""
        await self._order(lambda: self._control.rescale(Rescale(job.id, parallelism)))

    async def restart(self, job: JobState) -> None:
        """Start a job again from its newest snapshot."""
        await self._order(lambda: self._control.restart(Restart(job.id)))

    async def state_names(self, job: JobState) -> dict[str, Any]:
        """Return the states of the newest snapshot of a job."""
        return await self._state_reader.names(job)

    async def query_state(self, job: JobState, request: StateRequest, live: bool) -> dict[str, Any]:
        """Return entries of a state of a job: those of its newest snapshot, or live ones."""
        if not live:
            return await self._state_reader.saved(job, request)

        async def ask(fields: dict[str, Any]) -> dict[str, Any]:
            return await self._ask(QueryState(job.id, **fields))

        return await self._state_reader.live(request, ask)

    async def sample_edge(
        self, job: JobState, edge: str, limit: int, seconds: float
    ) -> dict[str, Any]:
        """Return records that travel on an edge of a job from now on."""
        return await self._ask(SampleEdge(job.id, edge, limit, seconds))

    async def _ask(self, request: QueryState | SampleEdge) -> dict[str, Any]:
        try:
            return await self._control.query(request)
        except Refused as error:
            raise _refusal(error) from error

    def log_file(self, job: JobState) -> Path | None:
        """Return the path of a job's log."""
        for record in self._control.list():
            if record.id == job.id and record.log:
                return Path(record.log)
        return None

    async def _snapshot(
        self,
        job: JobState,
        kind: str,
        order: Callable[[], Awaitable[SnapshotTaken]],
        target: str | None,
    ) -> SnapshotRequest:
        if target is not None:
            try:
                await trio.to_thread.run_sync(require_target, target)
            except PenstockError as error:
                sentence = f"{error}. Nothing was done, and the job goes on"
                raise RefusedRequest(400, sentence) from error
            order = partial(_taken_and_copied, order, target)
        request = job.request_snapshot(kind, copied=target is not None)

        def taken(found: SnapshotTaken) -> None:
            request.location, request.failure = found.path, None

        def refused(error: Refused) -> None:
            if not request.done:
                request.failure = str(error)

        try:
            await self._order(order, taken, refused)
        except RefusedRequest:
            job.requests.pop(request.id, None)
            raise
        return request

    async def _order(
        self,
        order: Callable[[], Awaitable[_T]],
        done: Callable[[_T], None] = lambda _: None,
        refused: Callable[[Refused], None] = lambda _: None,
    ) -> None:
        """Give an order, and return when the service has not refused it for a while.

        Raises `RefusedRequest` if the service refuses it.

        Arguments:
            order: calls the operation, which may take minutes.
            done: called with its result.
            refused: called if it is refused later.
        """
        decided = trio.Event()
        refusals: list[Refused] = []

        async def run() -> None:
            try:
                done(await order())
            except Refused as error:
                refusals.append(error)
                refused(error)
            finally:
                decided.set()

        if self._nursery is None:
            raise RefusedRequest(409, "the service is about to start or to end")
        self._nursery.start_soon(run)
        with trio.move_on_after(REFUSAL_SECONDS):
            await decided.wait()
        if refusals:
            raise _refusal(refusals[0])


async def _taken_and_copied(
    order: Callable[[], Awaitable[SnapshotTaken]], target: str
) -> SnapshotTaken:
    """Take a snapshot, and return where its copy is.

    Raises `Refused` if the snapshot is complete and cannot be copied.
    """
    taken = await order()
    try:
        path = await trio.to_thread.run_sync(copy_savepoint, taken.path, target)
    except PenstockError as error:
        raise Refused(
            f"the snapshot is complete at {taken.path}, and could not be copied: {error}"
        ) from error
    return replace(taken, path=path)


def _refusal(error: Refused) -> RefusedRequest:
    if isinstance(error, UnknownJob | UnknownName):
        return RefusedRequest(404, str(error))
    return RefusedRequest(409 if isinstance(error, Conflict) else 400, str(error))


async def serve_service(
    control: ControlPlane,
    slots: int | None,
    listener: socket.socket | None,
    access: ApiAccess | None,
    certificate: ServerCertificate | None = None,
    observers: Sequence[JobObserver] = (),
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Follow the jobs of a service, and serve its API, until cancelled.

    Arguments:
        control: the operations of the service.
        slots: the number of slots of the service; None if it is not limited.
        listener: the socket of `listen`; None for no API.
        access: decides which requests are allowed; None for no API.
        certificate: the certificate; None for a server without TLS.
        observers: see the events of all jobs.
        task_status: is notified when the server accepts connections.
    """
    jobs = ServiceJobs(control, slots, observers)
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        if listener is not None and access is not None:
            # Observers need no packages of the server.
            from penstock.rest.application import make_application

            application = make_application(jobs, access)
            await nursery.start(serve_application, application, listener, certificate)
        task_status.started()
