"""Partitioners: they spread the records of one link over its output channels.

A partitioner appends a whole batch to the buffers of its output channels in one loop. It never
waits; output channels make batches of their buffers later.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.graph.keys import canonical, key_group, subtask_of_key_group
from penstock.runtime import codegen
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.serialization.record_batch import ColumnPending, Pending

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
    """Spreads the records of one link over its outputs.

    Arguments:
        outputs: one per channel from this task, in order of the target subtask.
    """

    def __init__(self, outputs: list[OutputChannel]) -> None:
        self.outputs = outputs
        #: What its user code is to the next operator, for errors, such as "key of Count".
        self.place: str | None = None
        #: Consumed by the record at hand, so that an error can name it.
        self.iterator: Any = None

    @abstractmethod
    def route(self, records: list[Any]) -> None:
        """Put every record into the buffer of its output (or outputs)."""


class ForwardPartitioner(StreamPartitioner):
    """To the one output there is."""

    def route(self, records: list[Any]) -> None:
        """Append all."""
        self.outputs[0].buffer.extend(records)


class GlobalPartitioner(StreamPartitioner):
    """To the first subtask."""

    def route(self, records: list[Any]) -> None:
        """Append all to the first."""
        self.outputs[0].buffer.extend(records)


class BroadcastPartitioner(StreamPartitioner):
    """To every subtask.

    Arguments:
        copy: copies mutable records.
    """

    def __init__(
        self, outputs: list[OutputChannel], copy: Callable[[list[Any]], list[Any]]
    ) -> None:
        super().__init__(outputs)
        self._copy = copy

    def route(self, records: list[Any]) -> None:
        """Append all to each."""
        for output in self.outputs:
            # What a consumer in this process does to a record must not be seen by the others,
            # and theirs may be encoded later.
            local = len(self.outputs) > 1 and isinstance(output, LocalOutputChannel)
            output.buffer.extend(self._copy(records) if local else records)


class RebalancePartitioner(StreamPartitioner):
    """Round robin, going on where the last batch stopped. Also rescale, over fewer outputs."""

    def __init__(self, outputs: list[OutputChannel], start: int = 0) -> None:
        super().__init__(outputs)
        self._next = start % len(outputs)

    def route(self, records: list[Any]) -> None:
        """Every n-th record to each of n outputs."""
        count = len(self.outputs)
        for offset in range(min(count, len(records))):
            self.outputs[(self._next + offset) % count].buffer.extend(records[offset::count])
        self._next = (self._next + len(records)) % count


class ShufflePartitioner(StreamPartitioner):
    """At random, uniformly."""

    def __init__(self, outputs: list[OutputChannel], rng: random.Random) -> None:
        super().__init__(outputs)
        self._rng = rng

    def route(self, records: list[Any]) -> None:
        """Each record to an output drawn for it."""
        appends = [output.buffer.append for output in self.outputs]
        for append, record in zip(self._rng.choices(appends, k=len(records)), records, strict=True):
            append(record)


class _Memo(dict[Any, Pending]):
    """key → what is pending for its output; filled when a key is first asked for.

    Bounded: emptied when it is full, since a job whose keys are all new gains nothing from it.
    """

    BOUND = 1 << 18

    def __init__(self, find: Callable[[Any], Pending]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: Any) -> Pending:
        if len(self) >= self.BOUND:
            self.clear()
        pending = self[key] = self._find(key)
        return pending


def route_records(
    key_of: Callable[[Any], Any], iterator: Iterator[Any], pending: Mapping[Any, Any]
) -> None:
    """Append each record to the `records` of what is pending for its key."""
    for record in iterator:
        pending[key_of(record)].records.append(record)


class HashPartitioner(StreamPartitioner):
    """By key group. The hash is computed once per key, not once per record.

    Keys that are equal share their group whatever their types (`canonical` follows Python's
    equality), so the memo is by key alone.

    Arguments:
        selector: takes the key from a record.
        max_parallelism: number of key groups.
        parallelism: number of target subtasks; there is an output for each.
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
        self._max, self._parallelism = max_parallelism, parallelism
        self._pending = [output.pending for output in outputs]
        self._memo = _Memo(self._find)
        functions = {"key_of": selector}
        self._loop = codegen.specialize(route_records, functions) or route_records

    def route(self, records: list[Any]) -> None:
        """Append each record to the output of its key."""
        self.iterator = iterator = iter(records)
        try:
            self._loop(self.selector, iterator, self._memo)
        except BaseException as error:
            if isinstance(error, TypeError) or codegen.raised_by_generated_code(error):
                self._refuse(records[len(records) - length_hint(iterator) - 1])
            raise
        self.iterator = None

    def by_column(self, layout: Sequence[tuple[Any] | None]) -> Mapping[Any, Any]:
        """Have columns appended from now on, by others; `route` is not to be called any more.

        Arguments:
            layout: as of `ColumnPending`.

        Returns what is pending for each key, for tuples of that layout. The outputs must be empty.
        """
        for output in self.outputs:
            output.pending = ColumnPending(layout)
        self._pending = [output.pending for output in self.outputs]
        return self._memo

    def refuse(self, record: Any) -> None:
        """Raise what routing a record raises; it goes nowhere."""
        self._find(self._refuse(record))

    def _find(self, key: Any) -> Pending:
        group = key_group(canonical(key), self._max)
        return self._pending[subtask_of_key_group(group, self._max, self._parallelism)]

    def _refuse(self, record: Any) -> Any:
        """The key; raises what the selector raises, or why a key without a hash is refused."""
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
    """To the subtask that the user's partitioner says.

    Arguments:
        selector: takes the key from a record.
        partition: (key, number of subtasks) to an index.
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
        """Append each record where the partitioner says; `JobError` if that is nowhere."""
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
