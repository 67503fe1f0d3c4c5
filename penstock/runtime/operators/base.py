"""Operators at work: each takes a list of records and returns a list of records.

Everything that happens per record is a loop of `loops.py` inside one `process`, over one batch;
the engine costs something per batch only. `iterator` is consumed in step with the user's function,
so that when an exception escapes, its length hint tells which record was at hand.

No trio, no channels: a chain is a tree of these, and `penstock.runtime.task.task` feeds it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from penstock.dataflow.errors import GraphError, JobError, PenstockError, Recoverability
from penstock.dataflow.functions import (
    Function,
    KeyedProcessFunction,
    ProcessFunction,
    has_end_input,
    method_of,
)
from penstock.dataflow.graph.job_graph import OperatorKind
from penstock.dataflow.reuse import EmissionGuard, own, own_local
from penstock.dataflow.sink import SinkWriter
from penstock.dataflow.state import RuntimeContext, ValueState, ValueStateDescriptor
from penstock.runtime.codegen.inliner import inlined, inlined_by_column, was_inlined
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import WIDEST, Columns, Records
from penstock.runtime.user_code.breakpoints import quit_message
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import is_user_error, raised_by_engine, user_traceback
from penstock.snapshot.state import MISSING, TOMBSTONE, KeyedBackend, KeyedTable

__all__ = ["OperatorContext", "RunningOperator", "SinkOperator", "make_operator"]

#: What Python says if a function returned something that cannot be gone through.
_NOT_ITERABLE = re.compile(r"'([\w.]+)' object is not iterable$")
#: So many keys, or records, of an end-of-input hook are handled in one step of the task.
HOOK_BATCH = 1024


class OperatorContext(RuntimeContext):
    """What an operator knows of where it runs; also the user's `RuntimeContext`.

    Arguments:
        name, uid: of the operator.
        subtask, parallelism, max_parallelism, attempt: where it runs.
        codec: copies and encodes records.
        backend: its keyed state, if it has any.
    """

    def __init__(
        self,
        name: str,
        uid: str,
        subtask: int,
        parallelism: int,
        max_parallelism: int,
        attempt: int,
        codec: Codec,
        backend: KeyedBackend | None = None,
    ) -> None:
        self.name, self.uid = name, uid
        self.subtask, self.parallelism = subtask, parallelism
        self.max_parallelism, self.attempt = max_parallelism, attempt
        self.codec = codec
        self.backend = backend
        #: The key of the record at hand, in a keyed process function.
        self.key: Any = None

    def get_task_name(self) -> str:
        """Name of the operator."""
        return self.name

    def get_number_of_parallel_subtasks(self) -> int:
        """How many subtasks the operator has."""
        return self.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""
        return self.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Which of them this is, from 0."""
        return self.subtask

    def get_attempt_number(self) -> int:
        """How often the job has been started before, from 0."""
        return self.attempt

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """The state with that name. `GraphError` outside a keyed stream."""
        if self.backend is None:
            raise GraphError(
                f"operator {self.name!r} asked for state {state_descriptor.name!r}, but keyed "
                f"state exists only on a keyed stream: use key_by(...).process(...)"
            )
        table = self.backend.table(state_descriptor.name)
        # A user's function does with it what it likes.
        table.only_immutable = False
        return _ValueState(table, self)


class _ValueState(ValueState):
    """A value state over a table of the backend."""

    def __init__(self, table: KeyedTable, context: OperatorContext) -> None:
        self._table = table
        self._context = context

    # Both are called once per record, so what is usual comes first and is one look-up.

    def value(self) -> Any:
        value = self._table.dirty.get(self._context.key)
        if value is None:  # which no level holds
            value = self._table.lookup(self._context.key)
            return None if value is MISSING else value
        return None if value is TOMBSTONE else value

    def update(self, value: Any) -> None:
        if value is None:
            value = TOMBSTONE
        self._table.dirty[self._context.key] = value

    def clear(self) -> None:
        self._table.dirty[self._context.key] = TOMBSTONE


