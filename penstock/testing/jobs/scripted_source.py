"""Define `TestSource`, a source that follows the script of a test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.source import (
    ListEnumerator,
    Preparation,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    TimedRead,
)
from penstock.dataflow.time.watermark import NO_TIMESTAMP, Watermark
from penstock.runtime.network.elements import Barrier, EndOfInput
from penstock.testing.jobs.in_process import job_of
from penstock.testing.timed_record import TimedRecord

#: The time between two checks whether a snapshot is complete, in seconds.
_LOOK_SECONDS = 0.001
#: The failures that have happened: ids of sources, with positions in their scripts.
_failed: set[tuple[str, int]] = set()


class InjectedFailure(Exception):
    """The error that a `Fail` in a script raises.

    Examples:
        >>> isinstance(InjectedFailure("no space left"), Exception)
        True
    """


@dataclass(frozen=True)
class Fail:
    """An element of a script at which the attempt fails once. A script may also contain the class.

    Arguments:
        message: the message of the error.

    Examples:
        >>> sink = CollectingSink()
        >>> _ = env.from_source(TestSource(["a", Fail("no space left")])).sink_to(sink)
        >>> result = env.execute("letters")
        >>> sink.values
        ['a']
    """

    message: str = "the script of the test says Fail"


class TestSource(Source):
    """Emits the records of a script, and takes snapshots and fails at places in the script.

    The elements of a script:

    * a record, or a `TimedRecord` with an event time;
    * `Watermark(t)`: emits a watermark, without a watermark strategy;
    * `Barrier`: takes a snapshot, and waits until it is complete;
    * `Fail` or `Fail(message)`: the attempt fails when the source reaches this element for the
      first time;
    * `EndOfInput`: the input ends. Without it, the input ends after the last element.

    One subtask reads the whole script. The job must run in the process of the test, with
    `execute(in_process=True)` or the fixture `penstock_in_process`. Unless it has a restart
    strategy, it restarts at once.

    Arguments:
        script: the elements.

    Raises:
        GraphError: if elements follow the `EndOfInput`, or a watermark is lower than the one
            before.

    Examples:
        The source emits `a` and `b`, and takes a snapshot. When it is complete, the source emits
        `c`, and fails. The job restarts from the snapshot, and the source emits `c` again, and
        then `d`. There are no other snapshots until the end of the input.

        >>> sink = CollectingSink()
        >>> source = TestSource(["a", "b", Barrier, "c", Fail, "d"])
        >>> _ = env.from_source(source).sink_to(sink)
        >>> result = env.execute("letters")
        >>> sink.values, len(result.restarts)
        (['a', 'b', 'c', 'd'], 1)
    """

    __test__ = False  # this is no class of tests for pytest

    requests_snapshots = True

    def __init__(self, script: Iterable[Any]) -> None:
        elements = list(script)
        end = next((i for i, one in enumerate(elements) if _is(one, EndOfInput)), None)
        if end is not None and end < len(elements) - 1:
            raise GraphError(
                f"nothing can come behind the EndOfInput of a TestSource, and "
                f"{elements[end + 1]!r} does"
            )
        self.script = elements if end is None else elements[:-1]
        self.id = secrets.token_hex(8)
        watermarks = [one.timestamp for one in elements if isinstance(one, Watermark)]
        if watermarks != sorted(watermarks):
            raise GraphError(f"the watermarks of a TestSource must ascend: {watermarks}")
        timed = any(isinstance(one, TimedRecord) for one in elements)
        self.emits_watermarks = timed or bool(watermarks)

    def prepare(self, preparation: Preparation) -> None:
        """Forget the failures of earlier executions."""
        del preparation
        for failure in [one for one in _failed if one[0] == self.id]:
            _failed.discard(failure)

    def create_enumerator(self, parallelism: int) -> ListEnumerator:
        """Return an enumerator with one split, the script."""
        del parallelism
        return ListEnumerator([Split("script")])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of the script.

        Raises:
            GraphError: if the job does not run in the process of its program.
        """
        del context
        return _ScriptReader(self, job_of("TestSource").request_snapshot)


class _ScriptReader(SourceReader):
    """Reads the script up to the next element that is not a record.

    Arguments:
        source: the source.
        request_snapshot: requests a snapshot, and returns a function that returns whether it is
            complete.
    """

    def __init__(
        self, source: TestSource, request_snapshot: Callable[[], Callable[[], bool]]
    ) -> None:
        self._source, self._script = source, source.script
        self._request_snapshot = request_snapshot
        self._next = 0
        self._complete: Callable[[], bool] | None = None

    def open(self, split: Split, position: Any) -> None:
        """Go to a position, which is the index of an element."""
        del split
        self._next = position or 0
        self._complete = None

    def read(self, max_records: int) -> Read:
        """Return the records up to the next element of another kind, or handle that element."""
        if self._complete is not None:
            if not self._complete():
                return Read([], self._next, wait_seconds=_LOOK_SECONDS)
            self._complete = None
        records: list[TimedRecord] = []
        while self._next < len(self._script) and len(records) < max_records:
            element = self._script[self._next]
            if _is(element, Fail, Barrier, Watermark):
                if not records:
                    return self._handle(element)
                break
            timed = isinstance(element, TimedRecord)
            records.append(element if timed else TimedRecord(element))
            self._next += 1
        return self._read(records)

    def _handle(self, element: Any) -> Read:
        place = (self._source.id, self._next)
        self._next += 1
        if isinstance(element, Watermark):
            return TimedRead(self._read([]), [], element.timestamp)
        if _is(element, Barrier):
            self._complete = self._request_snapshot()
            return Read([], self._next, wait_seconds=_LOOK_SECONDS)
        if place not in _failed:
            _failed.add(place)
            raise InjectedFailure((element() if element is Fail else element).message)
        return self._read([])

    def _read(self, records: list[TimedRecord]) -> Read:
        values = [record.value for record in records]
        read = Read(values, self._next, finished=self._next >= len(self._script))
        if all(record.timestamp is None for record in records):
            return read
        times = [NO_TIMESTAMP if one.timestamp is None else one.timestamp for one in records]
        return TimedRead(read, times)


def _is(element: Any, *classes: type) -> bool:
    """Return whether an element is one of these classes, or an instance of one."""
    return element in classes if isinstance(element, type) else isinstance(element, classes)
