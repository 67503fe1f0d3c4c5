"""A source over any Python iterable.

Sequences are sliced. Other iterables may wait for their next record at any time. So a daemon
thread, the *pump*, runs each of them into a bounded buffer. A read takes records from the buffer,
and waits only if it is empty. To rewind an iterator, it is created again and records are skipped.
So the factory must return the same records in the same order each time.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any

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

__all__ = ["IterableSource"]

# Records that the pump may be ahead of the reader.
_PUMP_LIMIT = 16_384

# Records that are skipped between two checks whether the reader was closed. Without a pump, this
# many are skipped in one call of `read`.
_SKIP = 65_536

_NOTHING = object()


class IterableSource(Source):
    """Read an iterable or sequence that each reader creates for itself.

    The position is the number of records that were read. To resume, the iterable is created again
    and this number of records is skipped; a sequence is sliced, which costs nothing. **It must
    have the same records in the same order each time.** The job raises its exceptions unchanged.

    Arguments:
        factory: called as `factory(subtask, parallelism)` for each reader, and returns the
            share of this reader; or called without arguments, and then one reader reads
            everything. It should return at once; put slow work into a generator's body. After a
            change of parallelism it is still called with the numbers of the first run.
        bounded: whether the iterables end.
        blocking: whether the iterable may wait for its next record. With False there are no
            threads; use it for sequences and for iterables that only compute.

    Raises:
        GraphError: if the factory cannot be called in either way.
    """

    def __init__(
        self,
        factory: Callable[..., Iterable[Any]],
        bounded: bool = True,
        blocking: bool = True,
    ) -> None:
        self.factory = factory
        self.bounded = bounded
        self.blocking = blocking
        self.shared = not _takes_subtask(factory)

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator of one split per reader, or of one for a shared factory."""
        splits = 1 if self.shared else parallelism
        return SubtaskEnumerator([[i, splits] for i in range(splits)], parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of one iterable at a time."""
        return _IterableReader(self, f"penstock-pump-{context.uid}-{context.subtask}")


def _takes_subtask(factory: Callable[..., Any]) -> bool:
    """Return whether the factory takes (subtask, parallelism); raise if neither fits."""
    if not callable(factory):
        raise GraphError(
            f"an iterable source needs a function that makes the iterable, not "
            f"{type(factory).__name__}: a restart must be able to make it again. "
            f"For a list use a collection source"
        )
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some builtins have none; those take no arguments
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
    """Read one iterable at a time, with the cursor for its kind."""

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
    """Read a sequence by slices."""

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
        """Do nothing: a sequence holds no resources."""


class _IteratorCursor:
    """Read an iterator that never waits, without a thread."""

    def __init__(self, iterator: Iterator[Any], start: int, policy: EmissionPolicy) -> None:
        self._iterator = iterator
        self._next = start
        self._policy = policy
        self._skipped = 0

    def read(self, max_records: int) -> Read:
        if self._skipped < self._next:
            # In pieces, so that a long skip does not hold up the task.
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
    """Run an iterator in a thread of its own, into a bounded buffer.

    The buffer is a list. Only the pump appends to it, and only the reader removes from it; each is
    one step under the interpreter lock. The condition is only for waiting, so a record costs an
    append and two comparisons. A side that is about to wait sets its flag *before* it checks the
    buffer. The other side checks the flag *after* it has changed the buffer. So no wake-up is
    lost.
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
        # With the context, log lines of the generator name the source.
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
        # Read this before the buffer: all records that the pump appended are then in the buffer.
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
        """Wake the reader and the pump. Do not wait for the pump, which may be blocked."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            self._pump()
        except BaseException as error:  # also SystemExit, which the reader raises
            self._error = error
        finally:
            # Not in close(): a running generator cannot be closed.
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
                    self._reader_waits = False  # one notification is enough
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
    """Skip records before `position`, at most a piece, and return their number."""
    count = min(_SKIP, position - skipped)
    if next(islice(iterator, count - 1, None), _NOTHING) is _NOTHING:
        raise _too_short(position)
    return count


def _close(iterator: Iterator[Any]) -> None:
    """Close a generator, so that it releases its resources."""
    close = getattr(iterator, "close", None)
    if close is not None:
        # The reader has ended, so no caller could handle a failed clean-up.
        with contextlib.suppress(Exception):
            close()


def _too_short(position: int) -> JobError:
    return JobError(
        f"the iterable has fewer records this time than the {position} that were consumed "
        f"before the snapshot: its factory must give the same records each time"
    )