class RunningOperator(ABC):
    """One operator in one task.

    Arguments:
        function: the user's function object or callable.
        context: where it runs.
    """

    #: Whether what it processes may be `Columns`.
    takes_columns = False
    #: The user's method whose result is gone through for records, if there is one.
    emits = ""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        self.function = function
        self.context = context
        self.iterator: Any = None
        self.records_in = 0
        self.records_out = 0
        #: Its end-of-input hook is running.
        self.in_end_of_input_hook = False

    def open(self) -> None:
        """Open the user's function."""
        if isinstance(self.function, Function):
            self.function.open(self.context)

    def close(self) -> None:
        """Close the user's function."""
        if isinstance(self.function, Function):
            self.function.close()

    @abstractmethod
    def process(self, records: Any) -> list[Any]:
        """What the operator emits for records, which are a list; or `Columns`, if it takes them."""

    def end_input(self) -> Iterator[list[Any]]:
        """What the user's function emits when the input has ended, piece by piece."""
        if not has_end_input(self.function):
            return
        self.in_end_of_input_hook = True
        operator_at_work.set(self.context)
        for records in self._end_input():
            if records:
                yield records
                operator_at_work.set(self.context)
        self.in_end_of_input_hook = False

    def hint(self, error: BaseException) -> str:
        """Return what to do about an error that the engine raised for what a function returned."""
        found = _NOT_ITERABLE.match(str(error)) if type(error) is TypeError else None
        if found is None or not self.emits or not raised_by_engine(error):
            return ""
        what, kind = "end_input" if self.in_end_of_input_hook else self.emits, found[1]
        article = "an" if kind[0] in "aeiou" else "a"
        return f": {what} returned {article} {kind}; yield it, or return a list"

    def _end_input(self) -> Iterator[list[Any]]:
        """What the function's `end_input` emits; for operators whose functions may have one."""
        yield from ()


class RecordLoopOperator(RunningOperator):
    """An operator that is one of the loops.

    Its `_loop` has the user's expressions in it where they are known, and `_plain` has not.
    """

    takes_columns = True
    _plain: Callable[..., list[Any]]
    _functions: dict[str, Any]
    _loop: Callable[..., list[Any]]
    #: By the width of tuples, the loop over their items; None if that would hardly be quicker.
    _loops: dict[int, Callable[..., list[Any]] | None]

    def _set_loop(self, plain: Callable[..., list[Any]], **functions: Any) -> None:
        """The loop is `plain`; the functions are for its first parameters, in their order."""
        self._plain, self._functions, self._loops = plain, functions, {}
        self._loop = partial(inlined(plain, **functions), *functions.values())

    def plainly(self, record: Any, *arguments: Any) -> list[Any]:
        """What is made of one record by calling the user's functions."""
        return self._plain(*self._functions.values(), iter([record]), *arguments)

    def _over_items(self, width: int) -> Callable[..., list[Any]] | None:
        if width > WIDEST:
            return None
        if width not in self._loops:
            loop = inlined_by_column(self._plain, width, **self._functions)
            given = self._functions.values()
            self._loops[width] = None if loop is None else partial(loop, *given)
        return self._loops[width]

    def _go_through(self, records: Records, *arguments: Any) -> list[Any]:
        """Run the loop over the records."""
        loop = self._loop
        if isinstance(records, Columns):
            found = self._over_items(len(records.columns))
            if found is None:
                records = records.rows()
            else:
                loop = found
        rows: Iterator[Any]
        if isinstance(records, Columns):
            first, *others = records.columns
            iterator = iter(first)
            rows = zip(iterator, *others, strict=False)
        else:
            rows = iterator = iter(records)
        self.iterator = iterator
        try:
            return loop(rows, *arguments)
        except BaseException as error:
            if was_inlined(error):
                self._raise_again(records, arguments)
            raise

    def _raise_again(self, records: Records, arguments: tuple[Any, ...]) -> None:
        """Have the user's own function raise, so that the traceback has its line."""
        index = current_index(self.iterator, records)
        if index is not None:
            try:
                self.plainly(records[index], *arguments)
            except BaseException as error:
                raise error from error.__cause__


class MapOperator(RecordLoopOperator):
    """One record for each."""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self.called = method_of(function, "map")
        self._guard = EmissionGuard(self.called)
        self._nothing = _what_has_no_hash(context)
        self._set_loop(loops.map_records, function=self.called)

    def process(self, records: Records) -> list[Any]:
        """The mapped records."""
        guard = self._guard
        if not (guard.watching or guard.changes):
            return guard.seen(self._go_through(records))
        rows = records.rows() if isinstance(records, Columns) else records
        self.iterator = iterator = iter(rows)
        if guard.watching:
            return guard.seen(guard.map(self.called, iterator, rows))
        return guard.seen(loops.own_map_records(self.called, iterator, self._nothing))


