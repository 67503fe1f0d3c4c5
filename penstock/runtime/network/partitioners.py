"""Partitioners: they distribute the records of one link over its output channels.

A partitioner appends a whole batch of records to the buffers of its output channels in one loop.
It never waits: output channels make batches of their buffers, and send them later.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime import codegen
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.serialization.record_batch import RecordBuffer

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
]


class StreamPartitioner(ABC):
    """Distributes the records of one link over its output channels.

    Arguments:
        outputs: the output channels, in order of the target subtask.
    """

    def __init__(self, outputs: list[OutputChannel]) -> None:
        self.outputs = outputs
        #: Names the partitioner's user code in errors, such as "key of Count"; None without any.
        self.place: str | None = None
        #: The iterator over the records that are being routed. After an error its position shows
        #: which record has failed.
        self.iterator: Any = None

    def name_user_code(self, place: str | None) -> None:
        """Set how errors name the user code that runs in the partitioner."""
        self.place = place

    @abstractmethod
    def route(self, records: list[Any]) -> None:
        """Append each record to the buffer of its output channel, or channels."""


class ForwardPartitioner(StreamPartitioner):
    """Sends all records to the only output channel."""

    def route(self, records: list[Any]) -> None:
        """Append all records."""
        self.outputs[0].buffer.extend(records)


class GlobalPartitioner(StreamPartitioner):
    """Sends all records to the first subtask."""

    def route(self, records: list[Any]) -> None:
        """Append all records to the first channel."""
        self.outputs[0].buffer.extend(records)


class BroadcastPartitioner(StreamPartitioner):
    """Sends all records to every subtask.

    Arguments:
        copy: copies the mutable ones of a list of records.
    """

    def __init__(
        self, outputs: list[OutputChannel], copy: Callable[[list[Any]], list[Any]]
    ) -> None:
        super().__init__(outputs)
        self._copy = copy

    def route(self, records: list[Any]) -> None:
        """Append all records to each channel."""
        for output in self.outputs:
            # A consumer in this process may change its records. The other channels may encode
            # theirs later, and must not see the change.
            local = len(self.outputs) > 1 and isinstance(output, LocalOutputChannel)
            output.buffer.extend(self._copy(records) if local else records)


class RebalancePartitioner(StreamPartitioner):
    """Distributes records in turns, also across batches; rescale uses it, too."""

    def __init__(self, outputs: list[OutputChannel], start: int = 0) -> None:
        super().__init__(outputs)
        self._next = start % len(outputs)

    def route(self, records: list[Any]) -> None:
        """Append every n-th record to each of n channels."""
        count = len(self.outputs)
        for offset in range(min(count, len(records))):
            self.outputs[(self._next + offset) % count].buffer.extend(records[offset::count])
        self._next = (self._next + len(records)) % count


class ShufflePartitioner(StreamPartitioner):
    """Distributes records at random, uniformly."""

    def __init__(self, outputs: list[OutputChannel], rng: random.Random) -> None:
        super().__init__(outputs)
        self._rng = rng

    def route(self, records: list[Any]) -> None:
        """Append each record to a channel that is drawn for it."""
        appends = [output.buffer.append for output in self.outputs]
        for append, record in zip(self._rng.choices(appends, k=len(records)), records, strict=True):
            append(record)


class _BufferOfKey(dict[Any, RecordBuffer]):
    """Maps each key to the buffer of its output channel; filled on lookup.

    Its size is bounded: it is cleared when it is full. A job whose keys never repeat gains nothing
    from it.
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

    This runs once per record, so `penstock.runtime.codegen` compiles it again with the key
    selector in the place of the call. For that the selector is the first parameter. `append` is
    looked up at each list, since Python then appends without a call.
    """
    for record in iterator:
        pending[key_of(record)].records.append(record)


class HashPartitioner(StreamPartitioner):
    """Distributes records by key group.

    The hash is computed once per key, and not once per record. Keys that are equal share their key
    group whatever their types are, because `canonical` follows Python's equality. So the buffer of
    a key can be looked up by the key alone.

    Arguments:
        selector: returns the key of a record.
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

    def route(self, records: list[Any]) -> None:
        """Append each record to the channel of its key."""
        self.iterator = iterator = iter(records)
        try:
            self._loop(self.selector, iterator, self._buffer_of_key)
        except BaseException as error:
            if isinstance(error, TypeError) or codegen.raised_by_generated_code(error):
                self._checked_key(records[len(records) - length_hint(iterator) - 1])
            raise
        self.iterator = None

    def by_column(self, layout: Sequence[tuple[Any] | None]) -> Mapping[Any, Any]:
        """Buffer columns from now on, for the caller to append to, instead of `route`.

        Arguments:
            layout: of the columns; see `ColumnBuffer`. All buffers must be empty.

        Returns:
            The buffer of each key.
        """
        self._pending = [output.buffer_columns(layout) for output in self.outputs]
        return self._buffer_of_key

    def refuse(self, record: Any) -> None:
        """Raise the error that routing a record raises, without appending it."""
        self._find(self._checked_key(record))

    def _find(self, key: Any) -> RecordBuffer:
        group = key_group(canonical(key), self._max_parallelism)
        return self._pending[subtask_of_key_group(group, self._max_parallelism, self._parallelism)]

    def _checked_key(self, record: Any) -> Any:
        """Return the key; raise the selector's error, or why the key is refused."""
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
    """Distributes records by the user's own partitioner.

    Arguments:
        selector: returns the key of a record.
        partition: returns the index of the subtask for a key and the number of subtasks.
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

    def route(self, records: list[Any]) -> None:
        """Append each record to its channel. Raise `JobError` if there is none."""
        outputs, count = self.outputs, len(self.outputs)
        selector, partition = self._selector, self._partition
        self.iterator = iterator = iter(records)
        for record in iterator:
            index = partition(selector(record), count)
            if not 0 <= index < count:
                raise JobError(
                    f"the partitioner returned {index!r}; it must return a whole number from 0 "
                    f"to {count - 1}, the index of one of the {count} subtasks"
                )
            outputs[index].buffer.append(record)
        self.iterator = None
