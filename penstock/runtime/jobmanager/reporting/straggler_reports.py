"""Report tasks that are slower than their peers, with the cause that they look like.

The workers report what their tasks have done since they started. This module divides the time into
windows, and says in words what `stragglers.py` finds in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.graph.execution_graph import Chain, ExecutionGraph, Link
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.runtime.control.messages import Metrics
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks
from penstock.runtime.jobmanager.reporting.job_events import StragglerFound
from penstock.runtime.jobmanager.reporting.stragglers import (
    Cause,
    ProcessWork,
    Straggler,
    TaskWork,
    find_stragglers,
)

#: A straggler is reported again if it was none for this number of windows in between.
FORGOTTEN_AFTER = 6
#: The number of stragglers of one chain that are reported at the same time.
MOST_REPORTED = 3

Task = tuple[int, int]


@dataclass(frozen=True)
class _Sample:
    """The figures of a task at one time: sums since the task started.

    Arguments:
        clock: the time on the clock of the worker, in seconds.
        records, busy, blocked, reading: the figures of `TaskWork`.
        process: the figures of `ProcessWork`.
    """

    clock: float
    records: int
    busy: float
    blocked: float
    reading: float
    process: tuple[float, ...]


@dataclass
class _Observed:
    """Holds the reported figures of a task in the current window.

    Arguments:
        first, last: the figures at the beginning of the window, and the newest ones.
        splits: the splits that the task reads.
        ended: whether the task has ended.
        sampled, keys: the number of records whose key was looked at, and that of each text.
    """

    first: _Sample
    last: _Sample
    splits: list[str]
    ended: bool = False
    sampled: int = 0
    keys: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Begin the next window."""
        self.first, self.sampled, self.keys = self.last, 0, Counter()


