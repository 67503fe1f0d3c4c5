"""Make a task snapshot durable: keyed state, staged output of sinks, and logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock.dataflow.errors import PenstockError, Recoverability, recoverability_of
from penstock.dataflow.sink import Committable
from penstock.runtime.network.channel_log import InFlightLog
from penstock.runtime.task.snapshots.background_work import Offload, Pause, drive
from penstock.runtime.task.snapshots.task_snapshot import TaskSnapshot
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.storage.in_flight_log import LogPart, write_log
from penstock.snapshot.storage.job_paths import JobPaths


class TaskSnapshotWriter:
    """Writes the task snapshots of one subtask.

    If an error concerns one snapshot only, this snapshot fails. If the error would also occur for
    later snapshots, it is raised and the task fails.

    Arguments:
        subtask: the index of the subtask.
        lineage: the id of the lineage to which the run's snapshots belong.
        attempt: the number of the execution attempt.
        paths: the paths of the files of snapshots.
        clock: a function that returns the time in seconds.
        inline_threshold: the maximum size of a log that is stored in the manifest, in bytes.
    """

    def __init__(
        self,
        subtask: int,
        lineage: str,
        attempt: int,
        paths: JobPaths,
        clock: Callable[[], float],
        inline_threshold: int,
    ) -> None:
        self._subtask, self._lineage, self._attempt = subtask, lineage, attempt
        self._paths = paths
        self._clock = clock
        self._inline_threshold = inline_threshold

    def folder(self, number: int, uid: str) -> Path:
        """Return the folder for the files of an operator's keyed state in a snapshot."""
        return self._paths.task(number, uid, self._subtask, self._attempt)

    async def write_state(
        self, snapshot: TaskSnapshot, offload: Offload, pause: Pause
    ) -> list[Committable]:
        """Write the captured state and the staged output, and return the committables.

        Staged output is made durable even if the state cannot be written, because the next
        snapshot must contain it.

        Raises:
            JobError: if staged output cannot be made durable. Since the output is lost, the task
                must fail, so that the output is produced again.
        """
        began = self._clock()
        for uid, small in snapshot.small.items():
            snapshot.add_handle(OperatorHandle(uid, self._subtask, None, small))
        try:
            await self._write_operator_state(snapshot, offload, pause)
            await self._write_keyed_state(snapshot, offload, pause)
        except (PenstockError, OSError) as error:
            over = all(capture.over for capture in snapshot.captures.values())
            if not over or recoverability_of(error) is Recoverability.NON_RECOVERABLE:
                raise
            snapshot.fail(error)
        committables = [
            Committable(self._lineage, uid, self._subtask, snapshot.number, self._attempt, payload)
            for uid, finish in snapshot.staged.items()
            for payload in await offload(finish)
        ]
        snapshot.add_write_seconds(self._clock() - began)
        return committables

    async def _write_keyed_state(
        self, snapshot: TaskSnapshot, offload: Offload, pause: Pause
    ) -> None:
        for uid, capture in snapshot.captures.items():
            steps = capture.write(self.folder(snapshot.number, uid))
            written = await drive(steps, offload, pause)
            if written is not None:
                keyed, size = written
                before = snapshot.handle(uid, self._subtask)
                snapshot.add_handle(replace(before, keyed=keyed), size)

    async def _write_operator_state(
        self, snapshot: TaskSnapshot, offload: Offload, pause: Pause
    ) -> None:
        for uid, captured in snapshot.operator_states.items():
            path = self._paths.operator_state(snapshot.number, uid, self._subtask, self._attempt)
            steps = captured.write(path, self._inline_threshold)
            handle, size = await drive(steps, offload, pause)
            before = snapshot.handle(uid, self._subtask)
            snapshot.add_handle(replace(before, operator_state=handle), size)

    async def write_logs(self, snapshot: TaskSnapshot, offload: Offload, pause: Pause) -> int:
        """Write the logs of a snapshot, and return their size in bytes."""
        began = self._clock()
        log_bytes = 0
        try:
            if snapshot.problem is None and not snapshot.aborted:
                for place, log in enumerate(snapshot.logs):
                    if log.keep and not log.empty:
                        log_bytes += await self._write_log(snapshot, place, log, offload, pause)
        except (PenstockError, OSError) as error:
            if recoverability_of(error) is Recoverability.NON_RECOVERABLE:
                raise
            snapshot.fail(error)
        finally:
            snapshot.release_logs()
        snapshot.add_write_seconds(self._clock() - began)
        return log_bytes

    async def _write_log(
        self, snapshot: TaskSnapshot, place: int, log: InFlightLog, offload: Offload, pause: Pause
    ) -> int:
        edge = log.edge
        parts: list[LogPart] = []
        for part in log.parts():
            if part is None:
                await pause()
            else:
                parts.append(part)
        # The path of the folder contains the uid of this task. The uid of the consumer would be
        # wrong, because the consumer of overtaken records is in another task.
        folder = self._paths.log(
            snapshot.number, snapshot.root, self._subtask, self._attempt, place
        )
        steps = write_log(
            parts,
            producer=edge.producer,
            input=edge.input,
            source=log.source,
            partitioning=edge.partitioning,
            records=log.records,
            folder=folder,
            inline_threshold=self._inline_threshold,
        )
        handle, size = await drive(steps, offload, pause)
        snapshot.add_log_handle(edge.consumer, log.target, handle, size)
        written: int = handle.size
        return written
