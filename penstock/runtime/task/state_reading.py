"""Read the keyed state of a running task: `TaskStateReader`, and its activity `StateReading`.

A query is answered in steps between two batches. A step takes about a millisecond, and then the
task processes records for some milliseconds. So a scan takes a bounded share of the task's time.

A read changes nothing: it moves no entry between the levels of a table, and marks none as changed.
Each entry is returned as it is when it is read. So a scan that takes several steps returns entries
of different times.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control import messages as m
from penstock.runtime.control.state_queries import REFUSED, UNKNOWN
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.serialization.entry_fields import entry_parts, field_of, full_name, is_bounds
from penstock.runtime.task.activities.activity import Activity
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.state.entries import MISSING
from penstock.snapshot.state.table.composite_table import CompositeTable
from penstock.snapshot.state.table.keyed_table import KeyedTable

#: The number of entries of a subtask that a query reads at most. A state with more is scanned in a
#: snapshot, which costs the job nothing.
MAX_READ = 250_000
#: The number of entries that are read between two looks at the clock.
_PAGE = 256
#: The number of entries among which those of one key are searched between two such looks.
_SEARCHED = 4096
#: The duration of a step, in seconds, and how many times as long the task does something else.
_STEP_SECONDS, _PAUSE = 0.001, 4

_Entry = tuple[Any, Any]


class QueryRefused(Exception):
    """A query cannot be answered.

    Arguments:
        problem: one of `state_queries.PROBLEMS`.
        reason: a sentence for the user.
    """

    def __init__(self, problem: str, reason: str) -> None:
        super().__init__(reason)
        self.problem, self.reason = problem, reason


class TaskStateReader:
    """Reads one query from the keyed state of one operator, in steps.

    Arguments:
        query: the query.
        operator: the operator.
        backend: its keyed state.
    """

    def __init__(
        self, query: m.ReadState, operator: RunningOperator, backend: KeyedBackend
    ) -> None:
        self._query, self._backend, self._codec = query, backend, backend.codec
        self._name = operator.name
        if not operator.keeps_state_in_tables:
            raise QueryRefused(
                REFUSED,
                f"the operator {operator.name!r} keeps its state in arrays, and writes it at "
                f"snapshots only: query the snapshot, without `live`",
            )
        name = full_name(query.state, backend.tables.names)
        if name not in backend.tables.names:
            raise QueryRefused(UNKNOWN, "\n".join(backend.tables.names))
        self._table = backend.tables.named(name)
        self._kind, self._by = self._table.kind, query.by.split(".")
        #: The entries that were found so far, and whether there are more.
        self._found: list[_Entry] = []
        self._more = False

    def run(self) -> Iterator[None]:
        """Read the entries. Each step of the iterator reads a page."""
        query = self._query
        if query.keys:
            for data in query.keys:
                yield from self._read_key(self._codec.decode_value(data))
                if self._found:
                    break
        else:
            for page in _pages(self._backend, self._table):
                if self._take(page):
                    break
                yield

    def answer(self) -> m.StateRead:
        """Return the answer, when all entries were read."""
        sample = b""
        if self._query.keys and not self._found:
            first = next(_pages(self._backend, self._table), [])
            sample = self._codec.encode_value(first[0][0]) if first else b""
        encode = self._codec.encode_value
        return m.StateRead(
            self._query.chain,
            self._query.subtask,
            self._query.id,
            kind=self._kind.value,
            expires=self._table.expires,
            entries=[[encode(key), encode(value)] for key, value in self._found],
            sample=sample,
            more=self._more,
        )

    def _read_key(self, key: Any) -> Iterator[None]:
        table = self._table
        if not table.is_composite:
            value = table.peek(key)
            if value is not MISSING:
                self._found.append((key, value))
            return
        assert isinstance(table, CompositeTable)
        for page in _entries_of(table, key):
            self._take(page)
            if self._more:
                return
            yield

    def _take(self, page: list[_Entry]) -> bool:
        """Keep the wanted entries of a page. Return whether no others are wanted."""
        query, found = self._query, self._found
        page = [entry for entry in page if not is_bounds(self._kind, entry[0])]
        if query.prefix is not None:
            key_of = self._table.key_of
            keys = ((key_of(entry[0]), entry) for entry in page)
            page = [e for k, e in keys if isinstance(k, str) and k.startswith(query.prefix)]
        found += page
        if query.top:
            ranked = [(rank, entry) for entry in found if (rank := self._rank(entry)) is not None]
            try:
                best = heapq.nlargest(query.top, ranked, key=lambda one: one[0])
            except TypeError as error:
                raise QueryRefused(
                    REFUSED,
                    f"the values of {query.by} cannot be compared ({error}); name a field of one "
                    f"type",
                ) from None
            found[:] = [entry for _, entry in best]
        elif len(found) > query.limit:
            self._more = True
            del found[query.limit :]
            return True
        return False

    def _rank(self, entry: _Entry) -> Any:
        """Return the value by which an entry is ranked; None if it has none."""
        key, value = entry
        last_used = None
        if self._table.expires:
            value, last_used = value
        first, part = entry_parts(self._kind, key)
        fields = {"key": first, "part": part, "value": value, "last_used_ms": last_used}
        return field_of(fields.get(self._by[0]), self._by[1:])


def _pages(backend: KeyedBackend, table: KeyedTable) -> Iterator[list[_Entry]]:
    """Yield the entries of a table in pages, each entry once.

    The table may change between two pages. Entries that are added meanwhile may be left out.

    Raises:
        QueryRefused: if the table has more than `MAX_READ` entries.
    """
    levels = _levels(table, MAX_READ + 1)
    in_database = table.has_cold
    seen: set[object] | None = set() if len(levels) > 1 or in_database else None
    read = 0
    for keys in levels:
        for begin in range(0, len(keys), _PAGE):
            some = keys[begin : begin + _PAGE]
            if seen is not None:
                some = [key for key in some if key not in seen]
                seen.update(some)
            read += len(some)
            values = ((key, table.peek(key)) for key in some)
            yield [entry for entry in values if entry[1] is not MISSING]
            _require_few(read)
    cursor: bytes | None = b"" if in_database else None
    while cursor is not None:
        page, cursor = backend.cold_page(table, cursor, _PAGE)
        found = []
        for key, value in page:
            if seen is None or key not in seen:
                hot = table.hot_value(key)
                found.append((key, value if hot is MISSING else table.peek(key)))
        read += len(found)
        yield [entry for entry in found if entry[1] is not MISSING]
        _require_few(read)


def _entries_of(table: CompositeTable, key: object) -> Iterator[list[_Entry]]:
    """Yield the entries of one key of a composite table in pages, each entry once."""
    seen: set[object] = set()
    for keys in _levels(table, None):
        for begin in range(0, len(keys), _SEARCHED):
            some = [one for one in keys[begin : begin + _SEARCHED] if one[0] == key]
            values = ((one, table.peek(one)) for one in some if one not in seen)
            yield [entry for entry in values if entry[1] is not MISSING]
            seen.update(some)
    yield [entry for entry in table.peek_cold(key) if entry[0] not in seen]


def _levels(table: KeyedTable, limit: int | None) -> list[list[Any]]:
    """Return the keys of the levels in memory, the newest level first.

    To copy the keys takes a few nanoseconds for each. The levels may change afterwards.
    """
    levels = (table.dirty, *reversed(table.captured), table.clean)
    return [list(islice(level, limit)) for level in levels if level]


def _require_few(read: int) -> None:
    if read >= MAX_READ:
        raise QueryRefused(
            REFUSED,
            f"a subtask has more than {MAX_READ:,} entries, which a live query does not read: ask "
            f"for a key, or query the snapshot, without `live`",
        )


class StateReading(Activity):
    """Answers queries of the task's keyed state, between two batches.

    Arguments:
        operators: the operators of the task, by their uids.
        backends: their keyed state, by the same uids.
        timer: returns a precise time in seconds, for the duration of steps.
        clock: returns the time in seconds, for waiting.
    """

    needs_credits = False

    def __init__(
        self,
        operators: Mapping[str, RunningOperator],
        backends: Mapping[str, KeyedBackend],
        timer: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._operators, self._backends = operators, backends
        self._timer, self._clock = timer, clock
        self._queue: deque[tuple[m.ReadState, Callable[[m.StateRead], None]]] = deque()
        #: The query that is being answered, and the iterator of its steps.
        self._reader: TaskStateReader | None = None
        self._steps: Iterator[None] = iter(())
        #: The time before which the next step must not begin.
        self._next = 0.0

    def ask(self, query: m.ReadState, answer: Callable[[m.StateRead], None]) -> None:
        """Add a query.

        Arguments:
            query: the query.
            answer: called with the answer.
        """
        self._queue.append((query, answer))

    def ready(self) -> bool:
        """Return whether a step of a query is due."""
        return bool(self._queue) and self._clock() >= self._next

    def wake_at(self) -> float | None:
        """Return the time of the next step."""
        return self._next if self._queue else None

    def step(self) -> bool:
        """Read entries for about a millisecond."""
        began = self._timer()
        query, answer = self._queue[0]
        try:
            if self._reader is None:
                self._reader = self._open(query)
                self._steps = self._reader.run()
            while True:
                if next(self._steps, self) is self:
                    found = self._reader.answer()
                    break
                if self._timer() - began >= _STEP_SECONDS:
                    self._next = self._clock() + _PAUSE * (self._timer() - began)
                    return True
        except QueryRefused as error:
            found = _refused(query, error.problem, error.reason)
        except PenstockError as error:
            found = _refused(query, REFUSED, f"the state cannot be read: {error}")
        self._queue.popleft()
        self._reader, self._steps = None, iter(())
        answer(found)
        return True

    def _open(self, query: m.ReadState) -> TaskStateReader:
        backend = self._backends.get(query.operator)
        if backend is None:
            raise QueryRefused(
                REFUSED,
                f"the operator {query.operator!r} has no keyed state: query the snapshot, without "
                f"`live`",
            )
        return TaskStateReader(query, self._operators[query.operator], backend)


def _refused(query: m.ReadState, problem: str, reason: str) -> m.StateRead:
    return m.StateRead(query.chain, query.subtask, query.id, problem=problem, reason=reason)
