"""Batches of records that are held as a pyarrow batch.

An `ArrowBatch` takes part in a job as any other batch. Code that knows columns reads its attribute
`arrow`. All other code calls `rows()`, which makes a dict for each row. Between processes, and in
the logs of snapshots, the columns are the buffers of Arrow's IPC format. So a value becomes no
Python object on its way.

Only jobs with Arrow batches import pyarrow and numpy.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from penstock.dataflow.columns.arrow import array_of
from penstock.dataflow.columns.arrow_records import one_row, rows_of
from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.record_batch import RecordBatch

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class ArrowBatch(RecordBatch):
    """A batch whose records are the rows of a `pyarrow.RecordBatch`, which never changes.

    Arguments:
        arrow: the rows.
        timestamps: the event times of the rows, as `array("q")`; None if no row has one.
    """

    __slots__ = ("arrow",)

    def __init__(self, arrow: pa.RecordBatch, timestamps: Any = None) -> None:
        super().__init__([], None, timestamps)
        self.arrow = arrow
        self.count = arrow.num_rows

    def rows(self) -> list[Any]:
        """Return the rows as new dicts."""
        return rows_of(self.arrow)

    def slice(self, begin: int, end: int | None = None) -> ArrowBatch:
        """Return the rows from index `begin` to index `end`, without a copy of them."""
        times = None if self.timestamps is None else self.timestamps[begin:end]
        size = (self.count if end is None else min(end, self.count)) - begin
        return ArrowBatch(self.arrow.slice(begin, size), times)

    def select(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> ArrowBatch:
        """Return the rows with the given indices, in their order."""
        import numpy as np

        chosen = np.asarray(indices, dtype=np.int64)
        times = event_times(self)
        return ArrowBatch(
            self.arrow.take(array_of(chosen)),
            None if times is None else packed_times(times[chosen]),
        )

    def every(self, step: int, first: int) -> ArrowBatch:
        """Return each row whose index is `first` plus a multiple of `step`, in their order."""
        import numpy as np

        return self.select(np.arange(first, self.count, step))

    def with_timestamps(self, timestamps: Any) -> ArrowBatch:
        """Return a batch of the same rows with other event times."""
        if timestamps is not None and type(timestamps) is not array:
            timestamps = array("q", timestamps)
        return ArrowBatch(self.arrow, timestamps)

    def __getitem__(self, index: int) -> Any:
        return one_row(self.arrow, index)


class ArrowBuffer:
    """Collects Arrow batches, so that they become few large ones."""

    __slots__ = ("_batches", "count")

    def __init__(self) -> None:
        self._batches: list[RecordBatch] = []
        #: The number of collected rows.
        self.count = 0

    def append(self, batch: RecordBatch) -> None:
        """Add a batch."""
        self._batches.append(batch)
        self.count += batch.count

    def merged(self) -> list[RecordBatch]:
        """Return all batches. Neighbours with the same columns become one batch."""
        batches = self._batches
        if len(batches) < 2:
            return batches
        return [
            _concatenated(list(group))
            for _, group in groupby(batches, lambda one: (one.arrow.schema, one.timestamps is None))
        ]


def merged(batches: list[RecordBatch]) -> RecordBatch:
    """Return one batch with the records of all batches, in order.

    Raises:
        ProtocolError: if some batches have other columns than the first one.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if first.arrow is None and all(one.arrow is None for one in batches):
        timed = any(one.timestamps is not None for one in batches)
        times = [time for one in batches for time in one.times()] if timed else None
        return RecordBatch([record for one in batches for record in one.rows()], None, times)
    schemas = [None if one.arrow is None else one.arrow.schema for one in batches]
    kinds = [*zip(schemas, (one.timestamps is None for one in batches), strict=True)]
    if kinds.count(kinds[0]) < len(batches):
        raise ProtocolError(
            f"records that were one batch before a restart have come with other columns: {kinds}"
        )
    return _concatenated(batches)


def _concatenated(batches: list[RecordBatch]) -> RecordBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    columns = [
        pa.concat_arrays([batch.arrow.column(index) for batch in batches])
        for index in range(batches[0].arrow.num_columns)
    ]
    schema = batches[0].arrow.schema
    times: Any = None
    if batches[0].timestamps is not None:
        times = array("q")
        for batch in batches:
            times.extend(batch.times())
    return ArrowBatch(pa.RecordBatch.from_arrays(columns, schema=schema), times)


def event_times(batch: RecordBatch) -> np.ndarray[Any, Any] | None:
    """Return the event times of a batch as an array of 64-bit integers; None if it has none."""
    import numpy as np

    times: Any = batch.timestamps
    if times is None:
        return None
    if type(times) is array:
        return np.frombuffer(times, dtype=np.int64)
    return np.array(times, dtype=np.int64)


def packed_times(times: np.ndarray[Any, Any]) -> Any:
    """Return event times in the form in which an `ArrowBatch` holds them."""
    packed = array("q")
    packed.frombytes(times.astype("int64", copy=False).tobytes())
    return packed


def encode_arrow(batch: pa.RecordBatch) -> bytes:
    """Return the bytes of a stream in Arrow's IPC format, with the schema and one batch."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_arrow(data: bytes) -> pa.RecordBatch:
    """Return the batch that `encode_arrow` has encoded. The batch refers to the bytes."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        batch = reader.read_next_batch()
    batch.validate()
    return batch