class FlatMapOperator(RecordLoopOperator):
    """Any number of records for each."""

    emits = "flat_map"

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self.called = method_of(function, "flat_map")
        self._set_loop(loops.flat_map_records, function=self.called)
        self._guard = EmissionGuard(self.called)
        self._nothing = _what_has_no_hash(context)

    def process(self, records: Records) -> list[Any]:
        """All records of what the function returned, in order."""
        guard = self._guard
        if not (guard.watching or guard.changes):
            return guard.seen(self._go_through(records))
        rows = records.rows() if isinstance(records, Columns) else records
        self.iterator = iterator = iter(rows)
        nothing = None if guard.watching else self._nothing
        return guard.seen(loops.emit_records(self.called, iterator, (), nothing, guard.items))


class FilterOperator(RecordLoopOperator):
    """Some of the records."""

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._set_loop(loops.filter_records, function=method_of(function, "filter"))

    def process(self, records: list[Any]) -> list[Any]:
        """Those for which the function is true."""
        return self._go_through(records)


class ProcessOperator(RunningOperator):
    """A `ProcessFunction`."""

    emits = "process_element"

    class _Context(ProcessFunction.Context):
        pass

    def __init__(self, function: Any, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._guard = EmissionGuard(function.process_element)
        self._nothing = _what_has_no_hash(context)

    def process(self, records: list[Any]) -> list[Any]:
        """All that the function emitted."""
        self.iterator = iterator = iter(records)
        guard, call, shown = self._guard, self.function.process_element, self._Context()
        if not (guard.watching or guard.changes):
            return guard.seen([out for record in iterator for out in call(record, shown) or ()])
        nothing = None if guard.watching else self._nothing
        return guard.seen(loops.emit_records(call, iterator, (shown,), nothing, guard.items))

    def _end_input(self) -> Iterator[list[Any]]:
        return _batched(map(own, self.function.end_input(self._Context()) or ()))


def _what_has_no_hash(context: OperatorContext) -> Any:
    """Return what `in` raises `TypeError` for, if the value on its left may be able to change."""
    # None is no container, so that each value has to be looked at.
    return {} if context.codec.hash_implies_immutable else None


class KeyedOperator(RecordLoopOperator):
    """An operator with keyed state; always the first of its chain.

    A record that is also state (what `reduce` emits) must not change under its receivers, so
    mutable ones are copied. *Mutable* is what has no hash, which is checked at the record, before
    the function can touch it again. Classes that are hashable and mutable all the same are in
    the codec's table, and with them every record is looked at.
    """

    STATE = "value"

    def __init__(self, function: Any, context: OperatorContext, key_of: Callable[[Any], Any]):
        super().__init__(function, context)
        assert context.backend is not None
        self.backend = context.backend
        self._key_of = key_of
        self._nothing = _what_has_no_hash(context)


class KeyedReduceOperator(KeyedOperator):
    """The running combination of each key's records."""

    def open(self) -> None:
        """Open the function and ask for the state, which is restored by now."""
        self._table = self.backend.table(self.STATE)
        self._table.expect_immutable()
        super().open()
        combine = method_of(self.function, "reduce")
        self._set_loop(loops.reduce_records, key_of=self._key_of, combine=combine)

    def copied(self, record: Any) -> Any:
        """A copy of a mutable record, which is in the state by now."""
        self._table.only_immutable = False
        return self.context.codec.copy_mutable([record])[0]

    def process(self, records: list[Any]) -> list[Any]:
        """The new value of each record's key."""
        table = self._table
        return self._go_through(records, table.dirty, table.get, self._nothing, self.copied)


class KeyedCountOperator(KeyedOperator):
    """The running number of each key's records."""

    def open(self) -> None:
        """Ask for the state, which is restored by now."""
        self._table = self.backend.table(self.STATE)
        self._table.expect_immutable()
        self._set_loop(loops.count_records, key_of=self._key_of)

    def process(self, records: list[Any]) -> list[Any]:
        """A pair (key, count) for each record."""
        return self._go_through(records, self._table.dirty, self._table.get)


class KeyedProcessOperator(KeyedOperator):
    """A `KeyedProcessFunction`."""

    emits = "process_element"

    class _Context(KeyedProcessFunction.Context):
        def __init__(self, context: OperatorContext) -> None:
            self._context = context

        def get_current_key(self) -> Any:
            return self._context.key

    def open(self) -> None:
        """Open the function."""
        super().open()
        function = self.function.process_element
        self._set_loop(loops.process_records, key_of=self._key_of, function=function)

    def process(self, records: list[Any]) -> list[Any]:
        """All that the function emitted."""
        shown = self._Context(self.context)
        return self._go_through(records, self.context, shown, self._nothing, own_local)

    def _end_input(self) -> Iterator[list[Any]]:
        """What the function emits for each key that has state."""
        context, shown = self.context, self._Context(self.context)
        for keys in _batched(self.backend.keys()):
            out: list[Any] = []
            for context.key in keys:
                out += map(own, self.function.end_input(shown) or ())
            yield out


class SinkOperator(RecordLoopOperator):
    """Hands records to a sink's writer.

    Arguments:
        writer: the sink's writer.
    """

    def __init__(self, writer: SinkWriter, context: OperatorContext) -> None:
        super().__init__(None, context)
        self.writer = writer
        self.takes_columns = writer.per_record is not None
        if writer.per_record is not None:
            self._set_loop(loops.call_records, function=writer.per_record)

    def process(self, records: list[Any]) -> list[Any]:
        """Write; nothing is emitted."""
        if self.writer.per_record is not None:
            return self._go_through(records)
        self.writer.write(records)
        return []

    def flush(self) -> None:
        """Hand on what the writer holds."""
        try:
            self.writer.flush()
        except BaseException as error:
            raise to_job_error(error, self, []) from error

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Cut the writer's output at a barrier."""
        try:
            return self.writer.prepare(snapshot)
        except BaseException as error:
            raise to_job_error(error, self, []) from error

    def close(self) -> None:
        """Close the writer."""
        self.writer.close()


class SourceOperator(RunningOperator):
    """Stands at the head of a source's chain; the task reads, this only passes on."""

    def process(self, records: list[Any]) -> list[Any]:
        """The same records."""
        return records


def _batched(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(islice(iterator, HOOK_BATCH)):
        yield batch


_SIMPLE: dict[OperatorKind, Callable[[Any, OperatorContext], RunningOperator]] = {
    OperatorKind.SOURCE: SourceOperator,
    OperatorKind.MAP: MapOperator,
    OperatorKind.FLAT_MAP: FlatMapOperator,
    OperatorKind.FILTER: FilterOperator,
    OperatorKind.PROCESS: ProcessOperator,
}
_KEYED: dict[OperatorKind, Callable[..., RunningOperator]] = {
    OperatorKind.KEYED_REDUCE: KeyedReduceOperator,
    OperatorKind.KEYED_COUNT: KeyedCountOperator,
    OperatorKind.KEYED_PROCESS: KeyedProcessOperator,
}


def make_operator(
    kind: OperatorKind, function: Any, key_selector: Any, context: OperatorContext
) -> RunningOperator:
    """Make an operator other than a sink."""
    if kind in _SIMPLE:
        return _SIMPLE[kind](function, context)
    return _KEYED[kind](function, context, method_of(key_selector, "get_key"))


def current_index(iterator: Iterator[Any] | None, records: Records) -> int | None:
    """Which of the records was being processed, if it can be told."""
    hint = getattr(iterator, "__length_hint__", None)
    if hint is None:
        return None
    index: int = len(records) - hint() - 1
    return index if 0 <= index < len(records) else None


def current_record(iterator: Iterator[Any] | None, records: Records) -> str | None:
    """A short rendering of the record that was being processed, if it can be told."""
    index = current_index(iterator, records)
    if index is None:
        return None
    try:
        text = repr(records[index])
    except BaseException as error:  # the user's own __repr__ may fail, too
        text = f"<{type(records[index]).__name__} whose repr fails: {error}>"
    return text if len(text) <= 500 else f"{text[:500]}… ({len(text)} characters)"


def to_job_error(
    error: BaseException, operator: RunningOperator, records: Records, place: str | None = None
) -> JobError:
    """Return a user's exception as a `JobError` that names operator and record.

    Raises the exception itself if it is none of user code.

    Arguments:
        error: what was raised.
        operator: the operator at work.
        records: those that it was given, or emitted.
        place: what else failed, such as the key of the next operator.
    """
    if not is_user_error(error):
        raise error
    record = current_record(operator.iterator, records)
    if isinstance(error, JobError):
        error.operator = error.operator or place or operator.context.name
        error.record = error.record or record
        # The caller raises it from itself, which hides the cause that this may come from.
        error.recoverability = error.recoverability
        return error
    recoverability = error.recoverability if isinstance(error, PenstockError) else None
    if quit := quit_message(error):
        message, recoverability = quit, Recoverability.NON_RECOVERABLE
    elif isinstance(error, PenstockError):  # such as `get_state` in an `open` outside of keys
        message = str(error)
    elif place is not None:
        message = f"{type(error).__name__} in the {place}"
    else:
        message = f"{type(error).__name__} in operator {operator.context.name!r}"
        message += operator.hint(error)
    return JobError(
        message,
        operator=place or operator.context.name,
        record=record,
        user_traceback=user_traceback(error),
        recoverability=recoverability,
    )
