"""Read the splits of pins in the tasks of Spark sources, with Arrow and without a JVM.

A split contains the id and the path of its pin. The reader first searches the source's own folder
for the id, because the job's folder may have been moved. Then it uses the path, because a fork in
another folder reads the pins of the original job. The position in a split is the number of its rows
that were emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.source.pin import Pin, load_pin
from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.dataflow.source import Read, SourceReader, Split

if TYPE_CHECKING:
    import pyarrow as pa

#: The largest number of rows in an Arrow batch. With `as_="arrow"`, such a batch is one record.
ARROW_ROWS = 64 * 1024
#: The limits for batches that are decoded to Python records: about `CELLS` values, but at least
#: `FEWEST_ROWS` rows. The task decodes a batch in its loop, which should take a few milliseconds.
FEWEST_ROWS, CELLS = 1024, 256 * 1024
#: The number of bytes that are read from the file at a time, for each column of a row group.
READ_BYTES = 1 << 20


def splits_of(pin_id: str, pin: Pin) -> list[Split]:
    """Return the splits of a pin in the form in which an enumerator assigns them."""
    return [
        Split(f"{pin_id}:{index}", {"pin": pin_id, "at": str(pin.folder), "split": index})
        for index in range(len(pin.splits))
    ]


def find_pin(folder: Path | None, pin_id: str, at: str) -> Pin:
    """Load a pin from the source's own folder, or else from the path in its split.

    Arguments:
        folder: the source's own folder; None if there is none.
        pin_id: the id of the pin.
        at: the path of the pin when the split was created.

    Raises:
        StoreError: if the pin is at neither place, or cannot be read.
    """
    if folder is not None and (folder / pin_id).exists():
        return load_pin(folder / pin_id)
    return load_pin(Path(at))


class PinReader(SourceReader):
    """Reads the rows of pinned splits and emits them as records.

    Arguments:
        folder: the source's own folder.
        columns: the names of the columns to read, in this order; None for all columns.
        as_: the kind of record, as for `SparkTableSource`.
    """

    def __init__(self, folder: Path | None, columns: Sequence[str] | None, as_: str | type) -> None:
        self._folder = folder
        self._columns = columns
        self._as = as_
        self._pin_id: str | None = None
        self._pin: Pin
        self._names: list[str] = []
        self._types: list[pa.DataType] = []
        self._make: Callable[[list[list[Any]]], list[Any]]
        self._file: Any = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None
        self._row = 0
        self._rows = 0

    def open(self, split: Split, position: Any) -> None:
        """Open the file of a split at a position, and skip the row groups before it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.close()
        payload = split.payload
        if payload["pin"] != self._pin_id:
            self._take_pin(payload["pin"], payload["at"])
        pinned = self._pin.splits[payload["split"]]
        path = self._pin.path(pinned)
        try:
            self._file = file = pq.ParquetFile(
                path, coerce_int96_timestamp_unit="us", buffer_size=READ_BYTES
            )
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"a pinned file cannot be read: {error}", path) from error
        self._row, self._rows = position or 0, pinned.rows
        groups = list(range(pinned.first_group, pinned.end_group))
        skip = self._row
        while groups and skip >= (rows := file.metadata.row_group(groups[0]).num_rows):
            skip -= rows
            del groups[0]
        # Arrow takes the name "a.b" for the field b of a column a, so all columns are read instead.
        dotted = any("." in name for name in self._names)
        self._batches = self._read_batches(groups, None if dotted else self._names, skip)

    def _take_pin(self, pin_id: str, at: str) -> None:
        from penstock.connectors.spark.record_decoding import record_maker

        self._pin, self._pin_id = find_pin(self._folder, pin_id, at), pin_id
        schema = self._pin.schema
        self._names = check_columns(schema, self._columns)
        self._types = [schema.field(name).type for name in self._names]
        if self._as != "arrow":
            self._make = record_maker(self._as, self._names)

    def _read_batches(
        self, groups: list[int], columns: list[str] | None, skip: int
    ) -> Iterator[pa.RecordBatch]:
        if not groups:
            return
        rows = ARROW_ROWS
        if self._as != "arrow":
            rows = min(max(CELLS // len(self._names), FEWEST_ROWS), rows)
        for batch in self._file.iter_batches(
            rows, row_groups=groups, columns=columns, use_threads=False
        ):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield batch.slice(skip) if skip else batch
            skip = 0

    def read(self, max_records: int) -> Read:
        """Return the next rows as records; with `as_="arrow"`, one batch of rows."""
        if self._batch is None:
            self._batch = next(self._batches, None)
            if self._batch is None:
                if self._row != self._rows:
                    raise StoreError(
                        f"a pinned split has {self._row} rows and not {self._rows}: the pin is "
                        f"damaged; restore it, or start the job afresh",
                        self._pin.folder,
                    )
                return Read([], self._row, finished=True)
        if self._as == "arrow":
            batch, self._batch = self._batch, None
            records: list[Any] = [self._as_declared(batch)]
        else:
            batch = self._batch.slice(0, max_records)
            rest = self._batch.num_rows - batch.num_rows
            self._batch = self._batch.slice(batch.num_rows) if rest else None
            records = self._records(batch)
        self._row += batch.num_rows
        return Read(records, self._row, finished=self._row >= self._rows)

    def close(self) -> None:
        """Close the file of the current split, if one is open."""
        self._batches, self._batch = iter(()), None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _records(self, batch: pa.RecordBatch) -> list[Any]:
        from penstock.connectors.spark.record_decoding import to_python

        columns = [
            to_python(batch.column(name), arrow_type, name)
            for name, arrow_type in zip(self._names, self._types, strict=True)
        ]
        try:
            return self._make(columns)
        except (TypeError, ValueError) as error:
            raise JobError(
                f"a row cannot be made a {self._as!r}: {type(error).__name__}: {error}",
                record=str([column[0] for column in columns])[:200],
            ) from error

    def _as_declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Select the columns to read, and cast them to their types in the pin's schema."""
        import pyarrow as pa

        schema = pa.schema([self._pin.schema.field(name) for name in self._names])
        return batch.select(self._names).cast(schema)


def check_columns(schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """Check that a pin has the columns to read, and return their names.

    Arguments:
        schema: the schema of the pin.
        columns: the names of the columns to read; None for all columns.

    Raises:
        GraphError: if the pin lacks one of the columns.
    """
    names = list(schema.names) if columns is None else list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise GraphError(
            f"the pinned rows have no column {missing[0]!r}; they have {', '.join(schema.names)}. "
            f"A resumed job reads what was pinned when it first started: to read other columns, "
            f"start it afresh in another folder"
        )
    return names
