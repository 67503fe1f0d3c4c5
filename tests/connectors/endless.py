"""Runs jobs whose sources never end: feeds them, kills them, and stops them when all is there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import StoreError, StreamExecutionEnvironment
from tests.processes.harness import Killer, run

__all__ = ["run_until"]


class _Endless:
    """A killer whose events also feed the job, and that stops the job when it is done."""

    def __init__(
        self, killer: Killer, feed: Callable[[int], None], done: Callable[[], bool]
    ) -> None:
        self._killer, self._feed, self._done = killer, feed, done
        self._lock = threading.Lock()
        self._pid = self._stopped = 0

    def __call__(self, event: dict[str, Any]) -> None:
        self._killer(event)
        if event["event"] == "started":
            self._pid = event["pid"]
        if event["event"] in ("running", "snapshot", "committed"):
            with self._lock:
                # The last kill may hit two processes; no test is fed more than its kills ask for.
                self._feed(min(len(self._killer.killed), self._killer.kills))
        # A second signal would end the job without a last snapshot.
        ready = event["event"] in ("snapshot", "committed") and self._stopped != self._pid
        if ready and self._enough():
            self._stopped = self._pid
            os.kill(self._pid, signal.SIGTERM)

    def _enough(self) -> bool:
        return len(self._killer.killed) >= self._killer.kills and self._done()

    def disarm(self) -> None:
        self._killer.disarm()


def run_until(
    done: Callable[[], bool],
    job: Callable[[], StreamExecutionEnvironment],
    killer: Killer,
    feed: Callable[[int], None] = lambda kills: None,
    *,
    resume: bool = False,
) -> None:
    """Run a job, resume it when its JobManager was killed, and stop it with a last snapshot.

    Arguments:
        done: says that the job has done everything. It is stopped when all kills have happened.
        job: builds the job.
        killer: kills.
        feed: called when the job runs, and with each snapshot, with the number of kills so far;
            this is never more than the killer was told to make.
        resume: whether to begin with the newest snapshot.
    """
    endless: Any = _Endless(killer, feed, done)
    with pytest.raises(SystemExit) as stopped:
        while True:
            try:
                run(job(), resume="newest" if resume else None, progress=endless)
            except StoreError as error:
                if "killed by signal 9" not in str(error):
                    raise
            finally:
                killer.disarm()
            resume = True
    assert stopped.value.code == 128 + signal.SIGTERM
    assert len(killer.killed) >= killer.kills
