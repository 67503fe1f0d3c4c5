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

    def route(self, batch: RecordBatch) -> None:
        """Append each record to the buffers of the output channels that it belongs to.

        From the first batch with event times on, the buffers have them, too.
        """
        if batch.timestamps is not None and not self._timed:
            self.start_timestamps()
        self._append(batch.rows(), batch.times() if self._timed else None)

    @abstractmethod
    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        """Append each record to the buffers that it belongs to.

        Arguments:
            records: the records.
            timestamps: the event time of each record, or None if the buffers have no event times.
        """

    def start_timestamps(self) -> None:
        """Append event times to the buffers from now on."""
        if not self._timed:
            self._timed = True
            for output in self.outputs:
                output.pending.start_timestamps()

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append the rows of an Arrow batch to the output channels that they belong to.

        By default, they are appended as dicts.
        """
        self.route(batch)


class ForwardPartitioner(StreamPartitioner):
    """Sends all records to the only output channel."""

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append an Arrow batch to the output channel."""
        self.outputs[0].append_arrow(batch)

    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        self.outputs[0].pending.extend(records, timestamps)


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

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append an Arrow batch, which never changes, to each output channel."""
        for output in self.outputs:
            output.append_arrow(batch)

    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        for output in self.outputs:
            output.pending.extend(self._for_output(output, records), timestamps)

    def _for_output(self, output: OutputChannel, records: list[Any]) -> list[Any]:
        # A consumer in this process may change its records. Other channels may encode the same
        # records later, and must not see the change.
        local = len(self.outputs) > 1 and isinstance(output, LocalOutputChannel)
        return self._copy(records) if local else records


class PositionedPartitioner(StreamPartitioner):
    """Chooses outputs by how many records there were before, or by random numbers.

    If its position is restored, it sends the records that follow to the same outputs as before.
    How they are divided into batches makes no difference.
    """

    @property
    @abstractmethod
    def position(self) -> Any:
        """The position, as a value that the codec can encode."""

    @abstractmethod
    def restore_position(self, position: Any) -> None:
        """Continue from a position of a partitioner with as many outputs."""


class RebalancePartitioner(PositionedPartitioner):
    """Distributes records to its output channels in turns.

    Each call of `route` continues where the last call ended. The rescale partitioning also uses
    this class.
    """

    def __init__(self, outputs: list[OutputChannel], start: int = 0) -> None:
        super().__init__(outputs)
        self._next = start % len(outputs)

    @property
    def position(self) -> int:
        """The index of the output that gets the next record."""
        return self._next

    def restore_position(self, position: int) -> None:
        """Send the next record to this output."""
        self._next = position

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append the rows of an Arrow batch to the output channels in turns."""
        assert isinstance(batch, ArrowBatch)
        count, size = len(self.outputs), batch.count
        for offset in range(min(count, size)):
            part = batch.every(count, offset) if count > 1 else batch
            self.outputs[(self._next + offset) % count].append_arrow(part)
        self._next = (self._next + size) % count

    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        count = len(self.outputs)
        for offset in range(min(count, len(records))):
            pending = self.outputs[(self._next + offset) % count].pending
            times = None if timestamps is None else timestamps[offset::count]
            pending.extend(records[offset::count], times)
        self._next = (self._next + len(records)) % count


class ShufflePartitioner(PositionedPartitioner):
    """Sends each record to an output channel that is chosen at random, uniformly."""

    def __init__(self, outputs: list[OutputChannel], rng: random.Random) -> None:
        super().__init__(outputs)
        self._rng = rng

    @property
    def position(self) -> list[Any]:
        """The state of the random numbers."""
        version, numbers, gauss = self._rng.getstate()
        return [version, list(numbers), gauss]

    def restore_position(self, position: Sequence[Any]) -> None:
        """Continue with the random numbers that follow."""
        version, numbers, gauss = position
        self._rng.setstate((version, tuple(numbers), gauss))

    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        buffers = [output.pending for output in self.outputs]
        _append_each(self._rng.choices(buffers, k=len(records)), records, timestamps)


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
    A `FusedOperator` routes records itself, and does not call `route`.

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
        self._loop = self._specialised(route_records)
        self._timed_loop: Callable[..., None] | None = None
        self._columns: ColumnRouter | None = None
        if isinstance(selector, ColumnKey):
            self._columns = ColumnRouter(selector.columns, self._subtask_of, parallelism)

    def route_arrow(self, batch: RecordBatch) -> None:
        """Append the rows of an Arrow batch by the columns of their keys."""
        if self._columns is None or not isinstance(batch, ArrowBatch):
            self.route(batch)
            return
        for subtask, part in self._columns.split(batch):
            self.outputs[subtask].append_arrow(part)

    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        self.iterator = iterator = iter(records)
        try:
            if timestamps is None:
                self._loop(self.selector, iterator, self._buffer_of_key)
            else:
                if self._timed_loop is None:
                    self._timed_loop = self._specialised(route_timed_records)
                self._timed_loop(self.selector, iterator, self._buffer_of_key, timestamps)
        except BaseException as error:
            self._check_current(error, records)
            raise
        self.iterator = None

    def _specialised(self, loop: Callable[..., None]) -> Callable[..., None]:
        """Return a loop with the key selector inlined; the loop itself if that is impossible."""
        return codegen.specialize(loop, {"key_of": self.selector}) or loop

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

    def _append(self, records: list[Any], timestamps: list[int] | None) -> None:
        _append_each(self._chosen(records), records, timestamps)

    def _chosen(self, records: list[Any]) -> list[RecordBuffer]:
        """Return the buffer of the subtask of each record.

        Raises:
            JobError: if the partition function returned an index that no subtask has.
        """
        buffers, count = [output.pending for output in self.outputs], len(self.outputs)
        selector, partition = self._selector, self._partition
        chosen: list[RecordBuffer] = []
        self.iterator = iterator = iter(records)
        for record in iterator:
            index = partition(selector(record), count)
            if not 0 <= index < count:
                raise JobError(
                    f"the partitioner returned {index!r}; it must return a whole number from 0 "
                    f"to {count - 1}, the index of one of the {count} subtasks"
                )
            chosen.append(buffers[index])
        self.iterator = None
        return chosen


def _append_each(chosen: list[Any], records: list[Any], timestamps: list[int] | None) -> None:
    """Append each record, and its event time, to the buffer that was chosen for the record."""
    for pending, record in zip(chosen, records, strict=True):
        pending.records.append(record)
    if timestamps is not None:
        for pending, timestamp in zip(chosen, timestamps, strict=True):
            pending.timestamps.append(timestamp)
