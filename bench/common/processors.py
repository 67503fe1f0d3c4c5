"""The processor time of the processes of a job."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from bench.common.harness import Figures
from penstock.runtime.system.jobmanager_start import jobmanager_starter

__all__ = ["ProcessorTime", "seconds_of_children"]


class ProcessorTime:
    """Reads the processor time that was used until all tasks ran.

    Starting interpreters takes more of it than a short run, and snapshots don't change it.
    """

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self.at_start = 0.0

    def __call__(self, event: Figures) -> None:
        """Take an event of the job."""
        if event["event"] == "started":
            self._pids.add(event["pid"])
        elif event["event"] == "workers":
            self._pids.update(event["pids"])
        elif event["event"] == "running":
            self.at_start = sum(map(_of_process, self._pids))


def _of_process(pid: int) -> float:
    """Processor seconds of a running process; 0 where the operating system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of_children() -> float:
    """Processor seconds of all processes that have ended under this one.

    The next job is a new process, since forks would be under another one.
    """
    jobmanager_starter.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
