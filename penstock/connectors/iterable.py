"""A source that reads any Python iterable.

The reader reads slices of a sequence. Another iterable may block before each record. So a daemon
thread, called the *pump*, runs the iterable and puts its records into a bounded buffer. The reader
takes records from the buffer, and waits only if the buffer is empty.

An iterator cannot go back. So a resumed job creates the iterator again and skips the records that
were read before. The factory must therefore return the same records in the same order each time.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, Generic

from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.object_reuse import (
    Check,
    EmissionPolicy,
    copy_if_shared,
    copy_local_if_shared,
)
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.dataflow.type_variables import T

# The number of records in the buffer at which the pump waits for the reader.
_PUMP_LIMIT = 16_384

# The maximal number of records that one call of `_skip` skips. Between two such calls, the pump
# checks whether the reader was closed. Without a pump, there is one such call for each `read`.
_SKIP = 65_536

_NOTHING = object()


class IterableSource(Source[T], Generic[T]):
    """Reads an iterable or a sequence that a factory creates for each reader.

    The position is the number of records that were read. To resume, the reader creates the iterable
    again and skips this number of records. In a sequence, it starts at this index. **The iterable
    must return the same records in the same order each time.** The reader does not change the
    exceptions that the iterable raises.

    Arguments:
        factory: a function that returns the iterable. If it takes the arguments (subtask,
            parallelism), it is called for each reader and returns this reader's part of the
            records. If it takes no arguments, only one reader reads records. The factory should
            return at once; slow work belongs in the body of a generator. After rescaling, the
            factory still gets the arguments of the first run.
        bounded: whether the iterables end.
        blocking: whether an iterable may wait for its next record. If it is False, the source uses
            no threads. False is suitable for sequences and for iterables that only compute.

    Raises:
        GraphError: if the factory takes other arguments.

    Examples:
        >>> list(env.from_source(IterableSource(lambda: range(3))).execute_and_collect())
        [0, 1, 2]
    """

    has_event_times = False

    def __init__(
        self,
        factory: Callable[..., Iterable[T]],
        bounded: bool = True,
        blocking: bool = True,
    ) -> None:
        self.factory = factory
        self.bounded = bounded
        self.blocking = blocking
        self.shared = not _takes_subtask(factory)

    @property
    def reads_in_turns(self) -> bool:
        """Return True, since the splits are parts that parallel subtasks read at the same time."""
        return True

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns one split to each reader.

        If the factory takes no arguments, there is only one split.
        """
        splits = 1 if self.shared else parallelism
        return SubtaskEnumerator([[i, splits] for i in range(splits)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads one iterable at a time."""
        return _IterableReader(self, f"penstock-pump-{context.uid}-{context.subtask}")


def _takes_subtask(factory: Callable[..., Any]) -> bool:
    """Return whether the factory takes the arguments (subtask, parallelism).

    The result is False if the factory can be called without arguments.

    Raises:
        GraphError: if the factory is not callable, or cannot be called in one of these two ways.
    """
    if not callable(factory):
        raise GraphError(
            f"an iterable source needs a function that makes the iterable, not "
            f"{type(factory).__name__}: a restart must be able to make it again. "
            f"For a list use a collection source"
        )
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some builtins have no signature; they are called without arguments
        return False
    for arguments in ((), (0, 1)):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return bool(arguments)
    raise GraphError(
        f"the factory of an iterable source is called with (subtask, parallelism) or with "
        f"nothing; {getattr(factory, '__name__', factory)!r} takes {signature}"
    )


class _IterableReader(SourceReader):
    """Reads one iterable at a time, with the cursor that suits it."""

    def __init__(self, source: IterableSource, thread_name: str) -> None:
        self.blocking = source.blocking
        self._source = source
        self._thread_name = thread_name
        self._cursor: _SequenceCursor | _IteratorCursor | _Pump | None = None
        self._policy = EmissionPolicy(source.factory)

    def open(self, split: Split, position: Any) -> None:
        self.close()
        subtask, splits = split.payload
        source = self._source
        made = source.factory() if source.shared else source.factory(subtask, splits)
        start = position or 0
        if not isinstance(made, Iterable):
            raise JobError(
                f"the factory of an iterable source must return an iterable, not "
                f"{type(made).__name__}"
            )
        if isinstance(made, Sequence):
            self._cursor = _SequenceCursor(made, start)
        elif self.blocking:
            self._cursor = _Pump(iter(made), start, self._policy, self._thread_name)
        else:
            self._cursor = _IteratorCursor(iter(made), start, self._policy)

    def read(self, max_records: int) -> Read:
        assert self._cursor is not None, "read before open"
        read = self._cursor.read(max_records)
        if isinstance(self._cursor, _SequenceCursor):
            return read
        return read._replace(records=self._policy.after_batch(read.records))

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()


class _SequenceCursor:
    """Reads slices of a sequence."""

    def __init__(self, sequence: Sequence[Any], start: int) -> None:
        if start > len(sequence):
            raise _too_short(start)
        self._sequence = sequence
        self._next = start

    def read(self, max_records: int) -> Read:
        records = list(self._sequence[self._next : self._next + max_records])
        self._next += len(records)
        return Read(records, self._next, finished=self._next >= len(self._sequence))

    def close(self) -> None:
        """Do nothing, because a sequence holds no resources."""


class _IteratorCursor:
    """Reads an iterator that never waits. It does not need a thread."""

    def __init__(self, iterator: Iterator[Any], start: int, policy: EmissionPolicy) -> None:
        self._iterator = iterator
        self._next = start
        self._policy = policy
        self._skipped = 0

    def read(self, max_records: int) -> Read:
        if self._skipped < self._next:
            # Skip only a limited number of records per call, because a long call delays barriers.
            self._skipped += _skip(self._iterator, self._skipped, self._next)
            return Read([], self._next)
        given = islice(self._iterator, max_records)
        unchecked = self._policy.check is Check.NOTHING
        records = list(given if unchecked else map(copy_if_shared, given))
        self._next += len(records)
        self._skipped = self._next
        return Read(records, self._next, finished=len(records) < max_records)

    def close(self) -> None:
        _close(self._iterator)


class _Pump:
    """Runs an iterator in a thread of its own, and puts its records into a bounded buffer.

    The buffer is a list. Only the pump thread appends records to it, and only the reader removes
    records from it. Each of these operations is atomic under the interpreter lock. So the
    condition variable is needed only for waiting, and not for each record.

    A thread that is about to wait sets its flag *before* it checks the buffer. The other thread
    checks this flag *after* it has changed the buffer. So no notification is lost.
    """

    def __init__(
        self, iterator: Iterator[Any], start: int, policy: EmissionPolicy, name: str
    ) -> None:
        self._iterator = iterator
        self._policy = policy
        self._start = start
        self._next = start
        self._buffer: list[Any] = []
        self._condition = threading.Condition()
        self._reader_waits = False
        self._pump_waits = False
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        # The thread runs in a copy of the context, so that log lines of the user's generator name
        # the source.
        run = partial(copy_context().run, self._run)
        threading.Thread(target=run, name=name, daemon=True).start()

    def read(self, max_records: int) -> Read:
        buffer = self._buffer
        with self._condition:
            self._reader_waits = True
            while not (buffer or self._ended or self._closed):
                self._condition.wait()
                self._reader_waits = True
            self._reader_waits = False
        if self._closed:
            return Read([], self._next)
        # Read `_ended` before the buffer. If it is set, the pump appends no more records, so the
        # buffer contains all of them.
        ended = self._ended
        records = buffer[:max_records]
        del buffer[: len(records)]
        if self._pump_waits:
            with self._condition:
                self._condition.notify_all()
        self._next += len(records)
        finished = ended and not buffer
        if finished and self._error is not None:
            if not records:
                raise self._error
            finished = False
        return Read(records, self._next, finished)

    def close(self) -> None:
        """Make the reader and the pump stop waiting, and end.

        This does not wait for the end of the pump, because the iterator may block forever.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            self._pump()
        except BaseException as error:  # includes SystemExit; the reader raises the error again
            self._error = error
        finally:
            # The pump closes the generator, because another thread cannot close it while it runs.
            if self._closed:
                _close(self._iterator)
            with self._condition:
                self._ended = True
                self._condition.notify_all()

    def _pump(self) -> None:
        skipped = 0
        while skipped < self._start and not self._closed:
            skipped += _skip(self._iterator, skipped, self._start)
        buffer = self._buffer
        append, policy = buffer.append, self._policy
        for record in self._iterator:
            unchecked = policy.check is Check.NOTHING
            append(record if unchecked else copy_local_if_shared(record))
            if self._reader_waits:
                with self._condition:
                    self._reader_waits = False  # do not notify the reader again for each record
                    self._condition.notify_all()
            if len(buffer) >= _PUMP_LIMIT:
                with self._condition:
                    self._pump_waits = True
                    while len(buffer) >= _PUMP_LIMIT and not self._closed:
                        self._condition.wait()
                    self._pump_waits = False
            if self._closed:
                return


def _skip(iterator: Iterator[Any], skipped: int, position: int) -> int:
    """Skip the next records of an iterator, and return the number that this call skipped.

    One call skips at most `_SKIP` records.

    Arguments:
        iterator: the iterator.
        skipped: the number of records that earlier calls skipped.
        position: the total number of records to skip.

    Raises:
        JobError: if the iterator has fewer than `position` records.
    """
    count = min(_SKIP, position - skipped)
    if next(islice(iterator, count - 1, None), _NOTHING) is _NOTHING:
        raise _too_short(position)
    return count


def _close(iterator: Iterator[Any]) -> None:
    """Close an iterator if it is a generator, so that the generator releases its resources."""
    close = getattr(iterator, "close", None)
    if close is not None:
        # The reader has ended, so no caller can handle an error of the generator's clean-up code.
        with contextlib.suppress(Exception):
            close()


def _too_short(position: int) -> JobError:
    return JobError(
        f"the iterable has fewer records this time than the {position} that were consumed "
        f"before the snapshot: its factory must give the same records each time"
    )
