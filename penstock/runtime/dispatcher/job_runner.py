"""Follow one submitted job, and start its JobManager. (Flink: `JobManagerRunner`.)"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.errors import PenstockError, ProtocolError
from penstock.dataflow.graph.restart_parts import slots_at
from penstock.runtime.control.failures import sentence_of
from penstock.runtime.control.packing import malformed
from penstock.runtime.control.requests import (
    Conflict,
    Order,
    Refused,
    Submit,
    Upgrade,
    decode_job,
)
from penstock.runtime.control.state_queries import ANSWER, LiveQuery
from penstock.runtime.control.supervision import NextJobManager, Supervision
from penstock.runtime.control.warning_texts import LEVELS, WarningTexts
from penstock.runtime.dispatcher.job_details import JobActivity
from penstock.runtime.dispatcher.job_registry import JobRecord, JobRegistry
from penstock.runtime.dispatcher.jobmanager_process import JobManagerProcess
from penstock.runtime.dispatcher.open_queries import OpenQueries
from penstock.runtime.system.private_files import read_private, replace_private
from penstock.runtime.system.rendezvous import Rendezvous
from penstock.runtime.user_code.process_logging import log_line
from penstock.snapshot.storage.job_paths import JobPaths

#: What `JobActivity` has of a snapshot.
_SHOWN = ("number", "kind", "duration_ms", "bytes_total")
#: The maximum number of events that wait for one client. A slower client is disconnected.
MAX_BEHIND = 10_000


@dataclass(frozen=True)
class RunnableJob:
    """The program and the parallelism of a job, which a change replaces.

    Arguments:
        parallelism, max_parallelism, slot_counts, restart_scope, folder: as in a `JobRecord`.
        request: the first frame for a JobManager of the program; None keeps the program.
    """

    parallelism: int
    max_parallelism: int
    slot_counts: list[list[int]]
    restart_scope: str
    folder: str
    request: bytes | None = None

    @classmethod
    def of(cls, record: JobRecord | Submit | Upgrade, request: bytes | None = None) -> RunnableJob:
        """Return the program and the parallelism of a job now, or those that a request has."""
        return cls(
            record.parallelism,
            record.max_parallelism,
            record.slot_counts,
            record.restart_scope,
            record.folder,
            request,
        )

    def apply_to(self, record: JobRecord) -> None:
        """Write the form of the job, with the number of its workers, into a record of it."""
        record.parallelism, record.max_parallelism = self.parallelism, self.max_parallelism
        record.slot_counts, record.restart_scope = self.slot_counts, self.restart_scope
        record.slots = slots_at(self.slot_counts, self.parallelism)
        record.folder = self.folder

    def __str__(self) -> str:
        program = "" if self.request is None else "another program and "
        return f"{program}parallelism {self.parallelism}"


@dataclass
class JobChange:
    """A stop of a job with a savepoint, after which it starts from there in another form.

    Arguments:
        new, old: the new form and the old one. They are equal for a restart.
        good_after: the event after which the change is made: the job is then not changed back.
        starting: whether the job has stopped.
        error: the reason for which the job does not run in the new form.
        done: is set when the change is made or has failed.
    """

    new: RunnableJob
    old: RunnableJob
    good_after: str = "running"
    starting: bool = False
    error: str | None = None
    done: trio.Event = field(default_factory=trio.Event)


class JobRunner:
    """Runs one job, keeps its record up to date, and forwards its events to clients.

    If the JobManager of a job with a checkpoint folder dies, the runner starts another one. If the
    runner is cancelled, the JobManager goes on.

    Arguments:
        record: the record of the job, which the runner updates.
        registry: stores the record and the other files of the job.
        log_level: the log level of the job, if the job sets none.
    """

    def __init__(self, record: JobRecord, registry: JobRegistry, log_level: str) -> None:
        self.record = record
        self.ended = trio.Event()
        #: The newest figures of the job, as in a `JobFigures`; empty before the first ones.
        self.figures: dict[str, Any] = {}
        #: The time of the newest figures, in seconds since the epoch.
        self._figures_time = 0.0
        self._newest: dict[str, Any] | None = None
        self.journal = registry.journal(record.id)
        self._registry = registry
        self._log_level = log_level
        self._supervision: Supervision | None = None
        #: Where the workers of a JobManager that has died wait for the next one.
        self._rendezvous: Rendezvous | None = None
        self._process: JobManagerProcess | None = None
        self._followers: list[trio.MemorySendChannel[dict[str, Any]]] = []
        #: The event that ends the pause before another JobManager is started.
        self._hurry = trio.Event()
        self._outcome: str | None = None
        #: The kind of the newest snapshot.
        self._kind = ""
        self._change: JobChange | None = None
        #: The event of the end of a job that is to be changed, and may start again.
        self._withheld: dict[str, Any] | None = None
        #: Whether the record has changed since it was saved last.
        self._changed = False
        self._texts = WarningTexts()
        #: The queries of keyed state that wait for their answers.
        self._queries = OpenQueries()

    # ---- the job

    async def run(self, stream: trio.SocketStream | None = None) -> None:
        """Run the job until it has ended.

        Arguments:
            stream: a connection to the JobManager of the job; None starts one.
        """
        record = self.record
        code: int | None = None
        how = "was not started"
        try:
            token = self._read_request()
            orders: list[Order] = []
            if stream is not None and record.wanted == "stop":
                self._note_order(Order.STOP)
                orders = [Order.STOP]
            while True:
                if stream is not None:
                    self._process = JobManagerProcess(record, token, stream=stream)
                    stream = None
                else:
                    await self._start(token)
                if record.wanted == "kill":
                    self.kill()
                code, how = await self._follow(orders)
                following = await self._following(how)
                if following is None:
                    break
                orders = following
        except (OSError, PenstockError) as error:
            how = f"cannot be started: {error}"
            if self._outcome is None:
                self.handle({"event": "failed", "message": str(error), "family": "JobError"})
        finally:
            self._close()
        if self._outcome is None:
            record.error = f"its JobManager process {how}"
            self._log(logging.ERROR, record.error)
        killed = code is None or code < 0 or record.wanted == "kill"
        self.finish(self._outcome or ("killed" if killed else "failed"))
        if self._change is not None:
            self._end_change(f"job {record.id} is {record.state}: {_reason(record)}")
        self._publish({"event": "ended", "state": record.state, "how": how})
        for follower in list(self._followers):
            follower.close()

    def finish(self, state: str) -> None:
        """Record that the job has ended."""
        record = self.record
        record.state, record.waiting = state, ""
        record.ended = round(time.time(), 3)
        record.worker_pids = []
        self._registry.save(record)

    def _read_request(self) -> bytes:
        """Read the request of the job, and return its secret.

        Raise `PenstockError` or `OSError` if it cannot be used.
        """
        record = self.record
        request = read_private(self._registry.request(record.id))
        options = decode_job(request).options
        token = options["rejoin_token"]
        address = ""
        if record.checkpoint_dir:
            address = f"unix:{self._rejoin_path()}"
        self._supervision = Supervision(request, time.monotonic(), address, token)
        if record.started:
            self._supervision.continue_from(record.lineage, record.parallelism)
        return bytes(token)

    def _rejoin_path(self) -> str:
        if self.record.address.startswith("@"):
            return f"{self.record.address}-rejoin"
        return str(self._registry.rejoin(self.record.id))

    async def _start(self, token: bytes) -> None:
        """Start a JobManager process for the job."""
        record, supervision = self.record, self._supervision
        assert supervision is not None
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if record.python not in ("", here):
            raise Refused(
                f"the job was submitted with Python {record.python}, and the job manager runs "
                f"Python {here}: submit it again, with --resume"
            )
        record.started = record.started or round(time.time(), 3)
        if record.checkpoint_dir and self._rendezvous is None:
            self._rendezvous = Rendezvous(self._rejoin_path())
        replace_private(self._registry.request(record.id), supervision.request)
        record.state, record.ended, record.waiting = "running", None, ""
        self._outcome = None
        # The record comes first: the next service looks for the JobManager of a running job.
        self._registry.save(record)
        self._process = await JobManagerProcess.start(
            record, self._registry, token, self._rendezvous, self._log_level
        )
        self._changed = True

    async def _follow(self, orders: list[Order]) -> tuple[int | None, str]:
        """Handle the events of the JobManager until it has ended.

        Returns:
            The exit code of the process if it is known, and a text that says how it ended.
        """
        process = self._process
        assert process is not None
        broken = ""
        try:
            async with contextlib.aclosing(process.events(orders)) as events:
                async for event in events:
                    if event["event"] == "attached":
                        self._attached(process)
                        self.catch_up()
                    elif event.get("seq") is None or event["seq"] > self.record.sequence:
                        with malformed("event"):
                            self.handle(event)
        except ProtocolError as error:
            broken = f", and its connection was closed: {error}"
            self._supervision = None
            process.kill()
        process.close()
        self._queries.end()
        code, how = await process.wait()
        self.catch_up()
        return code, how + broken

    def _attached(self, process: JobManagerProcess) -> None:
        """Take the socket of the supervisor over from a JobManager of an earlier service."""
        self._changed = True
        listening = None if self._rendezvous is not None else process.take_rendezvous()
        if listening is not None:
            self._rendezvous = Rendezvous(self._rejoin_path(), listening)

    def catch_up(self) -> None:
        """Handle the events of the journal that this service has not received."""
        for event in self.journal.read(self.record.sequence):
            with malformed("event"):
                self.handle(event)

    async def _following(self, how: str) -> list[Order] | None:
        """Decide what follows the end of a JobManager, and wait until its time.

        Returns:
            The orders for the next JobManager; None if no other one is to start.
        """
        record, supervision = self.record, self._supervision
        if supervision is None:
            return None
        continues, withheld, self._withheld = self._continues_changed(), self._withheld, None
        if withheld is not None and not continues:
            self._log_and_publish(withheld)
        if continues:
            supervision.continue_from(record.lineage, record.parallelism, orphans=False)
            return []
        if not record.checkpoint_dir:
            return None
        following = supervision.died(f"(pid {record.pid}) {how}", time.monotonic())
        if following.note is not None:
            self._note(following.note)
        if not isinstance(following, NextJobManager):
            return None
        with trio.move_on_after(following.delay_seconds):
            await self._hurry.wait()
        if supervision.over:
            return None
        return supervision.started(time.monotonic())

    def _close(self) -> None:
        """Close the sockets of this service.

        If the job has not ended, its JobManager has the same sockets, and they stay open there.
        """
        if self._process is not None:
            self._process.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    # ---- a change of the parallelism or the program

    async def change(self, new: RunnableJob, good_after: str = "running") -> None:
        """Stop the job with a savepoint, and start it from there in another form.

        Raise `Refused` if the job has not started again. A job that fails in the new form before it
        is good is started in the old one.

        Arguments:
            new: the program and the parallelism from then on.
            good_after: the event after which the job is good: "running" or "snapshot".
        """
        record, supervision = self.record, self._supervision
        if self._change is not None:
            raise Conflict(f"job {record.id} is being changed or restarted already")
        if record.wanted != "run" or supervision is None:
            raise Conflict(f"job {record.id} is being stopped")
        old = RunnableJob.of(record, None if new.request is None else supervision.request)
        self._change = change = JobChange(new, old, good_after)
        await self.order(Order.STOP)
        await change.done.wait()
        if change.error is not None:
            raise Refused(change.error)

    def _continues_changed(self) -> bool:
        """Return whether a job that has ended starts again, since it is to be changed."""
        change, record = self._change, self.record
        if change is None or record.wanted != "run":
            return False
        if not change.starting:
            if self._outcome != "stopped":
                return False
            change.starting = True
            self._run_as(change.new)
            stopped = f"the job was stopped with snapshot {record.last_snapshot}"
            self._note(f"{stopped}, and starts from it with {change.new}")
            return True
        if self._outcome != "failed" or change.error is not None or change.new == change.old:
            return False
        failed = self._withheld or {}
        why = (failed.get("user_traceback") or "") + (record.error or "")
        what = "with the new program" if change.new.request is not None else "to start"
        change.error = (
            f"{why}\njob {record.id} failed {what} (parallelism {change.new.parallelism}), and "
            f"runs as before (parallelism {change.old.parallelism})"
        )
        self._run_as(change.old)
        self._note(change.error)
        return True

    def _run_as(self, job: RunnableJob) -> None:
        """Let the next JobManager run the job in this form."""
        supervision = self._supervision
        assert supervision is not None
        job.apply_to(self.record)
        if job.request is not None:
            supervision.replace_program(job.request)

    def _check_change(self, event: str) -> None:
        """End a change if the job is good after an event, or runs as before."""
        change = self._change
        if change is not None and change.starting:
            good_after = "running" if change.error is not None else change.good_after
            if event == good_after:
                self._end_change()

    def _end_change(self, error: str | None = None) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.error = change.error or error
            change.done.set()

    # ---- orders

    def _note_order(self, order: Order) -> None:
        if self._supervision is not None:
            self._supervision.ordered(order)
        self._hurry.set()

    async def order(self, order: Order) -> None:
        """Send an order to the JobManager, or to the next one if this one has ended."""
        self._note_order(order)
        if self._process is not None:
            await self._process.order(order)

    async def stop(self) -> None:
        """Stop the job with a final snapshot. It is not started again, also by another service."""
        self.record.wanted = "stop"
        self._registry.save(self.record)
        await self.order(Order.STOP)

    def kill(self) -> None:
        """Kill the JobManager process, which ends the job. Its workers then end by themselves."""
        self.record.wanted = "kill"
        self._registry.save(self.record)
        if self._supervision is not None:
            self._supervision.kill()
        self._hurry.set()
        if self._process is not None:
            self._process.kill()

    async def query(self, query: LiveQuery) -> dict[str, Any]:
        """Return the answer to a query of the keyed state of the running tasks."""
        process = self._process
        return await self._queries.ask(query, None if process is None else process.query)

    @property
    def activity(self) -> JobActivity:
        """The newest figures of the job."""
        return JobActivity(self._figures_time, self.figures.get("operators", []), self._newest)

    @property
    def stopped_at(self) -> int | None:
        """The number of the final snapshot with which the job was stopped; None if there is none.

        A job whose input has ended is not stopped.
        """
        stopped = self.record.state == "stopped" and self._kind == "final"
        return self.record.last_snapshot if stopped else None

    @property
    def outcome(self) -> str | None:
        """How the job has ended, as its JobManager has reported it; None if it has not."""
        return self._outcome

    def snapshot_path(self, number: int) -> Path:
        """Return the path of a snapshot of the job."""
        return JobPaths(Path(self.record.checkpoint_dir)).snapshot(number)

    # ---- events

    def _note(self, text: str) -> None:
        """Record a note of the service about the job, and send it to the clients."""
        self.handle(self.journal.append({"event": "note", "text": text}))

    def handle(self, event: dict[str, Any]) -> None:
        """Update the record of the job, log the event, and send it to the clients."""
        if event["event"] == ANSWER:
            self._queries.answered(event)
            return
        record = self.record
        record.sequence = max(record.sequence, event.get("seq", 0))
        if self._supervision is not None:
            self._supervision.handle(event)
        self._record(event)
        if self._change is not None and event["event"] in ("finished", "failed"):
            self._withheld = event
        else:
            self._log_and_publish(event)

    def _log_and_publish(self, event: dict[str, Any]) -> None:
        # Processes of the job do not log these: restarts, losses and the failure.
        for text in self._texts.texts(event):
            self._log(LEVELS[event["event"]], text)
        if event["event"] == "failed":
            text = (event.get("user_traceback") or "") + event["message"]
            self._log(logging.ERROR, f"the job has failed:\n{text}")
        self._publish(event)

    def _record(self, event: dict[str, Any]) -> None:
        record = self.record
        self._changed = True
        match event["event"]:
            case "started":
                record.pid, self._outcome = event["pid"], None
            case "workers":
                record.worker_pids = list(event["pids"])
            case "running":
                self._check_change("running")
            case "restarting":
                record.restarts += 1
                record.error = sentence_of(event)
            case "resumed":
                record.last_snapshot = event["number"]
                record.lineage = event["continues"] or record.lineage
            case "snapshot":
                record.last_snapshot, self._kind = event["number"], event["kind"]
                self._newest = {key: event[key] for key in _SHOWN} | {
                    "time": event.get("time", time.time())
                }
                self._check_change("snapshot")
            case "status":
                self.figures, self._figures_time = event, time.time()
            case "finished":
                self._outcome = "stopped" if event["stopped"] else "finished"
                record.lineage = event["lineage"] or record.lineage
                record.error = None
            case "failed":
                self._outcome, record.error = "failed", event["message"]

    def save_changes(self) -> None:
        """Save the record if it has changed."""
        if self._changed:
            self._changed = False
            self._registry.save(self.record)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[trio.MemoryReceiveChannel[dict[str, Any]]]:
        """Provide a channel that receives each event of the job from now on.

        It is closed when the job has ended, or when its reader is too slow.
        """
        send, receive = trio.open_memory_channel[dict[str, Any]](MAX_BEHIND)
        if self.ended.is_set():
            send.close()
        self._followers.append(send)
        try:
            async with receive:
                yield receive
        finally:
            send.close()
            with contextlib.suppress(ValueError):
                self._followers.remove(send)

    def _publish(self, event: dict[str, Any]) -> None:
        """Send an event to all clients, and disconnect those that read too slowly."""
        for follower in list(self._followers):
            try:
                follower.send_nowait(event)
            except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                follower.close()
                with contextlib.suppress(ValueError):
                    self._followers.remove(follower)

    def announce(self, event: dict[str, Any]) -> None:
        """Write an event of the service about the job to the journal, and send it to clients.

        It may be called only while no JobManager of the job runs.
        """
        self.handle(self.journal.append(event))

    def _log(self, level: int, text: str) -> None:
        line = log_line(level, "penstock.jobmanager", "JobManager", text)
        with contextlib.suppress(OSError), self._registry.open_log(self.record.id) as log:
            log.write(f"{line.rstrip()}\n".encode(errors="backslashreplace"))


def _reason(record: JobRecord) -> str:
    return record.error or "its input has ended"
