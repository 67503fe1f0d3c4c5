"""Define metrics: counters, meters, gauges and distributions, in groups.

A function gets the group of its operator from `RuntimeContext.get_metrics_group`, and the engine
counts in the same group. The worker sends the values of all groups to the JobManager at intervals,
and when the job ends. (Flink: `MetricGroup`; PyFlink: `pyflink.metrics`.)
"""

from __future__ import annotations

import logging
import math
import numbers
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import PlainValue, UserValue

logger = logging.getLogger("penstock.metrics")

MetricKind = Literal["counter", "meter", "gauge", "distribution"]
#: The names of the groups around a metric. The name of a key-value group is a list [key, value].
MetricPath = tuple[str | tuple[str, str], ...]

# The counters of the engine. Names are Flink's, as far as Flink has such a metric.

#: The number of late records that windows and joins have dropped.
LATE_RECORDS_DROPPED = "numLateRecordsDropped"
#: The number of late records that windows and joins have emitted to a side output.
LATE_RECORDS_TO_SIDE_OUTPUT = "numLateRecordsToSideOutput"
#: The number of processing-time windows, and of other timers, whose input ended before their time.
WINDOWS_NOT_FIRED = "numWindowsNotFired"
TIMERS_NOT_FIRED = "numTimersNotFired"
#: The event time of the first record to which a source or a strategy has given one.
FIRST_EVENT_TIME = "firstEventTime"
#: The number of records that were emitted to side outputs that no operator reads.
SIDE_OUTPUT_RECORDS_DROPPED = "numSideOutputRecordsDropped"
#: The calls of the function of `AsyncDataStream.batched`, the records in them, the records that
#: needed no call, the calls that failed and are repeated, and those that took too long.
CALLS = "numCalls"
RECORDS_IN_CALLS = "numRecordsInCalls"
CACHE_HITS = "numCacheHits"
CALLS_REPEATED = "numCallsRepeated"
CALLS_TIMED_OUT = "numCallsTimedOut"
#: The number of lines that a file source has skipped, because they are bad.
LINES_SKIPPED = "numLinesSkipped"
#: The number of messages that a source has skipped, because their schema could not decode them.
MESSAGES_SKIPPED = "numMessagesSkipped"

#: The longest text of a gauge that is reported.
_MAX_TEXT = 200


class Metric(ABC):
    """A value that a subtask measures. (Flink: `Metric`.)

    Examples:
        >>> isinstance(MetricGroup().counter("bad"), Metric)
        True
    """

    __slots__ = ()

    #: The kind of the metric.
    kind: ClassVar[MetricKind]

    @abstractmethod
    def report(self) -> PlainValue:
        """Return the current value, as plain numbers or text."""


