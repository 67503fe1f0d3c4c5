"""Run one task in the worker's event loop."""

from __future__ import annotations

import trio

from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK
from penstock.runtime.system.system import System
from penstock.runtime.task.batch_sizing import SLICE_SECONDS
from penstock.runtime.task.partial_batches import PartialBatches
from penstock.runtime.task.snapshots.barrier_priority import BarrierPriority
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.task_signals import TaskSignals
from penstock.runtime.user_code.current_operator import operator_at_work


class TaskRunner:
    """Runs a task as three coroutines: its loop, checkpoint writer and source reader.

    Arguments:
        task: the task.
        signals: the signals that wake the parts of the task.
        system: provides the threads for blocking calls.
    """

    def __init__(self, task: Task, signals: TaskSignals, system: System) -> None:
        self.task = task
        self._signals = signals
        self._system = system

    @property
    def last_snapshot(self) -> int:
        """The number of the newest snapshot in which the task has captured its state."""
        return self.task.snapshots.last_snapshot

    @property
    def is_source(self) -> bool:
        """Whether the task reads a source."""
        return self.task.source_input is not None

    @property
    def runnable(self) -> bool:
        """Whether the task has work to do now."""
        return not self.task.waiting or self._signals.loop.pending

    @property
    def reads_in_threads(self) -> bool:
        """Whether the task's source is read in threads, so that `read_source` must run."""
        return self.task.source_input is not None and self.task.source_input.pumping

    def flush(self) -> None:
        """Send the records in the task's output buffers."""
        self.task.flush()

    def send_partial(self) -> int:
        """Send the partial batches that the receivers take, and return the number of batches."""
        return self.task.outputs.send_partial()

    def wake(self) -> None:
        """Wake the task's loop."""
        self._signals.loop.set()

    def wake_source(self) -> None:
        """Wake the task's loop and the reader of its source."""
        self._signals.wake_source()

    def set_watermark_limit(self, limit: int) -> None:
        """Set the watermark up to which the task's source is read; see `WatermarkAlignment`."""
        source = self.task.source_input
        if source is not None and source.watermarks is not None:
            source.watermarks.set_limit(limit)
            self.wake_source()

    def aligned_watermark(self) -> int | None:
        """Return the watermark that other sources must wait for; None before the first one."""
        source = self.task.source_input
        assert source is not None and source.watermarks is not None
        watermarks = source.watermarks
        if self.task.ended or watermarks.idle:
            return MAX_WATERMARK
        return watermarks.watermark if watermarks.watermark > MIN_WATERMARK else None

    @property
    def alignment_seconds(self) -> float | None:
        """The period in which the watermark is reported, in seconds; None for never."""
        source = self.task.source_input
        if source is None or source.watermarks is None or source.watermarks.alignment is None:
            return None
        return source.watermarks.alignment.update_interval_ms / 1000

    def prepare(self, number: int, seconds: float) -> None:
        """Announce a snapshot to the checkpoint writer of the task.

        Arguments:
            number: the number of the snapshot.
            seconds: the time until the snapshot is due, in seconds.
        """
        self.task.checkpoint_writer.prepare(number, seconds)
        self._signals.writer.set()

    def expect_barrier(self, number: int) -> None:
        """Note that snapshot `number` has begun, whose barrier is on its way to the task."""
        if self.task.chain.requests is not None:
            self.task.chain.requests.expect_barrier(number)
            self.wake()

    def snapshot_over(self, number: int) -> None:
        """Note that snapshot `number` is complete or aborted."""
        if self.task.chain.requests is not None:
            self.task.chain.requests.snapshot_over(number)

    async def process(self, priority: BarrierPriority, partial_batches: PartialBatches) -> None:
        """Process records until cancelled: step until there is nothing to do, then wait.

        Arguments:
            priority: decides which tasks of the worker let other tasks run first.
            partial_batches: decides when the tasks of the worker send partial batches.
        """
        task, timer = self.task, self._system.timer
        yielded = timer()
        while True:
            if task.step():
                now = timer()
                if now - yielded >= SLICE_SECONDS or task.checkpoint_writer.pending:
                    self._wake_writer()
                    partial_batches.send_due()
                    await trio.lowlevel.checkpoint()
                    await priority.yield_to_others(self)
                    yielded = timer()
                continue
            task.flush_sinks()
            partial_batches.task_waits(self)
            if task.has_work():
                continue
            task.set_waiting(True)
            until = task.wake_at()
            self._wake_writer()
            priority.reconsider()
            retry_at = partial_batches.retry_at
            if retry_at is not None and (until is None or retry_at < until):
                until = retry_at
            await self._signals.loop.wait(until)
            task.set_waiting(False)
            yielded = timer()

    async def write_snapshots(self) -> None:
        """Write the snapshots of the task until cancelled."""
        writer = self.task.checkpoint_writer
        while True:
            while writer.has_work():
                await writer.work(self._system.offload, trio.lowlevel.checkpoint)
                self.wake()  # The writer has freed memory, for which the task may be waiting.
            await self._signals.writer.wait()

    async def read_source(self) -> None:
        """Read the task's source in threads, until cancelled."""
        source = self.task.source_input
        assert source is not None
        # The threads that read the source inherit this context variable.
        operator_at_work.set(self.task.chain.root.operator.context)
        await source.pump(self._system.read or self._system.offload, self._signals.reader.wait_for)

    def _wake_writer(self) -> None:
        if self.task.checkpoint_writer.has_work():
            self._signals.writer.set()