class StragglerReports:
    """Finds tasks that are slower than their peers, in reports of workers.

    Arguments:
        plan: the execution graph.
        factor: the ratio to the median of the peers from which a task is slow.
        window_seconds: the time over which tasks are compared; 0 for no reports.
    """

    def __init__(self, plan: ExecutionGraph, factor: float, window_seconds: float) -> None:
        self._plan, self._factor, self._window_seconds = plan, factor, window_seconds
        self._window = 0
        self._began: float | None = None
        self._tasks: dict[Task, _Observed] = {}
        #: The last window in which each straggler was found, by task and cause.
        self._found: dict[tuple[Task, Cause], int] = {}

    def begin_attempt(self, begun: BegunTasks) -> None:
        """Forget the figures of some tasks, because they start again."""
        self._plan = begun.plan
        self._tasks = {task: one for task, one in self._tasks.items() if not begun.has_task(*task)}
        if not self._tasks:
            self._began = None

    def update(self, metrics: Metrics, now: float) -> list[StragglerFound]:
        """Record the metrics of a worker, and return the stragglers to report.

        Arguments:
            metrics: the metrics.
            now: the current time, in seconds.
        """
        if not metrics.work or not self._window_seconds:
            return []
        if self._began is None:
            self._began = now
        self._record(metrics)
        if now - self._began < self._window_seconds:
            return []
        self._began = now
        self._window += 1
        return list(self._judge())

    def _record(self, metrics: Metrics) -> None:
        figures = {(row[0], row[1]): row[2:4] for row in metrics.tasks}
        process = tuple(metrics.process)
        for chain, subtask, records, reading, ended, splits, sampled, keys in metrics.work:
            busy, blocked = figures[chain, subtask]
            sample = _Sample(metrics.clock, records, busy, blocked, reading, process)
            observed = self._tasks.get((chain, subtask))
            if observed is None:
                observed = self._tasks[chain, subtask] = _Observed(sample, sample, splits)
            observed.last, observed.ended = sample, ended
            if splits:
                observed.splits = splits
            observed.sampled += sampled
            observed.keys.update(dict(keys))

    def _judge(self) -> Iterator[StragglerFound]:
        """Judge the tasks of each chain, and begin the next window."""
        works: dict[Task, TaskWork] = {}
        for task, observed in self._tasks.items():
            seconds = observed.last.clock - observed.first.clock
            # A task that has just begun, or whose worker was busy for long, is judged in the next
            # window.
            if seconds >= self._window_seconds / 2:
                if not observed.ended:
                    works[task] = _work(task[1], seconds, observed)
                observed.begin()
        found = [
            (chain, straggler)
            for chain in self._plan.chains
            for straggler in find_stragglers(
                [works[task] for task in sorted(works) if task[0] == chain.id],
                self._factor,
                is_source=chain.is_source,
                keyed=self._is_keyed(chain),
            )
        ]
        slow = {(chain.id, straggler.work.subtask) for chain, straggler in found}
        reported: Counter[int] = Counter()
        for chain, straggler in found:
            subtask, blocking = straggler.work.subtask, None
            if straggler.cause is Cause.BLOCKED:
                link, blocking = self._blocking(chain, subtask, works)
                if blocking in slow and link.partitioning is not Partitioning.FORWARD:
                    # All tasks of the chain wait for the same one, which is reported itself.
                    continue
            if self._is_new(chain, straggler) and reported[chain.id] < MOST_REPORTED:
                reported[chain.id] += 1
                yield self._event(chain, straggler, blocking)

    def _is_keyed(self, chain: Chain) -> bool:
        links = (self._plan.links[number] for number in chain.inputs)
        return any(link.partitioning is Partitioning.HASH for link in links)

    def _blocking(
        self, chain: Chain, subtask: int, works: dict[Task, TaskWork]
    ) -> tuple[Link, Task]:
        """Return the task for which the output of a task waits, and the link to it."""
        targets = [
            (link, (link.target, other))
            for link in (self._plan.links[number] for number in chain.outputs)
            for other in range(self._plan.chains[link.target].parallelism)
            if link.partitioning is not Partitioning.FORWARD or other == subtask
        ]

        def at_work(target: tuple[Link, Task]) -> float:
            return works[target[1]].at_work if target[1] in works else 0.0

        return max(targets, key=at_work)

    def _is_new(self, chain: Chain, straggler: Straggler) -> bool:
        """Return whether a straggler was not found in the last windows."""
        place = (chain.id, straggler.work.subtask), straggler.cause
        before = self._found.get(place)
        self._found[place] = self._window
        return before is None or self._window - before > FORGOTTEN_AFTER

    # ---- the event of a straggler

    def _event(self, chain: Chain, straggler: Straggler, blocking: Task | None) -> StragglerFound:
        work, info = straggler.work, chain.root.operator
        ratio = None if straggler.ratio == float("inf") else round(straggler.ratio, 2)
        figures: dict[str, Any] = {
            "uid": info.uid,
            "operator": chain.name,
            "subtask": work.subtask,
            "cause": straggler.cause.value,
            "ratio": ratio,
            "share": round(straggler.share, 3),
        }
        if straggler.key is not None:
            figures["key"] = straggler.key
        if chain.is_source:
            figures["splits"] = list(work.splits)
        begin = f"{chain.name!r} (subtask {work.subtask}) {self._slowness(straggler)}"
        what = self._what(chain, straggler, blocking)
        return StragglerFound(f"{begin}. It looks like {straggler.cause.value}: {what}", figures)

    def _slowness(self, straggler: Straggler) -> str:
        over = f"over the last {straggler.work.seconds:.0f} s"
        if straggler.ratio != float("inf"):
            times = f"{straggler.ratio:.1f} times as long as its peers"
            if straggler.per_record:
                return f"needed {times} for a record, {over}"
            return f"was at work {times}, {over}"
        if straggler.per_record:
            return f"has finished no record, {over}, and its peers have"
        return f"was at work, {over}, and its peers had nothing to do"

    def _what(self, chain: Chain, straggler: Straggler, blocking: Task | None) -> str:
        """Return a text with the details of the cause, and advice."""
        work, share = straggler.work, f"{straggler.share:.0%}"
        match straggler.cause:
            case Cause.HOT_KEY:
                key = f"the key {straggler.key} is {share} of its records"
                return f"{key}. {self._hot_key_help(chain)}"
            case Cause.MORE_RECORDS if self._is_keyed(chain):
                return (
                    "it has more keys than its peers, or several frequent ones. Another "
                    "parallelism may divide them better"
                )
            case Cause.MORE_RECORDS:
                return "its input is not divided evenly. rebalance() before the operator does that"
            case Cause.SLOW_SPLIT:
                return (
                    f"it reads {_splits_text(work.splits)}. Other tasks take the splits that none "
                    f"has begun. Smaller splits would let them share this one, too"
                )
            case Cause.BLOCKED if blocking is not None:
                where = f"{self._plan.chains[blocking[0]].name!r} (subtask {blocking[1]})"
                return f"for {share} of the time its output waited for {where}"
            case Cause.STARVED:
                return (
                    f"for {share} of the time it waited for a processor, which was taken from it "
                    f"{work.process.switches / work.seconds:,.0f} times a second. A lower "
                    f"parallelism, or a machine with less other work, helps"
                )
            case Cause.SWAPPING:
                return (
                    f"its process read {work.process.faults / work.seconds:,.0f} pages of memory "
                    f"a second from disk. Give the machine more memory, or its jobs less: "
                    f"`memory_bytes`"
                )
            case Cause.GARBAGE_COLLECTION:
                return (
                    f"Python's garbage collector took {share} of the time. It visits objects that "
                    f"functions keep outside of state, and cycles of objects"
                )
        return (
            "nothing else about the task stands out, so the operator needs more time for some "
            "records than for others"
        )

    def _hot_key_help(self, chain: Chain) -> str:
        info = chain.root.operator
        if info.spec.two_inputs:
            return (
                "Filter the key out before the operator if it stands for no value, or broadcast "
                "the smaller input"
            )
        return (
            f"If {info.name!r} aggregates, aggregate in two stages. WINDOW is that of the "
            f"operator, or a short one:\n"
            "    .map(lambda record: (random.randrange(8), record))\n"
            "    .key_by(lambda pair: (pair[0], KEY(pair[1])))\n"
            "    .window(WINDOW).reduce(lambda a, b: (a[0], ADD(a[1], b[1])))\n"
            "    .map(lambda pair: pair[1])\n"
            f"    .key_by(KEY)  # and then {info.name!r} as now"
        )


def _work(subtask: int, seconds: float, observed: _Observed) -> TaskWork:
    """Return what a task has done in the current window."""
    first, last = observed.first, observed.last
    process = [now - before for now, before in zip(last.process, first.process, strict=False)]
    return TaskWork(
        subtask,
        seconds,
        last.records - first.records,
        last.busy - first.busy,
        last.blocked - first.blocked,
        last.reading - first.reading,
        tuple(observed.splits),
        observed.sampled,
        observed.keys,
        ProcessWork(*process),
    )


def _splits_text(splits: tuple[str, ...]) -> str:
    if not splits:
        return "its splits"
    names = ", ".join(map(repr, splits))
    return f"split {names}" if len(splits) == 1 else f"the splits {names}"
