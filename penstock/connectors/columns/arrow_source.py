"""A source of the rows of an Arrow table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.connectors.columns.arrow_cursor import ArrowCursor
from penstock.dataflow.columns.arrow import data_frame_table, repeated_column, require_pyarrow
from penstock.dataflow.errors import GraphError
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: The number of rows of a split.
_SPLIT_ROWS = 1 << 18


class ArrowSource(Source):
    """Emits the rows of an Arrow table as columns.

    The table is sent to the workers with the program, so it should not be larger than a few hundred
    megabytes. With parallelism 1, the rows keep their order.

    Arguments:
        table: a `pyarrow.Table` or `RecordBatch`, or a data frame of pandas or Polars. An index of
            pandas with a name becomes a column; an index without a name is left out.

    Raises:
        GraphError: if pyarrow is not installed, the argument is not a table, or columns share a
            name.

    Examples:
        >>> import pyarrow
        >>> table = pyarrow.table({"user": ["ann", "bob"], "amount": [5, 7]})
        >>> results = env.from_source(ArrowSource(table)).map(lambda row: row["amount"])
        >>> list(results.execute_and_collect())
        [5, 7]
    """

    has_event_times = False

    def __init__(self, table: Any) -> None:
        self.table: pa.Table = _table_of(table)
        if repeated := repeated_column(self.table.column_names):
            raise GraphError(f"the table of ArrowSource has several columns {repeated!r}")

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return an enumerator that assigns ranges of rows."""
        rows = self.table.num_rows
        step = max(1, min(_SPLIT_ROWS, -(-rows // parallelism)))
        return ListEnumerator(
            [Split(str(start), [start, min(start + step, rows)]) for start in range(0, rows, step)]
        )

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader of ranges of rows."""
        del context
        return _ArrowReader(self.table)


class _ArrowReader(SourceReader):
    """Reads the rows of a range."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._cursor: ArrowCursor | None = None

    def open(self, split: Split, position: Any) -> None:
        start, end = split.payload
        batches = self._table.slice(start, end - start).to_batches()
        self._cursor = ArrowCursor(iter(batches), position or 0, end - start)

    def read(self, max_records: int) -> Read:
        assert self._cursor is not None, "read before open"
        return self._cursor.read(max_records)


def _table_of(table: Any) -> pa.Table:
    pa = require_pyarrow("ArrowSource")
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    package = type(table).__module__.partition(".")[0]
    if type(table).__name__ == "DataFrame" and package == "pandas":
        return data_frame_table(table)
    if type(table).__name__ == "DataFrame" and package == "polars":
        return table.to_arrow()
    raise GraphError(
        f"ArrowSource takes a pyarrow Table or RecordBatch, or a data frame of pandas or Polars, "
        f"not {type(table).__name__}"
    )
