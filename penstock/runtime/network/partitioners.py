"""Distribute the records of one link over its output channels.

A partitioner appends a list of records to the buffers of its output channels in one loop. It never
waits. The output channels make batches of their buffers and send them later.

`docs/inside/decisions/009-routing-by-key.md` has the reasons and the figures.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

from penstock.dataflow.columns.column_key import ColumnKey
from penstock.dataflow.errors import JobError
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime import codegen
from penstock.runtime.network.column_router import ColumnRouter
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch, RecordBuffer

__all__ = [
    "BroadcastPartitioner",
    "CustomPartitioner",
    "ForwardPartitioner",
    "GlobalPartitioner",
    "HashPartitioner",
    "StreamPartitioner",
    "RebalancePartitioner",
    "ShufflePartitioner",
    "route_records",
    "route_timed_records",
]


class StreamPartitioner(ABC):
    """Distributes the records of one link over its output channels.

    Arguments:
        outputs: the output channels, in the order of the target subtasks.
    """

    def __init__(self, outputs: list[OutputChannel]) -> None:
        self.outputs = outputs
        #: The name of the partitioner's user code in errors, such as "key of Count"; None if it
        #: has no user code.
        self.place: str | None = None
        #: The iterator over the records that are being routed. After an error, its position shows
        #: which record caused the error.
        self.iterator: Any = None
        #: Whether a batch with event times has been routed. All later batches then have them, too.
        self._timed = False

    def name_user_code(self, place: str | None) -> None:
        """Set the name of the partitioner's user code that errors show."""
        self.place = place

    @abstractmethod
    def route(self, batch: RecordBatch) -> None:
        """Append each record to the buffers of the output channels that it belongs to.

        A batch with event times, and each batch behind it, must be passed to `_route_timed`.
        """

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append the rows of an Arrow batch to the output channels that they belong to.

        By default, they are appended as dicts.
        """
        self.route(batch)

    def _route_timed(self, batch: RecordBatch) -> None:
        """Append each record with its event time to the buffers that it belongs to."""
        if not self._timed:
            self._timed = True
            for output in self.outputs:
                output.pending.start_timestamps()
        self._append_timed(batch.rows(), batch.times())

    @abstractmethod
    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        """Append each record and its event time to the buffers that it belongs to."""


class ForwardPartitioner(StreamPartitioner):
    """Sends all records to the only output channel."""

    def route(self, batch: RecordBatch) -> None:
        """Append all records to the buffer of the only output channel."""
        if self._timed or batch.timestamps is not None:
            self._route_timed(batch)
            return
        records = batch.rows()
        self.outputs[0].buffer.extend(records)

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append an Arrow batch to the output channel."""
        self.outputs[0].append_arrow(batch)

    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        self.outputs[0].pending.extend_timed(records, timestamps)


class GlobalPartitioner(ForwardPartitioner):
    """Sends all records to the first subtask."""


