"""Kills that are aimed: processes of a job that kill themselves or each other in a given phase.

An `Aims` is an attribute of one of the job's functions. Where it is unpickled, in the JobManager
and in each worker, it wraps what it watches there, before any record flows. A kill first leaves a
file that tells where it struck; the number of these files says whose turn it is, so an aim strikes
once, over all restarts and resumes. That the phase was really hit follows from where the wrapper
stands.

In a worker:        before the cut    some, and not all, regular inputs have delivered the barrier
                    barrier came round a back-edge delivered it before the cut, and is blocked
                    while logging     the cut is made, and the log has records and gets more
                    log written       the log is on disk, and nothing was acknowledged yet
                    replaying         the restored log has been processed in part
                    state written     the task's state is on disk; only for jobs without loops
                    others            the function says that it is there, with `reached`
In the JobManager:  acknowledged      a task's part with a log has come, others are missing
                    publishing        all parts have come, and the manifest is not written yet
                    published         the manifest is durable, and nothing is committed
                    committing        output is visible, and nothing says so yet
                    holding           all parts of a savepoint have come, and no checkpoint after it
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.dataflow.nested_jobs import current_role

__all__ = ["JOBMANAGER_PHASES", "WORKER_PHASES", "Aims", "strikes"]

WORKER_PHASES = (
    "before the cut",
    "barrier came round",
    "while logging",
    "log written",
    "replaying",
)
JOBMANAGER_PHASES = ("acknowledged", "publishing", "published", "committing")


def strikes(folder: Path) -> list[dict[str, Any]]:
    """What the kills in a job's folder have struck, in order."""
    paths = sorted((folder / "kills").glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in paths]


