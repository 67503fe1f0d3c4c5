"""Find tasks that are slower than their peers, and the cause that each looks like.

The peers of a task are the other subtasks of its chain. A task is a *straggler* in two cases:

* It is at work for much longer than its peers, because it gets more of the records.
* It needs much longer for a record than its peers.

A task that is idle for most of the time holds back nothing, so it is no straggler. A source reads
as much as it can, so only its time for a record counts.

This module does no input or output: figures come in, and stragglers go out. `straggler_reports.py`
collects the figures. `docs/inside/decisions/056-stragglers.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

#: A task that is at work for a smaller share of the time is no straggler.
AT_WORK_SHARE = 0.5
#: A task without keys that gets more records than its peers is one from this share on. The slow
#: task may also be before its peers, which then have less to do.
SATURATED_SHARE = 0.9
#: A cause is named if it explains this share of the time that a task needs more than its peers.
EXPLAINED_SHARE = 0.3
#: A key is hot if it has this share of the records that a task gets more than its peers.
HOT_KEY_SHARE = 0.5
#: The number of sampled records below which nothing is said about keys.
FEWEST_SAMPLED = 20
#: The estimated time to read a page of memory from disk, in seconds.
FAULT_SECONDS = 0.001


class Cause(Enum):
    """Names the probable cause of a straggler."""

    HOT_KEY = "hot key"
    MORE_RECORDS = "more records"
    SLOW_SPLIT = "slow split"
    BLOCKED = "blocked downstream"
    STARVED = "starved processor"
    SWAPPING = "swapping"
    GARBAGE_COLLECTION = "garbage collection"
    SLOW_RECORDS = "slow records"


@dataclass(frozen=True)
class ProcessWork:
    """Holds the figures of a task's process in a window of time.

    Arguments:
        waited: the time for which the thread of the tasks waited for a processor, in seconds.
        stolen: the time for which other virtual machines had a processor, in seconds.
        switches: the number of times at which the kernel took the processor from the thread.
        faults: the number of pages of memory that were read from disk.
        collecting: the time that Python's garbage collector took, in seconds.
    """

    waited: float = 0.0
    stolen: float = 0.0
    switches: float = 0.0
    faults: float = 0.0
    collecting: float = 0.0


@dataclass(frozen=True)
class TaskWork:
    """Holds the figures of a task in a window of time.

    Arguments:
        subtask: the index of the subtask.
        seconds: the length of the window. It is greater than 0.
        records: the number of records that the task has processed.
        busy: the time for which it has processed records, in seconds.
        blocked: the time for which its output has waited for later tasks, in seconds.
        reading: the time for which threads have read the splits of its source, in seconds. It
            overlaps with the other times.
        splits: the splits that it reads.
        sampled: the number of records whose key was looked at.
        keys: the number of these records of the most frequent keys, by the text of the key.
        process: what the process of the task has done.
    """

    subtask: int
    seconds: float
    records: int
    busy: float
    blocked: float = 0.0
    reading: float = 0.0
    splits: tuple[str, ...] = ()
    sampled: int = 0
    keys: Mapping[str, int] = field(default_factory=dict)
    process: ProcessWork = field(default_factory=ProcessWork)

    @property
    def at_work(self) -> float:
        """Return the share of the window for which the task was busy, blocked or reading."""
        return min(1.0, max(self.busy + self.blocked, self.reading) / self.seconds)

    @property
    def rate(self) -> float:
        """Return the number of records per second."""
        return self.records / self.seconds


@dataclass(frozen=True)
class Straggler:
    """A task that is slower than its peers.

    Arguments:
        work: what the task has done.
        ratio: how many times as long as its peers the task is at work, or needs for a record;
            infinite if the peers had nothing to do, or if the task has finished no record.
        per_record: whether the ratio is that of the time for a record.
        cause: the cause that it looks like.
        share: the share of the hot key in the task's records; for the other causes, the share of
            the window that the cause took.
        key: the text of the hot key; None for the other causes.
    """

    work: TaskWork
    ratio: float
    per_record: bool
    cause: Cause
    share: float
    key: str | None = None


def find_stragglers(
    works: Sequence[TaskWork], factor: float, *, is_source: bool, keyed: bool
) -> list[Straggler]:
    """Return the stragglers among the tasks of one chain, the slowest first.

    Arguments:
        works: what each task has done in the last window. Tasks that have ended are left out.
        factor: the ratio to the median of the peers from which a task is a straggler.
        is_source: whether the tasks read a source.
        keyed: whether the records of the tasks are divided by key.
    """
    found = []
    for work in works:
        peers = [other for other in works if other is not work]
        if not peers or work.at_work < AT_WORK_SHARE:
            continue
        straggler = _judged(work, peers, factor, is_source=is_source, keyed=keyed)
        if straggler is not None:
            found.append(straggler)
    return sorted(found, key=lambda straggler: -straggler.ratio)


def _judged(
    work: TaskWork, peers: list[TaskWork], factor: float, *, is_source: bool, keyed: bool
) -> Straggler | None:
    """Return a task as a straggler if it is one."""
    cost = _cost_ratio(work, peers)
    least = AT_WORK_SHARE if keyed else SATURATED_SHARE
    if not is_source and work.records and work.at_work >= least:
        load = _ratio(work.at_work, median(peer.at_work for peer in peers))
        more = _ratio(work.rate, median(peer.rate for peer in peers))
        if load >= factor and more >= cost:
            return _with_more_records(work, load, 1 - 1 / more)
    if cost < factor:
        return None
    return _with_slow_records(work, peers, cost, is_source)


def _cost_ratio(work: TaskWork, peers: Iterable[TaskWork]) -> float:
    """Return the time that a task needs for a record, divided by that of its peers.

    Return 0 if no peer has had records, because a comparison needs peers with records.
    """
    costs = [peer.at_work / peer.rate for peer in peers if peer.records]
    if not costs:
        return 0.0
    return _ratio(work.at_work, median(costs) * work.rate)


def _with_more_records(work: TaskWork, load: float, more: float) -> Straggler:
    """Return a straggler that gets more records than its peers.

    Arguments:
        work: what it has done.
        load: the ratio of its time at work to that of its peers.
        more: the share of its records that its peers do not get.
    """
    key, share = _top_key(work)
    if key is not None and share >= HOT_KEY_SHARE * more:
        return Straggler(work, load, False, Cause.HOT_KEY, share, key)
    return Straggler(work, load, False, Cause.MORE_RECORDS, more)


def _with_slow_records(
    work: TaskWork, peers: list[TaskWork], cost: float, is_source: bool
) -> Straggler:
    """Return a straggler that needs longer for a record than its peers."""
    explained = {
        Cause.BLOCKED: _excess(work, peers, lambda one: one.blocked, lambda one: one.rate),
        Cause.STARVED: _excess(work, peers, lambda one: one.process.waited, _busy)
        + _excess(work, peers, lambda one: one.process.stolen, lambda _: 1.0),
        Cause.SWAPPING: _excess(work, peers, lambda one: one.process.faults * FAULT_SECONDS, _busy),
        Cause.GARBAGE_COLLECTION: _excess(work, peers, lambda one: one.process.collecting, _busy),
    }
    cause = max(explained, key=lambda one: explained[one])
    if explained[cause] >= EXPLAINED_SHARE * work.at_work * (1 - 1 / cost):
        return Straggler(work, cost, True, cause, explained[cause])
    if is_source:
        return Straggler(work, cost, True, Cause.SLOW_SPLIT, work.at_work)
    key, share = _top_key(work)
    if key is not None and share >= HOT_KEY_SHARE:
        return Straggler(work, cost, True, Cause.HOT_KEY, share, key)
    return Straggler(work, cost, True, Cause.SLOW_RECORDS, work.at_work)


def _busy(work: TaskWork) -> float:
    return work.busy / work.seconds


def _excess(
    work: TaskWork,
    peers: Iterable[TaskWork],
    time_of: Callable[[TaskWork], float],
    size_of: Callable[[TaskWork], float],
) -> float:
    """Return the share of the window that a cause took, minus the usual share.

    Arguments:
        work: the work of the task in the window.
        peers: the work of its peers, which shows the usual time.
        time_of: returns the time that it took, in seconds.
        size_of: returns the size of the work to which this time is in proportion.
    """
    usual = [time_of(peer) / peer.seconds / size_of(peer) for peer in peers if size_of(peer)]
    expected = size_of(work) * median(usual) if usual else 0.0
    return min(1.0, time_of(work) / work.seconds) - expected


def _top_key(work: TaskWork) -> tuple[str | None, float]:
    """Return the most frequent key of a task with its share of the task's records."""
    if work.sampled < FEWEST_SAMPLED or not work.keys:
        return None, 0.0
    key = max(work.keys, key=lambda text: (work.keys[text], text))
    return key, work.keys[key] / work.sampled


def _ratio(value: float, usual: float) -> float:
    if usual:
        return value / usual
    return float("inf") if value else 1.0