class BroadcastPartitioner(StreamPartitioner):
    """Sends all records to every subtask.

    Arguments:
        copy: a function that returns a list of records in which the mutable records are copied.
    """

    def __init__(
        self, outputs: list[OutputChannel], copy: Callable[[list[Any]], list[Any]]
    ) -> None:
        super().__init__(outputs)
        self._copy = copy

    def route(self, batch: RecordBatch) -> None:
        """Append all records to the buffer of each output channel."""
        if self._timed or batch.timestamps is not None:
            self._route_timed(batch)
            return
        records = batch.rows()
        for output in self.outputs:
            output.buffer.extend(self._for_output(output, records))

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append an Arrow batch, which never changes, to each output channel."""
        for output in self.outputs:
            output.append_arrow(batch)

    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        for output in self.outputs:
            output.pending.extend_timed(self._for_output(output, records), timestamps)

    def _for_output(self, output: OutputChannel, records: list[Any]) -> list[Any]:
        # A consumer in this process may change its records. Other channels may encode the same
        # records later, and must not see the change.
        local = len(self.outputs) > 1 and isinstance(output, LocalOutputChannel)
        return self._copy(records) if local else records


class RebalancePartitioner(StreamPartitioner):
    """Distributes records to its output channels in turns.

    Each call of `route` continues where the last call ended. The rescale partitioning also uses
    this class.
    """

    def __init__(self, outputs: list[OutputChannel], start: int = 0) -> None:
        super().__init__(outputs)
        self._next = start % len(outputs)

    def route(self, batch: RecordBatch) -> None:
        """Append the records to the output channels in turns, one record each."""
        if self._timed or batch.timestamps is not None:
            self._route_timed(batch)
            return
        records = batch.rows()
        count = len(self.outputs)
        for offset in range(min(count, len(records))):
            self.outputs[(self._next + offset) % count].buffer.extend(records[offset::count])
        self._next = (self._next + len(records)) % count

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append one piece of an Arrow batch to each output channel."""
        count, size = len(self.outputs), batch.count
        pieces = min(count, size)
        for piece in range(pieces):
            part = batch.slice(piece * size // pieces, (piece + 1) * size // pieces)
            self.outputs[(self._next + piece) % count].append_arrow(part)
        self._next = (self._next + pieces) % count

    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        count = len(self.outputs)
        for offset in range(min(count, len(records))):
            pending = self.outputs[(self._next + offset) % count].pending
            pending.extend_timed(records[offset::count], timestamps[offset::count])
        self._next = (self._next + len(records)) % count


class ShufflePartitioner(StreamPartitioner):
    """Sends each record to an output channel that is chosen at random, uniformly."""

    def __init__(self, outputs: list[OutputChannel], rng: random.Random) -> None:
        super().__init__(outputs)
        self._rng = rng

    def route(self, batch: RecordBatch) -> None:
        """Append each record to an output channel that is chosen at random."""
        if self._timed or batch.timestamps is not None:
            self._route_timed(batch)
            return
        records = batch.rows()
        appends = [output.buffer.append for output in self.outputs]
        for append, record in zip(self._rng.choices(appends, k=len(records)), records, strict=True):
            append(record)

    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        chosen = self._rng.choices([output.pending for output in self.outputs], k=len(records))
        for pending, record, timestamp in zip(chosen, records, timestamps, strict=True):
            pending.append_timed(record, timestamp)


class _BufferOfKey(dict[Any, RecordBuffer]):
    """Caches the buffer of the output channel for each key.

    A missing key is added when it is looked up. When the cache has `MAX_KEYS` keys, it is cleared.
    The cache does not help a job whose keys never repeat.
    """

    MAX_KEYS = 1 << 18

    def __init__(self, find: Callable[[Any], RecordBuffer]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: Any) -> RecordBuffer:
        if len(self) >= self.MAX_KEYS:
            self.clear()
        pending = self[key] = self._find(key)
        return pending


def route_records(
    key_of: Callable[[Any], Any], iterator: Iterator[Any], pending: Mapping[Any, Any]
) -> None:
    """Append each record to the buffer of its key.

    The loop runs once per record. `penstock.runtime.codegen` compiles it again with the key
    selector inlined, and needs the selector as the first parameter. The loop looks up `append` for
    each record, because Python then appends without a function call.
    """
    for record in iterator:
        pending[key_of(record)].records.append(record)


def route_timed_records(
    key_of: Callable[[Any], Any],
    iterator: Iterator[Any],
    pending: Mapping[Any, Any],
    timestamps: list[int],
) -> None:
    """Append each record and its event time to the buffer of its key; see `route_records`."""
    for record, timestamp in zip(iterator, timestamps, strict=False):
        there = pending[key_of(record)]
        there.records.append(record)
        there.timestamps.append(timestamp)


class HashPartitioner(StreamPartitioner):
    """Distributes records by the key groups of their keys.

    A cache holds the buffer of each key, so the hash is computed once per key and not once per
    record. Equal keys have the same key group even if their types differ, because `canonical`
    follows Python's equality. So the cache needs only the key, without its type.

    Arguments:
        selector: a function that returns the key of a record.
        max_parallelism: the number of key groups.
        parallelism: the number of target subtasks; there is an output channel for each.
    """

    def __init__(
        self,
        outputs: list[OutputChannel],
        selector: Callable[[Any], Any],
        max_parallelism: int,
        parallelism: int,
    ) -> None:
        super().__init__(outputs)
        self.selector = selector
        self._max_parallelism, self._parallelism = max_parallelism, parallelism
        self._pending = [output.pending for output in outputs]
        self._buffer_of_key = _BufferOfKey(self._find)
        functions = {"key_of": selector}
        self._loop = codegen.specialize(route_records, functions) or route_records
        self._timed_loop: Callable[..., None] | None = None
        self._columns: ColumnRouter | None = None
        if isinstance(selector, ColumnKey):
            self._columns = ColumnRouter(selector.columns, self._subtask_of, parallelism)

    def route(self, batch: RecordBatch) -> None:
        """Append each record to the output channel of its key."""
        if self._timed or batch.timestamps is not None:
            self._route_timed(batch)
            return
        records = batch.rows()
        self.iterator = iterator = iter(records)
        try:
            self._loop(self.selector, iterator, self._buffer_of_key)
        except BaseException as error:
            self._check_current(error, records)
            raise
        self.iterator = None

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append the rows of an Arrow batch by the columns of their keys."""
        if self._columns is None or not isinstance(batch, ArrowBatch):
            self.route(batch)
            return
        for subtask, part in self._columns.split(batch):
            self.outputs[subtask].append_arrow(part)

    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        loop = self._timed_loop
        if loop is None:
            specialised = codegen.specialize(route_timed_records, {"key_of": self.selector})
            loop = self._timed_loop = specialised or route_timed_records
        self.iterator = iterator = iter(records)
        try:
            loop(self.selector, iterator, self._buffer_of_key, timestamps)
        except BaseException as error:
            self._check_current(error, records)
            raise
        self.iterator = None

    def _check_current(self, error: BaseException, records: list[Any]) -> None:
        """Raise the error that explains why the key of the current record is refused."""
        if isinstance(error, TypeError) or codegen.raised_by_generated_code(error):
            self._checked_key(records[len(records) - length_hint(self.iterator) - 1])

    def by_column(self, layout: Sequence[tuple[Any] | None]) -> Mapping[Any, Any]:
        """Replace the buffers of all output channels by buffers that hold columns.

        The buffers must be empty. Afterwards the caller appends to them and does not use `route`.

        Arguments:
            layout: the layout of the columns; see `ColumnBuffer`.

        Returns:
            A mapping from each key to its buffer.
        """
        self._pending = [output.buffer_columns(layout) for output in self.outputs]
        return self._buffer_of_key

    def refuse(self, record: Any) -> None:
        """Raise the error that routing a record would raise, without appending the record."""
        self._find(self._checked_key(record))

    def _find(self, key: Any) -> RecordBuffer:
        group = key_group(canonical(key), self._max_parallelism)
        return self._pending[subtask_of_key_group(group, self._max_parallelism, self._parallelism)]

    def _subtask_of(self, key: Any) -> int:
        group = key_group(canonical(key), self._max_parallelism)
        return subtask_of_key_group(group, self._max_parallelism, self._parallelism)

    def _checked_key(self, record: Any) -> Any:
        """Return the key of a record.

        Raise the error of the selector, or the error of `canonical` if the key has no hash.
        """
        try:
            key = self.selector(record)
        except BaseException as error:
            raise error from error.__cause__
        try:
            hash(key)
        except TypeError:
            canonical(key)
        return key


class CustomPartitioner(StreamPartitioner):
    """Distributes records with a partition function of the user.

    Arguments:
        selector: a function that returns the key of a record.
        partition: a function that takes a key and the number of subtasks, and returns the index of
            a subtask.
    """

    def __init__(
        self,
        outputs: list[OutputChannel],
        selector: Callable[[Any], Any],
        partition: Callable[[Any, int], int],
    ) -> None:
        super().__init__(outputs)
        self._selector = selector
        self._partition = partition

    def route(self, batch: RecordBatch) -> None:
        """Append each record to the output channel of its subtask.

        Raises:
            JobError: if the partition function returned an index that no subtask has.
        """
        if self._timed or batch.timestamps is not None:
            self._route_timed(batch)
            return
        records = batch.rows()
        for pending, record in self._chosen(records):
            pending.records.append(record)

    def _append_timed(self, records: list[Any], timestamps: list[int]) -> None:
        for (pending, record), timestamp in zip(self._chosen(records), timestamps, strict=True):
            pending.append_timed(record, timestamp)

    def _chosen(self, records: list[Any]) -> Iterator[tuple[RecordBuffer, Any]]:
        """Yield each record with the buffer of its subtask.

        Raises:
            JobError: if the partition function returned an index that no subtask has.
        """
        buffers, count = [output.pending for output in self.outputs], len(self.outputs)
        selector, partition = self._selector, self._partition
        self.iterator = iterator = iter(records)
        for record in iterator:
            index = partition(selector(record), count)
            if not 0 <= index < count:
                raise JobError(
                    f"the partitioner returned {index!r}; it must return a whole number from 0 "
                    f"to {count - 1}, the index of one of the {count} subtasks"
                )
            yield buffers[index], record
        self.iterator = None
