"""Schedule trio's tasks by a seed, and hold back those of a process that is paused.

No other module uses private parts of trio. `pyproject.toml` bounds the version of trio for them.
`tests/simulation/test_simulation.py` and `tests/testing/simulation/test_machine.py` show that they
work.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import trio
from trio._core import _run

#: The process to which the running trio task belongs; None outside of all processes.
OWNER: ContextVar[Any] = ContextVar("simulated process", default=None)


def seed_scheduler(seed: int) -> None:
    """Make trio schedule its tasks in the same order for the same seed."""
    _run._r.seed(seed)
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]


class PausedTasks:
    """Holds back the tasks of paused processes. Their deadlines pass meanwhile, as in reality."""

    def __init__(self) -> None:
        self._parked: dict[Any, list[trio.lowlevel.Task]] = {}

    def pause(self, owner: object) -> None:
        """Run no task of an owner from now on. A task may still run up to its next checkpoint."""
        if owner in self._parked:
            return
        runnable = _runner().runq
        tasks = self._parked[owner] = [task for task in runnable if _owner(task) is owner]
        for task in tasks:
            runnable.remove(task)
        # Only now, because a scheduled task costs more with it.
        _run.Runner.reschedule = self._reschedule()  # type: ignore[method-assign]

    def resume(self, owner: object) -> None:
        """Run the tasks of an owner again; do nothing if it is not paused."""
        if owner in self._parked:
            _runner().runq.extend(self._parked.pop(owner))
            if not self._parked:
                self.close()

    def close(self) -> None:
        """Hold back no tasks any more."""
        self._parked.clear()
        _run.Runner.reschedule = _RESCHEDULE  # type: ignore[method-assign]

    def _reschedule(self) -> Any:
        parked = self._parked

        def reschedule(runner: Any, task: trio.lowlevel.Task, *result: Any) -> None:
            _RESCHEDULE(runner, task, *result)
            owner = _owner(task)
            if owner in parked:
                parked[owner].append(runner.runq.pop())

        return reschedule


_RESCHEDULE = _run.Runner.reschedule


def _runner() -> Any:
    return _run.GLOBAL_RUN_CONTEXT.runner


def _owner(task: trio.lowlevel.Task) -> Any:
    return task.context.get(OWNER)
