"""Restore the tasks of a slot from the snapshot that the JobManager has chosen."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio

from penstock.runtime.system.threads import Offload
from penstock.runtime.task.snapshots.background_work import Pause, drive
from penstock.runtime.task.snapshots.log_replay import LogReplayer, RestoredLog
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.snapshot.metadata.handles import EventTimeState, OperatorHandle
from penstock.snapshot.state.operator_state import PackedState, read_operator_state, redistribute
from penstock.snapshot.storage.decoding import Decoding

__all__ = ["StateRestorer"]


class StateRestorer:
    """Restores the state of each task of a slot from a snapshot.

    Arguments:
        descriptor: describes the tasks of the slot.
        handles: the operator handles for each task, as in the `Deploy` message.
        offload: runs blocking calls in a thread.
        pause: lets other coroutines of the event loop run.
    """

    def __init__(
        self,
        descriptor: DeploymentDescriptor,
        handles: dict[str, list[Any]],
        offload: Offload,
        pause: Pause = trio.lowlevel.checkpoint,
    ) -> None:
        self._handles = handles
        self._rescaled = {
            wire[0] for task in handles.values() for _, wire, rescaled in task if rescaled
        }
        self._offload, self._pause = offload, pause
        self._names = {info.uid: info.name for info in descriptor.plan.operators}
        self._logs = LogReplayer(
            descriptor.code, descriptor.plan, descriptor.codec, descriptor.slot
        )

    async def restore(self, task: Task) -> None:
        """Restore the state, the in-flight logs and the splits of a task.

        Must be called before the task is opened.
        """
        root = task.chain.root.operator.context.uid
        handles: dict[str, list[tuple[Path, OperatorHandle]]] = {}
        logs: list[RestoredLog] = []
        for folder, wire, rescaled in self._handles.get(f"{task.id[0]}:{task.id[1]}", []):
            handle = OperatorHandle.from_wire(wire)
            handles.setdefault(handle.uid, []).append((Path(folder), handle))
            if handle.uid == root:
                logs += [RestoredLog(log, Path(folder), rescaled) for log in handle.logs]
        self._restore_end_of_input(task, handles)
        task.event_time.restore({uid: _event_times(found) for uid, found in handles.items()})
        if logs:
            batches = self._logs.replay(task.id[0], task.gate, logs)
            task.gate.replay(batches, sum(restored.log.size for restored in logs))
        for uid, backend in task.backends.items():
            keyed = [(folder, h.keyed) for folder, h in handles.get(uid, []) if h.keyed is not None]
            if keyed:
                what = f"the keyed state of operator {self._names[uid]!r}, subtask {task.id[1]},"
                with Decoding(what, keyed[0][0]):
                    await drive(backend.restore(keyed), self._offload, self._pause)
        await self._restore_operator_state(task, handles)
        if task.source_input is not None:
            for _, handle in handles.get(root, []):
                if handle.small is not None:
                    task.source_input.restore(handle.small)
            if (watermarks := task.source_input.watermarks) is not None:
                watermarks.restore(task.event_time.valve.watermark)

    async def _restore_operator_state(
        self, task: Task, handles: dict[str, list[tuple[Path, OperatorHandle]]]
    ) -> None:
        for operator in task.operators:
            context = operator.context
            if context.operator_state is None:
                continue
            before: dict[int, list[PackedState]] = {}
            for folder, handle in handles.get(context.uid, []):
                if handle.operator_state is not None:
                    read = partial(read_operator_state, handle.operator_state, folder)
                    before[handle.subtask] = await self._offload(read)
            context.operator_state.restore(
                redistribute(
                    before,
                    context.subtask,
                    context.parallelism,
                    rescaled=context.uid in self._rescaled,
                )
            )

    @staticmethod
    def _restore_end_of_input(
        task: Task, handles: dict[str, list[tuple[Path, OperatorHandle]]]
    ) -> None:
        # When the snapshot was taken, the first operator and the operators with a hook may have
        # been in different tasks. So the handles of all these operators are needed.
        uids = (task.chain.root.operator.context.uid, *task.end_of_input.hooked)
        ended = [handle for uid in uids for _, handle in handles.get(uid, []) if handle.ended]
        if ended:
            task.end_of_input.restore(
                max(handle.ended for handle in ended), any(handle.emitted for handle in ended)
            )


def _event_times(handles: list[tuple[Path, OperatorHandle]]) -> list[EventTimeState]:
    """Return the event time of each subtask of an operator, from all its handles.

    A subtask may have a second handle, with records that a barrier has overtaken.
    """
    found: dict[int, EventTimeState] = {}
    for _, handle in handles:
        if handle.event_time is not None:
            found[handle.subtask] = handle.event_time
        else:
            found.setdefault(handle.subtask, EventTimeState())
    return list(found.values())
