"""What the benchmarks share: running a job and following it, figures, and the machine's own.

Modules of benchmarks are imported by workers too, since the functions of the jobs are in them;
so nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.program import JobExecutionResult, RunOptions, run_options

__all__ = [
    "Figures",
    "Follower",
    "Say",
    "WrongResultError",
    "machine",
    "median_figures",
    "percentile",
    "percentiles_ms",
    "run",
    "scratch",
]

Figures = dict[str, Any]
Say = Callable[[str], None]


class WrongResultError(Exception):
    """The job's output is not what it must be, so its figures mean nothing."""


class Follower:
    """Follows the events of one job, with the time at which each was heard.

    Arguments:
        say: told what happens, for people.
        on_event: called with each event, in the thread that runs the job.

    `events` are pairs of `time.monotonic()` in seconds and the event. `workers` are the process
    ids of the newest attempt, `peaks` the highest resident memory of each process in bytes.
    """

    def __init__(self, say: Say, on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.workers: list[int] = []
        self.peaks: dict[int, int] = {}
        self._pids: set[int] = set()
        self._say = say
        self._on_event = on_event

    def __call__(self, event: dict[str, Any]) -> None:
        """Take an event."""
        self.events.append((time.monotonic(), event))
        kind = event["event"]
        if kind == "started":
            self._pids.add(event["pid"])
        elif kind == "workers":
            self.workers = event["pids"]
            self._pids.update(event["pids"])
        elif kind == "snapshot":
            self._say(f"snapshot {event['number']}: {event['duration_ms']:.0f} ms")
        for pid in self._pids:
            self.peaks[pid] = max(self.peaks.get(pid, 0), _peak_bytes(pid))
        if self._on_event is not None:
            self._on_event(event)

    def first(self, kind: str) -> float:
        """When the first event of a kind was heard. Raises KeyError if there was none."""
        for at, event in self.events:
            if event["event"] == kind:
                return at
        raise KeyError(kind)

    def snapshots(self, kind: str = "checkpoint") -> list[dict[str, Any]]:
        """Return the complete snapshots of a kind, in order."""
        return [e for _, e in self.events if e["event"] == "snapshot" and e["kind"] == kind]

    def peak_mb(self) -> float | None:
        """Return the sum over all processes, this one too, of their highest resident memory.

        None where the operating system does not tell.
        """
        if not all(self.peaks.values()):
            return None
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return round((sum(self.peaks.values()) + own) / 1e6, 1)


def _peak_bytes(pid: int) -> int:
    """Return the highest resident memory of a process, or 0 if it is not known."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def run(
    environment: StreamExecutionEnvironment, follower: Follower, *, supervise: bool = False
) -> JobExecutionResult:
    """Execute the program and follow it, and start its JobManager again if `supervise`."""
    with run_options(RunOptions(progress=follower, supervise=supervise)):
        return environment.execute()


@contextlib.contextmanager
def scratch(folder: str | None) -> Iterator[Path]:
    """Make a temporary folder, under `folder` if given, and remove it in the end.

    Snapshots are synced to the disk that it lies on, so that disk is part of what is measured.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=folder) as name:
        yield Path(name)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of the values that `percent` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def percentiles_ms(nanoseconds: Sequence[float], prefix: str = "") -> Figures:
    """Return the figures p50_ms, p99_ms, p999_ms and max_ms of durations in nanoseconds."""
    if not nanoseconds:
        raise WrongResultError(f"nothing was measured for {prefix or 'the latency'}")
    return {
        f"{prefix}p50_ms": round(percentile(nanoseconds, 50) / 1e6, 3),
        f"{prefix}p99_ms": round(percentile(nanoseconds, 99) / 1e6, 3),
        f"{prefix}p999_ms": round(percentile(nanoseconds, 99.9) / 1e6, 3),
        f"{prefix}max_ms": round(max(nanoseconds) / 1e6, 3),
    }


def median_figures(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each number over several rounds; of what is no number, the last."""
    result: Figures = {}
    for name, last in rounds[-1].items():
        values = [figures[name] for figures in rounds]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        middle = statistics.median(values) if numbers else last
        whole = numbers and all(isinstance(value, int) for value in values)
        result[name] = round(middle) if whole else middle
    return result


def machine() -> Figures:
    """Return the machine, as far as it explains the figures."""
    stolen, at_all = (now - then for now, then in zip(_stolen(), _STOLEN, strict=True))
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        # Others' work on the same cores lowers every figure.
        "load_average": round(os.getloadavg()[0], 2),
        # … and so does that of other virtual machines on the same host.
        "stolen_percent": round(100 * stolen / at_all, 2) if at_all else None,
    }


def _stolen() -> tuple[int, int]:
    """Time that the host gave to others while we wanted it, and all time, of all cores.

    In ticks since the system started; (0, 0) where that is not told.
    """
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
        ticks = [int(word) for word in line.split()[1:9]]
        return ticks[7], sum(ticks)
    except (OSError, ValueError, IndexError):
        return 0, 0


#: As this process began.
_STOLEN = _stolen()
