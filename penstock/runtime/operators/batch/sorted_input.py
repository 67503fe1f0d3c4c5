"""Process the input of an operator when it has ended: one key after the other.

(Flink: sorted inputs, and `BatchExecutionInternalTimeService`.)
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import count, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK, NO_TIMESTAMP
from penstock.runtime.operators.base import HOOK_BATCH, RunningOperator
from penstock.runtime.operators.batch.record_sorter import RecordSorter, SortedRecord
from penstock.runtime.operators.building import Builder, OperatorPlace
from penstock.runtime.operators.time.operator_timers import OperatorTimers
from penstock.runtime.operators.time.timer_queue import TimerQueue
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error

KeyOf = Callable[[Any], Any]
_key = attrgetter("key")
_input = attrgetter("input")
#: The memory for sorting in an operator without keyed state, in bytes.
_UNKEYED_BYTES = 64 * 1024 * 1024


_LOGGER = logging.getLogger("penstock")


class EndingTimerQueue(TimerQueue):
    """A queue that ignores further timers while its timers fire."""

    _refusing = False
    _refused = False

    def refuse(self, refusing: bool) -> None:
        """Set whether further timers are ignored."""
        self._refusing = refusing

    def register(self, key: Any, namespace: Any, time: int) -> None:
        """Register a timer, unless the timers fire."""
        if not self._refusing:
            super().register(key, namespace, time)
        elif not self._refused:
            self._refused = True
            at_work = operator_at_work.get()
            _LOGGER.warning(
                "operator %r registered a timer while its last timers fired: it does not fire, "
                "because the input has ended (batch mode)",
                None if at_work is None else at_work.name,
            )


class EndingTimers(OperatorTimers):
    """Timers that fire when the input of a key has ended.

    The argument is that of `OperatorTimers`.
    """

    _queue_class = EndingTimerQueue

    @contextmanager
    def refusing_others(self) -> Iterator[None]:
        """Ignore timers that are registered within the `with` block."""
        queues = [self._event, self._processing]
        for queue in queues:
            if isinstance(queue, EndingTimerQueue):
                queue.refuse(True)
        try:
            yield
        finally:
            for queue in queues:
                if isinstance(queue, EndingTimerQueue):
                    queue.refuse(False)


class FinalTimers(RunningOperator):
    """A mixin for operators of batch mode, in which time does not advance before the end.

    All timers fire when the input has ended, those of processing time, too.
    """

    _fired = False

    def open(self) -> None:
        """Open the function, whose timers fire at the end only."""
        context = self.context
        if context.backend is not None:
            self._ending = EndingTimers(context.backend)
            context.use_timers(self._ending)
        super().open()

    def next_processing_time(self) -> int | None:
        """Return None: no timer fires before the end of the input."""
        return None

    def advance_watermark(self, timestamp: int) -> Iterator[RecordBatch]:
        """Fire all timers, if the input has ended."""
        if timestamp == MAX_WATERMARK and not self._fired:
            self._fired = True
            yield from self._finish_input()

    def _finish_input(self) -> Iterator[RecordBatch]:
        yield from self._fire_all()

    def _fire_all(self) -> Iterator[RecordBatch]:
        """Fire the timers of all keys, and yield their results."""
        if self.context.backend is None:
            return
        # As in Flink, a timer that a timer of a function registers does not fire. Otherwise a
        # function that always registers another timer would not end.
        with nullcontext() if self.schedules_timers else self._ending.refusing_others():
            yield from super().advance_watermark(MAX_WATERMARK)
            for piece in super().advance_processing_time(MAX_WATERMARK):
                if isinstance(piece, RecordBatch):
                    yield piece


class SortedInput(FinalTimers):
    """A mixin for operators that process their input sorted by key and event time.

    So the state of few keys exists at the same time. A key's timers fire behind its last record,
    and then its state is removed.
    """

    _key_of_input: Sequence[KeyOf | None]
    _kept: frozenset[int]

    def sort(self, key_of_input: Sequence[KeyOf | None], kept: Sequence[int]) -> Self:
        """Set how the input is sorted, and return the operator. Called once, before `open`.

        Arguments:
            key_of_input: for each input, a function that returns the key of a record. None keeps
                the order of arrival.
            kept: the inputs that are sorted. Records of others are processed when they come.
        """
        self._key_of_input, self._kept = key_of_input, frozenset(kept)
        self._input = 0
        self._numbers = count()
        #: Whether a record has had an event time.
        self._timed = False
        context, backend = self.context, self.context.backend
        if backend is None:
            folder, memory = Path(tempfile.gettempdir()), _UNKEYED_BYTES
        else:
            folder, memory = backend.storage.folder / "sort", backend.memory.budget_bytes // 2
        self._sorter = RecordSorter(context.codec, folder, memory)
        return self

    def select_input(self, input: int) -> None:
        """Set the input of the next batches."""
        self._input = input
        super().select_input(input)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Keep a batch until the input has ended."""
        if self._input not in self._kept:
            return super().process(batch)  # type: ignore[safe-super]
        rows = batch.rows()
        key_of = self._key_of_input[self._input]
        if key_of is None:
            keys = [number.to_bytes(8) for number, _ in zip(self._numbers, rows, strict=False)]
        else:
            self.iterator = iter(rows)
            keys = [canonical(key_of(record)) for record in self.iterator]
        times = batch.timestamps
        self._timed |= times is not None
        self._sorter.add(keys, times or [NO_TIMESTAMP] * len(rows), self._input, rows)
        return EMPTY

    def close(self) -> None:
        """Close the function, and the files."""
        super().close()
        self._sorter.close()

    def _finish_input(self) -> Iterator[RecordBatch]:
        chunk: list[SortedRecord] = []
        for _, records in groupby(self._sorter.sorted(), _key):
            for record in records:
                chunk.append(record)
                # The timers of a key fire behind its last record only.
                if len(chunk) >= 2 * HOOK_BATCH:
                    yield from self._process_sorted(chunk)
                    chunk = []
            if len(chunk) >= HOOK_BATCH:
                yield from self._process_sorted(chunk)
                chunk = []
                yield from self._end_keys()
        yield from self._process_sorted(chunk)
        yield from self._end_keys()

    def _process_sorted(self, chunk: list[SortedRecord]) -> Iterator[RecordBatch]:
        self.context.set_watermark(MIN_WATERMARK)
        for input, records in groupby(chunk, _input):
            part = list(records)
            times = [one.timestamp for one in part] if self._timed else None
            batch = RecordBatch([one.record for one in part], None, times)
            self.select_input(input)
            try:
                out = super().process(batch)  # type: ignore[safe-super]
            except BaseException as error:
                raise to_job_error(error, self, batch) from error
            yield out
        self.context.set_watermark(MAX_WATERMARK)

    def _end_keys(self) -> Iterator[RecordBatch]:
        """Fire the timers of the keys that have been processed, and remove their state."""
        yield from self._fire_all()
        self.drop_timers()
        yield from self.end_input()
        backend = self.context.backend
        if backend is not None:
            backend.clear()


def with_final_timers(build: Builder, place: OperatorPlace) -> RunningOperator:
    """Build an operator all of whose timers fire when its input has ended."""
    return build(replace(place, adapted=partial(_combined, FinalTimers)))


def with_sorted_input(build: Builder, place: OperatorPlace) -> RunningOperator:
    """Build an operator whose inputs are sorted as its specification says."""
    made: Any = build(replace(place, adapted=partial(_combined, SortedInput)))
    operator: SortedInput = made
    return operator.sort(place.keys, place.spec.sorted_inputs)


@cache
def _combined(mixin: type[FinalTimers], cls: type[Any]) -> type[Any]:
    return type(f"{mixin.__name__}{cls.__name__}", (mixin, cls), {})