class Aims:
    """Kills to come, one after the other.

    Arguments:
        folder: of the test; what was struck is noted there.
        aims: (phase, target) each; the target is "worker" or "jobmanager".
        logs: the job has a loop, so a snapshot counts only with records in its logs.

    No kill but that in the phase "replaying" comes before a snapshot with records in its logs is
    complete, so that each restart has something to replay. Without loops, any snapshot will do.
    """

    def __init__(self, folder: Path, aims: list[tuple[str, str]], *, logs: bool = True) -> None:
        self._folder = folder / "kills"
        self._aims = aims
        self._logs = logs
        self._folder.mkdir(exist_ok=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ready = False
        self._workers: Any = None
        #: Index of the aim of this attempt. Each has its own, or a second kill could fall into
        #: the moment before the first is noticed.
        self._mine = self._next()
        if current_role() == "a worker" and self._mine is not None:
            self._watch_worker()
        elif current_role() == "a JobManager":
            self._watch_jobmanager()

    def _next(self) -> int | None:
        done = len(list(self._folder.glob("*.json")))
        return done if done < len(self._aims) else None

    def _strike(self, index: int, pid: int, details: dict[str, Any]) -> None:
        phase, target = self._aims[index]
        told = json.dumps({"phase": phase, "target": target, "pid": pid, **details})
        # Whole or not there: others look at it at any time.
        written = self._folder / f"{index}.{os.getpid()}.tmp"
        written.write_text(told)
        try:
            os.link(written, self._folder / f"{index}.json")
        except FileExistsError:
            return  # another process was there first
        finally:
            # Both names are of one file: written again, the file of the strike would be empty.
            written.unlink()
        os.kill(pid, signal.SIGKILL)

    # ---- in a worker

    def reached(self, phase: str, **details: Any) -> None:
        """Kill, if the aim is at a phase of the function, which is in it now."""
        if self._mine is not None:
            self._in_worker(phase, **details)

    def _in_worker(self, phase: str, **details: Any) -> None:
        assert self._mine is not None
        aimed, target = self._aims[self._mine]
        if aimed == phase and (self._ready or phase == "replaying"):
            pid = os.getpid() if target == "worker" else jobmanager_of_worker()
            self._strike(self._mine, pid, details)

    def _watch_worker(self) -> None:
        from penstock.runtime.network.elements import EncodedBatch
        from penstock.runtime.network.feedback_channel import FeedbackChannel
        from penstock.runtime.network.input_gate import InputGate
        from penstock.runtime.serialization.record_batch import RecordBatch
        from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
        from penstock.runtime.task.snapshots.task_snapshot_writer import TaskSnapshotWriter
        from penstock.snapshot.protocols.aligned import AlignedProtocol
        from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
        from penstock.snapshot.protocols.events import BlockChannel

        logged: set[int] = set()

        def complete(call: Callable, checkpoint_writer: Any, number: int) -> None:
            call(checkpoint_writer, number)
            self._ready = self._ready or number in logged or not self._logs

        def handle(call: Callable, protocol: Any, event: Any) -> Any:
            commands = call(protocol, event)
            for command in commands:
                if isinstance(command, BlockChannel):
                    back = command.channel in getattr(protocol, "back_edges", ())
                    phase = "barrier came round" if back else "before the cut"
                    self._in_worker(phase, number=event.number)
            return commands

        def put(call: Callable, channel: Any, element: Any) -> None:
            call(channel, element)
            log = channel._log
            if log is not None and log.records and isinstance(element, RecordBatch | EncodedBatch):
                self._in_worker("while logging", number=log.number, records=log.records)

        async def write_state(call: Callable, *given: Any) -> Any:
            written = await call(*given)
            if not self._logs:
                self._in_worker("state written")
            return written

        async def write_logs(call: Callable, writer: Any, snapshot: Any, *rest: Any) -> int:
            size: int = await call(writer, snapshot, *rest)
            if size:
                logged.add(snapshot.number)
                self._in_worker("log written", number=snapshot.number, bytes=size)
            return size

        def take(call: Callable, gate: Any) -> Any:
            replaying = gate._replay is not None
            taken = call(gate)
            if replaying and gate._replay is not None:
                element = taken[1]
                # Logs have watermarks, too.
                records = len(element) if isinstance(element, RecordBatch) else 0
                self._in_worker("replaying", records=records)
            return taken

        _wrap(CheckpointWriter, "complete", complete)
        _wrap(AlignedProtocol, "handle", handle)
        _wrap(AlignedCyclicProtocol, "handle", handle)
        _wrap(FeedbackChannel, "put", put)
        _wrap(TaskSnapshotWriter, "write_state", write_state)
        _wrap(TaskSnapshotWriter, "write_logs", write_logs)
        _wrap(InputGate, "take", take)

    # ---- in the JobManager

    def _in_jobmanager(self, phase: str, **details: Any) -> None:
        index = self._mine
        if index is None or not self._ready or self._aims[index][0] != phase:
            return
        self._mine = None
        pid = os.getpid()
        if self._aims[index][1] == "worker":
            pid = self._workers.pids[0]
        self._strike(index, pid, details)

    def _watch_jobmanager(self) -> None:
        from penstock.connectors.file_sink import FileCommitter
        from penstock.runtime.jobmanager.attempt.checkpoint_driver import CheckpointDriver
        from penstock.runtime.jobmanager.reporting.job_history import JobHistory
        from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
        from penstock.snapshot.coordination.coordinator import HoldSavepoint

        def start(call: Callable, driver: Any) -> None:
            [region] = driver._regions
            self._workers, self._mine = region.workers, self._next()
            call(driver)

        def completed(call: Callable, history: Any, snapshot: dict[str, Any]) -> None:
            call(history, snapshot)
            self._ready = self._ready or snapshot["log_records"] > 0 or not self._logs

        def acknowledged(call: Callable, driver: Any, region: Any, message: Any) -> None:
            call(driver, region, message)
            pending = driver._pending.get(message.number)
            missing = driver._coordinator.tasks - driver._coordinator.acknowledged
            logged = message.log_records or not self._logs
            if pending is not None and logged and missing:
                records = message.log_records
                self._in_jobmanager("acknowledged", number=message.number, records=records)

        async def publish(call: Callable, publisher: Any, snapshot: Any, **more: Any) -> None:
            self._in_jobmanager("publishing", number=snapshot.number)
            await call(publisher, snapshot, **more)
            self._in_jobmanager("published", number=snapshot.number)

        def commit(call: Callable, committer: Any, committables: list[Any]) -> None:
            call(committer, committables)
            if committables:
                self._in_jobmanager("committing", number=committables[-1].snapshot)

        def execute(call: Callable, driver: Any, command: Any) -> None:
            call(driver, command)
            if isinstance(command, HoldSavepoint):
                staged = driver._pending[command.number].committables
                self._in_jobmanager("holding", number=command.number, staged=len(staged))

        _wrap(CheckpointDriver, "start", start)
        _wrap(CheckpointDriver, "_execute", execute)
        _wrap(JobHistory, "add_snapshot", completed)
        _wrap(CheckpointDriver, "acknowledged", acknowledged)
        _wrap(SnapshotPublisher, "publish", publish)
        _wrap(FileCommitter, "publish", commit)


def jobmanager_of_worker() -> int:
    """Return the process id of the JobManager, in a worker, whose parent is the fork server."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _wrap(cls: type, name: str, around: Callable) -> None:
    """Let `around` be called in place of a method, with that as its first argument."""
    call = getattr(cls, name)
    setattr(cls, name, lambda *rest, **more: around(call, *rest, **more))
