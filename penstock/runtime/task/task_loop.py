"""Run a task: call its steps until there is nothing to do, then wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.runtime.task.batch_sizing import SLICE_SECONDS
from penstock.runtime.task.task import Task

__all__ = ["run_task"]


async def run_task(
    task: Task,
    timer: Callable[[], float],
    rest: Callable[[], None],
    wait: Callable[[float | None], Awaitable[None]],
    pause: Callable[[], Awaitable[None]],
) -> None:
    """Run the steps of a task until the caller cancels this function at the end of the job.

    Arguments:
        task: the task.
        timer: a function that returns a precise time in seconds.
        rest: a function that is called when the task has nothing to do. It may send the output of
            the task.
        wait: a function that waits until the task is woken, or until a time on the task's clock.
        pause: a function that lets other tasks of the event loop run once.
    """
    yielded = timer()
    while True:
        if task.step():
            now = timer()
            if now - yielded >= SLICE_SECONDS or task.checkpoint_writer.pending:
                await pause()
                yielded = timer()
            continue
        rest()
        if task.has_work():
            continue
        task.set_waiting(True)
        await wait(task.wake_at())
        task.set_waiting(False)
        yielded = timer()
