"""Convert batches to the formats of batch functions, and results to batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.dataflow.columns.arrow import repeated_column
from penstock.dataflow.columns.arrow_records import arrow_of
from penstock.dataflow.errors import JobError
from penstock.dataflow.object_reuse import copy_items_if_shared
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_batch_of(batch: RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Return the records of a batch as an Arrow batch.

    Records that are Arrow batches themselves, as `SparkTableSource` emits with `as_="arrow"`, are
    joined.

    Raises:
        JobError: if the records have no names, or do not fit one type per column.
    """
    if batch.arrow is not None:
        return batch.arrow
    records = batch.rows()
    if type(records[0]).__module__.startswith("pyarrow"):
        return _joined(records)
    return arrow_of(records, schema)


def _joined(records: list[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    try:
        return _of_arrow(pa.Table.from_batches(records)).arrow or records[0]
    except (pa.ArrowException, TypeError) as error:
        raise JobError(f"the Arrow batches of a stream cannot be joined: {error}") from None


def input_converter(format: str, schema: pa.Schema | None) -> Callable[[RecordBatch], Any]:
    """Return a function that converts a batch to the format that a batch function takes.

    Arguments:
        format: one of the formats of `map_batches`.
        schema: the types of the columns, for batches of rows; None to infer them.
    """
    if format == "rows":
        return lambda batch: list(batch.rows())
    if format == "arrow":
        return lambda batch: arrow_batch_of(batch, schema)
    if format == "pandas":
        return lambda batch: arrow_batch_of(batch, schema).to_pandas()

    def to_polars(batch: RecordBatch) -> Any:
        import polars

        return polars.from_arrow(arrow_batch_of(batch, schema))

    return to_polars


def to_batch(result: Any) -> RecordBatch:
    """Return the batch that a batch function has returned, without event times.

    Raises:
        JobError: if the result of the function is not a batch.
    """
    package = type(result).__module__.partition(".")[0]
    try:
        if package == "pyarrow":
            return _of_arrow(result)
        if package == "pandas":
            return _of_pandas(result)
        if package == "polars":
            return _of_polars(result)
    except JobError:
        raise
    except Exception as error:
        raise JobError(f"the result of a batch function cannot become a batch: {error}") from error
    if isinstance(result, str | bytes | dict) or not hasattr(type(result), "__iter__"):
        raise _no_batch(result)
    rows = list(result)
    del result
    return RecordBatch(list(copy_items_if_shared(rows))) if rows else EMPTY


def _of_arrow(result: Any) -> RecordBatch:
    import pyarrow as pa

    if isinstance(result, pa.Table):
        struct = result.combine_chunks().to_struct_array()
        if isinstance(struct, pa.ChunkedArray):
            struct = struct.combine_chunks()
        result = pa.RecordBatch.from_struct_array(struct)
    if not isinstance(result, pa.RecordBatch):
        raise _no_batch(result)
    if repeated := repeated_column(result.schema.names):
        raise JobError(f"a batch has several columns with the name {repeated!r}")
    if result.num_rows and not result.num_columns:
        raise JobError(f"a batch of {result.num_rows} rows has no columns")
    return ArrowBatch(result) if result.num_rows else EMPTY


def _of_pandas(result: Any) -> RecordBatch:
    import pandas
    import pyarrow as pa

    if not isinstance(result, pandas.DataFrame):
        raise _no_batch(result)
    if any(name is not None for name in result.index.names):
        result = result.reset_index()  # such as the groups of `groupby`
    return _of_arrow(pa.Table.from_pandas(result, preserve_index=False).replace_schema_metadata())


def _of_polars(result: Any) -> RecordBatch:
    import polars

    if isinstance(result, polars.LazyFrame):
        result = result.collect()
    if not isinstance(result, polars.DataFrame):
        raise _no_batch(result)
    return _of_arrow(_without_views(result.to_arrow()))


def _without_views(table: pa.Table) -> pa.Table:
    """Return a table with strings of the usual Arrow type. Polars uses large strings or views."""
    import pyarrow as pa

    usual = {"large_string": pa.string(), "string_view": pa.string()}
    usual |= {"large_binary": pa.binary(), "binary_view": pa.binary()}
    fields = [field.with_type(usual.get(str(field.type), field.type)) for field in table.schema]
    schema = pa.schema(fields)
    return table if schema.equals(table.schema) else table.cast(schema)


def _no_batch(result: Any) -> JobError:
    hint = "; does it lack a `return`?" if result is None else ""
    return JobError(
        f"a batch function returned {type(result).__name__}: it must return a pyarrow RecordBatch "
        f"or Table, a data frame, or a list of records{hint}"
    )
