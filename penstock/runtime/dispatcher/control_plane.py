"""The operations on the jobs of a service, for any way to ask for them: `ControlPlane`.

The operations are methods. Each takes a typed request of `runtime.control.requests`, and returns a
typed answer, or raises `Refused` with a sentence. The class knows nothing of sockets or HTTP to
clients; `Dispatcher` serves it over the service's own protocol.

| operation | request | answer |
|---|---|---|
| `list` | | `list[JobRecord]`, oldest first |
| `show` | `Show(id)` | `JobDetails` |
| `submit` | `Submit(...)`, a packed program | `JobRecord` |
| `submit_script` | `SubmitScript(path, ...)`, a file that is run | `JobRecord` |
| `cancel` | `Cancel(id, now)` | `JobRecord`, when the job has ended |
| `stop` | `Stop(id)` | `SnapshotTaken`, when the job has ended |
| `savepoint` | `Savepoint(id)` | `SnapshotTaken` |
| `query` | `QueryState(...)`, `SampleEdge(...)` | the answer; see `control/state_queries.py` |
| `rescale` | `Rescale(id, parallelism)` | `JobRecord`, when the job runs again |
| `upgrade` | `Upgrade(id, ...)`, a packed program | `JobRecord`, when the new program is good |
| `upgrade_script` | `UpgradeScript(id, path, ...)`, a file that is run | the same |
| `shadow_slots` | `ShadowSlots(id, slots)` | a context manager that keeps the slots |
| `restart` | `Restart(id)` | `JobRecord`, when the job runs again or is queued |
| `logs` | `Logs(id, offset, follow)` | an asynchronous iterator of `bytes` |
| `events` | `Events(id, after, follow)` | an asynchronous iterator of events |

`UnknownJob` and `Conflict` are kinds of `Refused`: no such job, and a job whose state does not
allow the operation.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.control.requests import (
    SUBMISSION_VARIABLE,
    Cancel,
    Conflict,
    Events,
    Logs,
    Order,
    QueryState,
    Refused,
    Rescale,
    Restart,
    SampleEdge,
    Savepoint,
    ShadowSlots,
    Show,
    Stop,
    Submit,
    SubmitScript,
    UnknownJob,
    UnknownName,
    Upgrade,
    UpgradeScript,
    decode_job,
    encode_job,
)
from penstock.runtime.control.state_queries import CONFLICT, UNKNOWN
from penstock.runtime.dispatcher.job_details import (
    JobActivity,
    JobDetails,
    SnapshotTaken,
    details_of,
    log_parts,
)
from penstock.runtime.dispatcher.job_queue import Limits, runnable
from penstock.runtime.dispatcher.job_registry import LOST, JobRecord, JobRegistry
from penstock.runtime.dispatcher.job_runner import JobRunner, RunnableJob
from penstock.runtime.dispatcher.job_scripts import (
    ProgramFiles,
    run_script,
    run_shadow_script,
    script_path,
)
from penstock.runtime.dispatcher.jobmanager_process import connect
from penstock.runtime.dispatcher.state_folder import StateFolder

#: The interval at which changed records of jobs are saved, in seconds.
SAVE_SECONDS = 1.0


class ControlPlane:
    """Keeps the jobs of a service, and does what its users ask for.

    Each job runs in a JobManager process of its own, which outlives this object. A new object with
    the same folder finds the running jobs again, and starts those again that should run.

    Arguments:
        folder: the state folder, which the caller has opened.
        limits: the limits of all running jobs together.
        report: called with each line that reports an event, such as the start of a job.
        log_level: the log level of jobs that set none: a name of `logging`, such as "INFO".
    """

    def __init__(
        self,
        folder: StateFolder,
        limits: Limits = Limits(),  # noqa: B008  (it is frozen)
        report: Callable[[str], None] = lambda _: None,
        log_level: str = "INFO",
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._report = report
        self._log_level = log_level
        self._registry = JobRegistry(folder.jobs, report)
        #: The jobs that have not ended, by id.
        self._runners: dict[str, JobRunner] = {}
        #: The jobs of `submit_script`, by their `submission`.
        self._submitted: dict[str, JobRecord | None] = {}
        #: What the shadow runs of running jobs take, as records of their own.
        self._shadows: list[JobRecord] = []
        self._stopping = False
        self._nursery: trio.Nursery

    # ---- the life of the service

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Find the jobs of the folder again, and keep them until cancelled.

        When it is cancelled, the JobManagers go on. Raise `OSError` if the records cannot be read.

        Arguments:
            task_status: is told when the operations may be called.
        """
        self._registry.load()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._recover()
                self._schedule()
                task_status.started()
                await self._save_changes()
        finally:
            self._save()

    async def stop_all(self) -> None:
        """Stop all jobs in order, and take no more. Return when all have ended."""
        self._stopping = True
        runners = list(self._runners.values())
        if runners:
            names = ", ".join(self._runners)
            self._report(f"stopping the running jobs ({names}); a second signal kills them")
        async with trio.open_nursery() as nursery:
            for runner in runners:
                nursery.start_soon(self._stop, runner)

    def kill_all(self) -> None:
        """Kill the JobManagers of all jobs."""
        for runner in self._runners.values():
            runner.kill()

    async def _recover(self) -> None:
        for record in self._registry.records:
            # A JobManager that a signal has stopped, for example when the machine was shut down,
            # was not stopped by a user of the service.
            stopped = record.state == "stopped" and record.wanted == "run"
            if not record.active and not stopped:
                continue
            if record.state == "queued":
                self._runners[record.id] = self._runner(record)
                continue
            stream = await connect(record.address)
            runner = self._runner(record)
            if stream is not None:
                record.state = "running"
                self._runners[record.id] = runner
                self._report(f"job {record.id} ({record.name}): goes on, as it has meanwhile")
                self._nursery.start_soon(self._run, runner, stream)
            else:
                self._recover_ended(runner)

    def _recover_ended(self, runner: JobRunner) -> None:
        """Decide about a job whose JobManager has ended while no service ran."""
        record = runner.record
        with contextlib.suppress(ProtocolError):
            runner.catch_up()
        outcome = runner.outcome or ("stopped" if record.state == "stopped" else None)
        if outcome in ("finished", "failed"):
            runner.finish(outcome)
        elif record.wanted == "kill":
            runner.finish("killed")
        elif record.wanted == "stop":
            if outcome is None:
                record.error = "its JobManager died before it had taken the final snapshot"
            runner.finish(outcome or "killed")
        elif not record.checkpoint_dir:
            record.error = record.error if outcome else LOST
            runner.finish(outcome or "lost")
        else:
            text = "the JobManager of the job had ended with the machine or by a signal"
            runner.announce({"event": "note", "text": f"{text}: the job starts again"})
            self._enqueue(runner)
            return
        self._report(f"job {record.id} ({record.name}): {record.state}")

    def _runner(self, record: JobRecord) -> JobRunner:
        return JobRunner(record, self._registry, self._log_level)

    def _enqueue(self, runner: JobRunner) -> None:
        record = runner.record
        record.state, record.ended = "queued", None
        self._registry.save(record)
        self._runners[record.id] = runner

    def _schedule(self) -> None:
        """Start the queued jobs for which there is room, and say of the others why they wait."""
        if self._stopping:
            return
        records = [runner.record for runner in self._runners.values()]
        queue = sorted(
            (record for record in records if record.state == "queued"),
            key=lambda record: (record.started == 0, int(record.id)),
        )
        starting, waiting = runnable(queue, self._running_records(), self._limits)
        for record in starting:
            record.state = "running"
            self._nursery.start_soon(self._run, self._runners[record.id], None)
        for id, reason in waiting.items():
            runner = self._runners[id]
            if runner.record.waiting != reason:
                runner.record.waiting = reason
                runner.announce({"event": "queued", "reason": reason})
                self._registry.save(runner.record)

    def _running_records(self) -> Sequence[JobRecord]:
        """Return the records of the jobs that take slots and memory."""
        records = [runner.record for runner in self._runners.values()]
        return [record for record in records if record.state == "running"] + self._shadows

    async def _run(self, runner: JobRunner, stream: trio.SocketStream | None) -> None:
        """Run a job until it has ended, and start those that have waited for it."""
        record = runner.record
        if stream is None:
            self._report(f"job {record.id} ({record.name}): starts")
        await runner.run(stream)
        self._ended(runner)

    def _ended(self, runner: JobRunner) -> None:
        record = runner.record
        self._report(f"job {record.id} ({record.name}): {record.state}")
        del self._runners[record.id]
        runner.ended.set()
        self._registry.forget_old(self._runners)
        self._schedule()

    async def _save_changes(self) -> None:
        while True:
            # A record is not saved at each snapshot, since a job may take many in a second.
            await trio.sleep(SAVE_SECONDS)
            self._save()

    def _save(self) -> None:
        for runner in self._runners.values():
            runner.save_changes()

    # ---- operations that only read

    def list(self) -> list[JobRecord]:
        """Return the records of all jobs, oldest first."""
        return self._registry.records

    def activity(self) -> dict[str, JobActivity]:
        """Return the newest figures of each job that has not ended, by id."""
        return {id: runner.activity for id, runner in self._runners.items()}

    def taken_slots(self) -> int:
        """Return the number of slots that running jobs and shadow runs take."""
        return sum(record.slots for record in self._running_records())

    def show(self, request: Show) -> JobDetails:
        """Return all facts about a job."""
        record = self._record(request.id)
        runner = self._runners.get(record.id)
        return details_of(self._registry, record, {} if runner is None else runner.figures)

    def logs(self, request: Logs) -> AsyncGenerator[bytes, None]:
        """Yield the log of a job in parts, which follow each other."""
        record = self._record(request.id)
        runner = self._runners.get(record.id)
        ended = None if runner is None else runner.ended
        return log_parts(self._registry.log(record.id), request, ended)

    async def events(self, request: Events) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the kept events of a job after `after`, and with `follow` those that come.

        A kept event has its number as `seq` and its time as `time`. While it follows, it also
        yields those events that are not kept, such as the figures of "status"; they have no `seq`.
        """
        record = self._record(request.id)
        async with self.following(record.id) as following:
            after = request.after
            for event in self._registry.journal(record.id).read(after):
                after = event["seq"]
                yield event
            if not request.follow or following is None:
                return
            async for event in following:
                seq = event.get("seq")
                if seq is None or seq > after:
                    after = after if seq is None else seq
                    yield event

    @asynccontextmanager
    async def following(
        self, id: str
    ) -> AsyncIterator[trio.MemoryReceiveChannel[dict[str, Any]] | None]:
        """Provide a channel with the events of a job from now on; None if it has ended.

        The last event is "ended".
        """
        runner = self._runners.get(id)
        if runner is None:
            yield None
        else:
            async with runner.following() as channel:
                yield channel

    # ---- operations on jobs

    async def submit(self, request: Submit) -> JobRecord:
        """Take a job, and start it or put it into the queue."""
        if self._stopping:
            raise Refused("the job manager is stopping and takes no more jobs")
        try:
            job = decode_job(request.job)
        except ProtocolError as error:
            raise Refused(f"the job manager cannot read the job: {error}") from error
        # Its JobManager and this service recognise each other by this secret.
        job = replace(job, options={**job.options, "rejoin_token": secrets.token_bytes(32)})
        record = self._registry.create(request.name, request.folder, request.checkpoint_dir)
        record.memory_bytes = request.memory_bytes
        RunnableJob.of(request).apply_to(record)
        record.python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        self._require_possible(record)
        self._registry.require_own_folder(record)
        try:
            self._registry.add(record, encode_job(job))
        except OSError as error:
            raise Refused(f"the job cannot be started: {error}") from error
        self._runners[record.id] = self._runner(record)
        if request.submission in self._submitted:
            self._submitted[request.submission] = record
        self._schedule()
        return record

    async def submit_script(self, request: SubmitScript) -> JobRecord:
        """Run a job file in a process of its own, up to its program, and submit the program.

        The reason of a refusal is what the file has printed on its standard error, such as its
        traceback.
        """
        submission = secrets.token_hex(16)
        self._submitted[submission] = None
        command = ["submit", "--detach", "--dir", str(self._folder.root)]
        try:
            await run_script(command, request, {SUBMISSION_VARIABLE: submission})
        finally:
            record = self._submitted.pop(submission)
        if record is None:
            raise Refused(f"the job file has submitted no job: {script_path(request)}")
        return record

    async def upgrade_script(self, request: UpgradeScript) -> tuple[JobRecord, str]:
        """Run a job file in a process of its own, and upgrade a job to its program.

        Return the job and what `penstock upgrade` has printed, or raise `Refused` with that.
        """
        record = self._running(request.id, "be upgraded").record
        command = ["upgrade", "--dir", str(self._folder.root), record.id]
        return record, await run_script(command, request, {})

    async def shadow_script(self, request: UpgradeScript) -> dict[str, Any]:
        """Run a job file, compare its program with that of a job, and return the report."""
        self._running(request.id, "have a shadow run")
        return await run_shadow_script(self._folder.root, request)

    async def keep_files(self, archive: bytes) -> Path:
        """Keep the files of a program that a client has sent, and return their folder."""
        used = [record.folder for record in self._registry.records]
        files = ProgramFiles(self._folder.root / "programs")
        return await trio.to_thread.run_sync(files.keep, archive, used)

    async def cancel(self, request: Cancel) -> JobRecord:
        """Stop a job with a final snapshot, or kill it, and return when it has ended."""
        runner = self._active(request.id)
        if request.now and runner.record.state != "queued":
            runner.kill()
            await runner.ended.wait()
        else:
            await self._stop(runner)
        return runner.record

    async def stop(self, request: Stop) -> SnapshotTaken:
        """Stop a job with a savepoint, and return when it has ended."""
        runner = self._running(request.id, "be stopped with a savepoint")
        await self._stop(runner)
        record, number = runner.record, runner.stopped_at
        if number is None:
            raise Conflict(
                f"job {record.id} ended before it took the savepoint: it is {record.state}"
                f"{_because(record)}"
            )
        return SnapshotTaken(record, number, str(runner.snapshot_path(number)))

    async def savepoint(self, request: Savepoint) -> SnapshotTaken:
        """Take a savepoint of a job, which goes on, and return when it is complete."""
        runner = self._running(request.id, "take a savepoint")
        record = runner.record
        if record.wanted != "run":
            raise Conflict(f"job {record.id} is being stopped, and takes no more savepoints")
        async with runner.following() as events:
            await runner.order(Order.SAVEPOINT)
            with trio.move_on_after(request.timeout_seconds) as waiting:
                async for event in events:
                    if event["event"] == "snapshot" and event["kind"] == "savepoint":
                        number = event["number"]
                        return SnapshotTaken(record, number, str(runner.snapshot_path(number)))
        if waiting.cancelled_caught:
            raise Conflict(
                f"job {record.id} has taken no savepoint within {request.timeout_seconds:g} s; it "
                f"takes it when it can"
            )
        raise Conflict(
            f"job {record.id} ended before it took the savepoint: it is {record.state}"
            f"{_because(record)}"
        )

    async def query(self, request: QueryState | SampleEdge) -> dict[str, Any]:
        """Return the answer of running tasks to a question for state, or for records of an edge."""
        runner = self._active(request.id)
        if runner.record.state != "running":
            raise Conflict(f"job {request.id} answers no live query: it is {runner.record.state}")
        answer = await runner.query(request.query(secrets.token_hex(8)))
        if answer["problem"]:
            kinds: dict[str, type[Refused]] = {UNKNOWN: UnknownName, CONFLICT: Conflict}
            kind = kinds.get(answer["problem"], Refused)
            raise kind(f"job {request.id}: {answer['reason']}")
        return answer

    async def profile(self, id: str) -> None:
        """Request the call stacks of the workers of job `id`, which come as events."""
        await self._running(id, "be sampled").order(Order.PROFILE)

    async def rescale(self, request: Rescale) -> JobRecord:
        """Stop a job with a savepoint, start it with a parallelism, and return when it runs."""
        runner = self._running(request.id, "be rescaled")
        record, parallelism = runner.record, request.parallelism
        if not 1 <= parallelism <= record.max_parallelism:
            raise Refused(
                f"job {record.id} cannot run with parallelism {parallelism}: its maximum "
                f"parallelism is {record.max_parallelism}"
            )
        new = replace(RunnableJob.of(record), parallelism=parallelism)
        self._require_room(runner, new)
        await runner.change(new)
        self._schedule()
        return record

    async def upgrade(self, request: Upgrade) -> JobRecord:
        """Stop a job with a savepoint, start another program from it, and return when it is good.

        The new program is good after its first snapshot. If it fails before, the old program is
        started again from the savepoint, and the request is refused with the reason.
        """
        runner = self._running(request.id, "be upgraded")
        record = runner.record
        if request.name != record.name:
            raise Refused(
                f"the program is the job {request.name!r}, and job {record.id} is {record.name!r}, "
                f"to which its snapshots belong: give the program this name"
            )
        try:
            decode_job(request.job)
        except ProtocolError as error:
            raise Refused(f"the job manager cannot read the job: {error}") from error
        new = RunnableJob.of(request, request.job)
        self._require_room(runner, new)
        await runner.change(new, "snapshot" if request.has_checkpoints else "running")
        self._schedule()
        return record

    def _require_room(self, runner: JobRunner, new: RunnableJob) -> None:
        """Check that a job that is to be changed can run beside the others."""
        record = runner.record
        wanted = replace(record)
        new.apply_to(wanted)
        self._require_possible(wanted)
        others = [one for one in self._running_records() if one is not record]
        if wanted.slots > record.slots and (why := self._limits.why_waiting(wanted, others)):
            raise Conflict(f"job {record.id} cannot be changed now: {why}")

    @contextmanager
    def shadow_slots(self, request: ShadowSlots) -> Iterator[None]:
        """Keep slots and memory for a shadow run in this block. Raise `Conflict` without room."""
        record = self._running(request.id, "have a shadow run").record
        slots = max(record.slots, request.slots)
        shadow = replace(record, id=f"{record.id} (shadow run)", slots=slots, restart_scope="job")
        if why := self._limits.why_waiting(shadow, self._running_records()):
            raise Conflict(f"job {record.id} can have no shadow run now: {why}")
        self._shadows.append(shadow)
        try:
            yield
        finally:
            self._shadows.remove(shadow)
            self._schedule()

    async def restart(self, request: Restart) -> JobRecord:
        """Start a job from its newest snapshot; a running one is stopped with a snapshot before.

        Return when it runs again. A job that had ended may be queued instead.
        """
        record = self._record(request.id)
        if record.id in self._runners:
            runner = self._running(record.id, "be restarted")
            await runner.change(RunnableJob.of(record))
            return record
        if self._stopping:
            raise Refused("the job manager is stopping and takes no more jobs")
        if not record.checkpoint_dir:
            raise Conflict(
                f"job {record.id} has no checkpoint folder to go on from: submit it again"
            )
        self._registry.require_own_folder(record)
        self._require_possible(record)
        record.wanted, record.error, record.restarts = "run", None, 0
        record.submitted = round(time.time(), 3)
        runner = self._runner(record)
        self._enqueue(runner)
        async with runner.following() as events:
            self._schedule()
            async for event in events:
                if event["event"] in ("running", "queued", "finished"):
                    return record
        if record.state == "failed":
            raise Refused(f"job {record.id} has failed again: {record.error}")
        return record

    async def _stop(self, runner: JobRunner) -> None:
        if runner.record.state == "queued":
            runner.record.wanted = "stop"
            runner.finish("stopped")
            runner.announce({"event": "ended", "state": "stopped", "how": "had not started"})
            self._ended(runner)
        else:
            await runner.stop()
            await runner.ended.wait()

    # ---- requirements

    def _record(self, id: str) -> JobRecord:
        record = self._registry.get(id)
        if record is None:
            raise UnknownJob(f"there is no job {id}; see penstock list")
        return record

    def _active(self, id: str) -> JobRunner:
        record = self._record(id)
        runner = self._runners.get(id)
        if runner is None:
            raise Conflict(f"job {id} does not run: it is {record.state}")
        return runner

    def _running(self, id: str, purpose: str) -> JobRunner:
        """Return the runner of a job that runs and has snapshots, or raise `Conflict`."""
        runner = self._active(id)
        if runner.record.state != "running":
            raise Conflict(f"job {id} cannot {purpose}: it is {runner.record.state}")
        if not runner.record.checkpoint_dir:
            raise Conflict(
                f"job {id} cannot {purpose}: it has no checkpoint folder; submit it with "
                f"--checkpoint-dir"
            )
        return runner

    def _require_possible(self, record: JobRecord) -> None:
        never = self._limits.why_never(record)
        if never is not None:
            raise Refused(f"the job can never run here: {never}")


def _because(record: JobRecord) -> str:
    return f": {record.error}" if record.error else ""