class Counter(Metric):
    """Counts events. (Flink: `Counter`.)

    It begins at 0, also after a restart of the job.

    Attributes:
        count: the current value. `counter.count += 1` is the same as `counter.inc()`.

    Examples:
        >>> class Parse(FlatMapFunction):
        ...     def open(self, runtime_context):
        ...         self.bad = runtime_context.get_metrics_group().counter("bad")
        ...     def flat_map(self, value):
        ...         if value.isdigit():
        ...             yield int(value)
        ...         else:
        ...             self.bad.inc()
        >>> _ = env.from_collection(["1", "x"]).flat_map(Parse()).sink_to(FileSink("numbers"))
        >>> env.execute("parse").metric("bad")
        1
    """

    __slots__ = ("count",)
    kind = "counter"

    def __init__(self) -> None:
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Add a number."""
        self.count += n

    def dec(self, n: int = 1) -> None:
        """Subtract a number."""
        self.count -= n

    def get_count(self) -> int:
        """Return the current value."""
        return self.count

    def report(self) -> PlainValue:
        """Return the current value."""
        return plain_number(self.count)


class Meter(Metric):
    """Measures how often events happen. (Flink: `Meter`.)

    The rate is the number of events in the last `time_span_in_seconds`, per second. Until that time
    has passed, it is the rate since the meter was made.

    Arguments:
        time_span_in_seconds: the time over which the rate is measured.
        clock: returns the time in seconds.

    Examples:
        >>> meter = Meter(time_span_in_seconds=10)
        >>> meter.mark_event(5)
        >>> meter.get_count()
        5
    """

    __slots__ = ("_clock", "_samples", "_span", "count")
    kind = "meter"

    def __init__(
        self, time_span_in_seconds: float = 60, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.count = 0
        self._span, self._clock = time_span_in_seconds, clock
        #: Pairs (time, count), the oldest of which is at least as old as the time span.
        self._samples = deque([(clock(), 0)])

    def mark_event(self, value: int = 1) -> None:
        """Record that events have happened.

        Arguments:
            value: the number of events.
        """
        self.count += value

    def get_count(self) -> int:
        """Return the number of events since the meter was made."""
        return self.count

    def get_rate(self) -> float:
        """Return the number of events per second."""
        now, samples = self._clock(), self._samples
        while len(samples) > 1 and samples[1][0] <= now - self._span:
            samples.popleft()
        # A sixtieth of the time span is exact enough, and bounds the number of samples.
        if now - samples[-1][0] >= self._span / 60:
            samples.append((now, self.count))
        then, count = samples[0]
        return (self.count - count) / (now - then) if now > then else 0.0

    def report(self) -> PlainValue:
        """Return the number of events, and the rate."""
        return [plain_number(self.count), plain_number(self.get_rate())]


class Distribution(Metric):
    """Collects the number, sum, minimum and maximum of values. (PyFlink: `Distribution`.)

    Examples:
        >>> sizes = MetricGroup().distribution("sizes")
        >>> for size in (3, 5):
        ...     sizes.update(size)
        >>> sizes.count, sizes.min, sizes.max, sizes.sum
        (2, 3, 5, 8)
    """

    __slots__ = ("count", "max", "min", "sum")
    kind = "distribution"

    def __init__(self) -> None:
        self.count = 0
        self.sum: float = 0
        self.min: float = math.inf
        self.max: float = -math.inf

    def update(self, value: float) -> None:
        """Add a value."""
        self.sum += value
        self.count += 1
        self.min = min(value, self.min)
        self.max = max(value, self.max)

    def report(self) -> PlainValue:
        """Return the number, the sum, the minimum and the maximum of all values."""
        values = (self.count, self.sum, self.min, self.max) if self.count else (0, 0, None, None)
        return [*map(plain_number, values)]


class _Gauge(Metric):
    """Returns the value of a function.

    Arguments:
        identifier: the whole name of the gauge, for a warning.
        function: returns a number or a text.
    """

    __slots__ = ("_failed", "_function", "_identifier")
    kind = "gauge"

    def __init__(self, identifier: str, function: Callable[[], object]) -> None:
        self._identifier, self._function = identifier, function
        self._failed = False

    def report(self) -> PlainValue:
        """Return the result of the function; None if it raises an error.

        The first error is logged. It does not make the job fail.
        """
        try:
            return plain_number(self._function())
        except (Exception, SystemExit) as error:
            if not self._failed:
                self._failed = True
                text = "gauge %s has no value, because its function raised %s: %s"
                logger.warning(text, self._identifier, type(error).__name__, error, exc_info=True)
            return None


_M = TypeVar("_M", bound=Metric)


class MetricGroup:
    """A group of metrics and further groups. (Flink: `MetricGroup`.)

    Asking again for a metric of the same name and kind returns the same metric.

    Arguments:
        scope: the names before those of the groups: the operator and the index of the subtask.
        clock: returns the time in seconds.

    Examples:
        >>> group = MetricGroup().add_group("parser")
        >>> bad_lines = group.counter("bad lines")
        >>> group.get_metric_identifier("bad lines")
        'parser.bad lines'
    """

    def __init__(
        self, scope: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scope, self._clock = tuple(scope), clock
        self._path: MetricPath = ()
        #: The metrics of this group and of all groups in it. All these groups share the dict.
        self._metrics: dict[tuple[MetricPath, str], Metric] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return the group of a name inside of this one.

        Arguments:
            name: the name.
            extra: a value, for example a topic if the name is "topic". The group is then the group
                of the value inside the group of the name, and `get_all_variables` has the pair.

        Raises:
            GraphError: if a name is not a text, or is empty.
        """
        _check_name("a group of metrics", name)
        if extra is not None:
            _check_name("the value of a group of metrics", extra)
        group = MetricGroup(self._scope, self._clock)
        group._path = (*self._path, name if extra is None else (name, extra))
        group._metrics = self._metrics
        return group

    def counter(self, name: str) -> Counter:
        """Return the counter of this name.

        Raises:
            GraphError: if the group has another kind of metric with this name.
        """
        return self._metric(name, Counter, Counter)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter of this name.

        Arguments:
            name: the name.
            time_span_in_seconds: the time over which the rate is measured.

        Raises:
            GraphError: if the group has another kind of metric with this name, or if the time is
                not positive.
        """
        if not time_span_in_seconds > 0:
            raise GraphError(
                f"the time span of meter {name!r} is positive, not {time_span_in_seconds!r}"
            )
        return self._metric(name, Meter, lambda: Meter(time_span_in_seconds, self._clock))

    def distribution(self, name: str) -> Distribution:
        """Return the distribution of this name.

        Raises:
            GraphError: if the group has another kind of metric with this name.
        """
        return self._metric(name, Distribution, Distribution)

    def gauge(self, name: str, obj: Callable[[], object]) -> None:
        """Add a gauge that reports the result of a function.

        The function is called about twice a second, between the batches of the operator. If it
        raises an error, the gauge has no value, and the first error is logged.

        Arguments:
            name: the name.
            obj: a function without arguments that returns a number or a text.

        Raises:
            GraphError: if the group has a metric with this name already, or `obj` is not callable.
        """
        if not callable(obj):
            raise GraphError(f"gauge {name!r} takes a function without arguments, not {obj!r}")
        if (self._path, name) in self._metrics:
            raise GraphError(f"there is a metric {name!r} already: give the gauge another name")
        self._metric(name, _Gauge, lambda: _Gauge(self.get_metric_identifier(name), obj))

    def get_scope_components(self) -> list[str]:
        """Return the names of the operator, of the subtask and of the groups around a metric."""
        return [*self._scope, *names_of(self._path)]

    def get_all_variables(self) -> dict[str, str]:
        """Return the value of each key-value group around a metric, by its key."""
        return dict(part for part in self._path if isinstance(part, tuple))

    def get_metric_identifier(self, metric_name: str) -> str:
        """Return the whole name of a metric: its scope and its name, separated by dots."""
        return ".".join([*self.get_scope_components(), metric_name])

    def all_metrics(self) -> Iterator[tuple[MetricPath, str, Metric]]:
        """Yield the path, the name and the metric for this group and all that share its metrics."""
        # The reader of a source may add a metric in another thread.
        for (path, name), metric in list(self._metrics.items()):
            yield path, name, metric

    def _metric(self, name: str, kind: type[_M], make: Callable[[], _M]) -> _M:
        _check_name("a metric", name)
        found = self._metrics.get((self._path, name))
        if found is None:
            found = self._metrics[self._path, name] = make()
        if not isinstance(found, kind):
            raise GraphError(
                f"metric {name!r} is a {found.kind} already: give the {kind.kind} another name"
            )
        return found


def names_of(path: MetricPath) -> list[str]:
    """Return the names of the groups of a path, in order."""
    names: list[str] = []
    for part in path:
        names += [part] if isinstance(part, str) else part
    return names


def plain_number(value: UserValue) -> PlainValue:
    """Return a value of a metric as a plain number or text, which a message can contain.

    An integer of more than 64 bits becomes a float. A value that is no number becomes a text.
    """
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        return str(value)[:_MAX_TEXT]
    try:
        if isinstance(value, numbers.Integral) and -(1 << 63) <= int(value) < 1 << 63:
            return int(value)
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return str(value)[:_MAX_TEXT]


def find_metric(
    rows: Sequence[Mapping[str, PlainValue]], name: str, operator: str | None
) -> PlainValue:
    """Return the value of a metric among those that a job or a harness reports.

    Arguments:
        rows: the metrics; see `JobExecutionResult.metrics`.
        name: the name of the metric, with the names of its groups before it.
        operator: the name or the uid of its operator; None if only one has this metric.

    Raises:
        GraphError: if there is no such metric, or if several operators have it.
    """
    found = [
        row
        for row in rows
        if row["name"] == name and operator in (None, row["operator"], row["uid"])
    ]
    if len(found) == 1:
        return found[0]["value"]
    if found:
        which = ", ".join(f"{row['operator']!r} ({row['uid']})" for row in found)
        raise GraphError(f"several operators have a metric {name!r}: give one of {which}")
    known = ", ".join(sorted({repr(row["name"]) for row in rows})) or "none"
    where = "" if operator is None else f" of operator {operator!r}"
    raise GraphError(f"the job has no metric {name!r}{where}; its metrics are {known}")


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise GraphError(f"the name of {what} is a text that is not empty, and not {name!r}")
