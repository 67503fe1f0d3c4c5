"""Report faults of event time: watermarks that stand still, and a wrong unit.

A watermark is the lowest of all inputs. So one input, split or subtask without records can hold
back a whole job, and windows then stay open in silence. The workers report for each task which
input or split has the lowest watermark. From these reports, this module finds the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.metrics import FIRST_EVENT_TIME
from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, watermark_text
from penstock.runtime.control.messages import Metrics
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks
from penstock.runtime.jobmanager.reporting.job_events import JobWarning

#: The smallest and the largest time between 2001 and 2096, in seconds since the epoch.
_YEARS = 1_000_000_000, 4_000_000_000
#: How many of each unit are a second, and how a program makes milliseconds of such a time.
_UNITS = {
    "seconds": (1, "int(seconds * 1000)"),
    "microseconds": (1_000_000, "microseconds // 1000"),
    "nanoseconds": (1_000_000_000, "nanoseconds // 1_000_000"),
}


@dataclass
class _Progress:
    """Holds the reported event time of one subtask of an operator.

    Arguments:
        watermark: its watermark in milliseconds since the epoch; None before the first one.
        since: the time since which it has this watermark, in seconds.
        records: the number of records that it has received.
        records_at: the time at which it has received the last one, in seconds.
    """

    watermark: int | None
    since: float
    records: int
    records_at: float


class EventTimeReports:
    """Finds watermarks that stand still, and event times of a wrong unit, in reports of workers.

    A subtask is reported if its windows or timers wait for a watermark, its watermark has not
    advanced for some time, and records have come meanwhile. Each operator is reported once until
    its watermark advances.

    Arguments:
        plan: the execution graph.
        stall_seconds: the time without a new watermark after which an operator is reported; 0 for
            no reports.
    """

    def __init__(self, plan: ExecutionGraph, stall_seconds: float) -> None:
        self._plan, self._stall_seconds = plan, stall_seconds
        self._infos = {info.uid: info for info in plan.operators}
        #: The chain of each operator, and the operator before it in the chain, by uid.
        self._chains: dict[str, int] = {}
        self._before: dict[str, str] = {}
        for chain in plan.chains:
            for node in chain.root.walk():
                self._chains[node.operator.uid] = chain.id
                self._before |= {child.operator.uid: node.operator.uid for child in node.children}
        self._progress: dict[tuple[str, int], _Progress] = {}
        #: The input or split that holds the watermark of each task, as `Metrics.tasks` has it.
        self._holders: dict[tuple[int, int], Any] = {}
        #: The operators whose watermark was reported, and the watermark then.
        self._reported: dict[str, int] = {}
        #: The operators whose event times were examined.
        self._examined: set[str] = set()

    def begin_attempt(self, begun: BegunTasks) -> None:
        """Forget what the last attempt of some tasks has reported.

        Arguments:
            begun: the tasks, which begin a new attempt.
        """
        self._plan = begun.plan
        progress, holders = self._progress.items(), self._holders.items()
        self._progress = {key: one for key, one in progress if not begun.has_operator(*key)}
        self._holders = {key: one for key, one in holders if not begun.has_task(*key)}

    def update(self, metrics: Metrics, now: float) -> list[JobWarning]:
        """Record the metrics of a worker, and return the warnings that are due.

        Arguments:
            metrics: the metrics.
            now: the current time, in seconds.
        """
        for chain, subtask, *_, holder in metrics.tasks:
            self._holders[chain, subtask] = holder
        warnings = self._unit_warnings(metrics)
        for uid, subtask, records, _, watermark, waits in metrics.operators:
            progress = self._progress.get((uid, subtask))
            if progress is None:
                progress = _Progress(watermark, now, records, now)
                self._progress[uid, subtask] = progress
            if watermark != progress.watermark:
                progress.watermark, progress.since = watermark, now
            if records != progress.records:
                progress.records, progress.records_at = records, now
            if waits and self._stands_still(uid, progress, now):
                self._reported[uid] = _time_of(watermark)
                warnings.append(JobWarning(self._stall_text(uid, subtask, watermark)))
        return warnings

    # ---- watermarks that stand still

    def _stands_still(self, uid: str, progress: _Progress, now: float) -> bool:
        """Return whether a watermark stands still and was not reported."""
        limit = self._stall_seconds
        if not limit or now - progress.since < limit or progress.watermark == MAX_WATERMARK:
            return False
        if progress.records_at - progress.since < limit / 2:
            return False  # No records have come, so no watermark is expected.
        # Another subtask may stand still at a higher watermark, which was reported.
        return _time_of(progress.watermark) > self._reported.get(uid, MIN_WATERMARK - 1)

    def _stall_text(self, uid: str, subtask: int, watermark: int | None) -> str:
        stands = "it has no watermark"
        if watermark is not None:
            stands = f"its watermark stands at {watermark_text(watermark)}"
        return (
            f"{self._named(uid, subtask)} has got records for {self._stall_seconds:g} s, and its "
            f"windows or timers wait: {stands}, held by {self._cause(uid, subtask)}"
        )

    def _cause(self, uid: str, subtask: int) -> str:
        """Return a text that names what holds the watermark of an operator."""
        seen: set[tuple[str, int]] = set()
        while (uid, subtask) not in seen:
            seen.add((uid, subtask))
            first = self._setting_watermarks(uid)
            if self._infos[first].spec.replaces_watermarks:
                return (
                    f"the watermark strategy of {self._named(first, subtask)}. If it may get no "
                    f"records for long, add with_idleness(...) to it"
                )
            match self._holders.get((self._chains[uid], subtask)):
                case ["channel", int(link), int(source)]:
                    uid, subtask = self._plan.links[link].producer, source
                case ["split", split]:
                    return (
                        f"split {split!r} of {self._named(first, subtask)}. If it may have no "
                        f"records for long, add with_idleness(...) to the watermark strategy"
                    )
                case ["no split"]:
                    return (
                        f"{self._named(first, subtask)}, which has no split to read. Use a lower "
                        f"parallelism, or add with_idleness(...) to the watermark strategy"
                    )
                case ["no strategy"]:
                    return (
                        f"{self._named(first, subtask)}, whose watermark strategy is none or "
                        f"no_watermarks(): give it another one"
                    )
                case _:
                    break
        return f"{self._named(uid, subtask)}, all of whose inputs are idle or have ended"

    def _setting_watermarks(self, uid: str) -> str:
        """Return the operator that sets the watermarks of an operator, within its chain.

        It is the first operator of the chain, or one that emits watermarks of its own.
        """
        while uid in self._before:
            if self._infos[uid].spec.replaces_watermarks:
                break
            uid = self._before[uid]
        return uid

    def _named(self, uid: str, subtask: int) -> str:
        info = self._infos[uid]
        where = f" (subtask {subtask})" if info.parallelism > 1 else ""
        return f"{info.name!r}{where}"

    # ---- units

    def _unit_warnings(self, metrics: Metrics) -> list[JobWarning]:
        warnings = []
        for uid, _, path, name, _, value in metrics.metrics:
            if name != FIRST_EVENT_TIME or path or value is None or uid in self._examined:
                continue
            self._examined.add(uid)
            for unit, (per_second, conversion) in _UNITS.items():
                if _YEARS[0] * per_second <= value < _YEARS[1] * per_second:
                    warnings.append(
                        JobWarning(
                            f"the event times of {self._infos[uid].name!r} look like {unit}: the "
                            f"first is {value}. Event times are milliseconds since the epoch, such "
                            f"as {conversion}"
                        )
                    )
        return warnings


def _time_of(watermark: int | None) -> int:
    return MIN_WATERMARK if watermark is None else watermark
