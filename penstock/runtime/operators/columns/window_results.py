"""Make the rows that windows over columns emit, with the Arrow types of the key columns.

The state holds keys as Python values, and several Arrow types have the same Python values: whole
numbers of all sizes, texts and large texts, times of all units. So the types of the key columns are
remembered. They are operator state, so that a restored job emits the same types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.columns.arrow import array_of
from penstock.dataflow.columns.arrow_records import array_of_values
from penstock.dataflow.columns.column_key import column_named
from penstock.runtime.operators.columns.accumulators import Part, result_column
from penstock.runtime.operators.columns.row_groups import Array
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.arrow_batch import ArrowBatch, packed_times
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.handles import StateMode

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WindowResults"]

#: The name of the list state with the types of the key columns.
KEY_TYPES = "penstock.key_types"


class WindowResults:
    """Makes the rows that the windows of one operator emit.

    Arguments:
        aggregation: the keys and the aggregates.
        context: the operator's place in the job.
    """

    def __init__(self, aggregation: ColumnAggregation, context: OperatorContext) -> None:
        self._aggregation, self._context = aggregation, context
        #: The types of the key columns, as far as they are known.
        self._types: dict[str, pa.DataType] = {}

    # ---- the types of the key columns

    def restore(self) -> None:
        """Take the types that the restored state contains."""
        import pyarrow as pa

        for saved in self._saved.values:
            for field in pa.ipc.read_schema(pa.py_buffer(saved)):
                self._note(field.name, field.type)

    def save(self) -> None:
        """Put the types into the operator state."""
        import pyarrow as pa

        schema = pa.schema(list(self._types.items()))
        self._saved.replace([schema.serialize().to_pybytes()] if self._types else ())

    def note_types(self, batch: pa.RecordBatch) -> None:
        """Remember the types of the key columns of a batch."""
        for name in self._aggregation.keys:
            self._note(name, column_named(batch, name).type)

    @property
    def _saved(self) -> Any:
        backend = self._context.operator_state
        assert backend is not None
        # All subtasks have the same columns, so each of them gets the types of all.
        return backend.list_state(KEY_TYPES, StateMode.UNION)

    def _note(self, name: str, kind: pa.DataType) -> None:
        import pyarrow as pa

        if pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32:
            # A window may have more distinct keys than a batch.
            kind = pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
        known = self._types.get(name)
        if known is None:
            self._types[name] = kind
        elif known != kind:
            self._types[name] = _common_type(known, kind)

    # ---- rows

    def batch(
        self, keys: Sequence[Any], starts: Array, ends: Array, values: dict[Part, Array]
    ) -> RecordBatch:
        """Return the rows of windows. Each has the last event time of its window.

        Arguments:
            keys: the key of each row; a tuple if the key has several columns.
            starts: the start of the window of each row, in milliseconds since the epoch.
            ends: the end of the window of each row.
            values: the values of each part of the aggregates.
        """
        import pyarrow as pa

        names, aggregates = self._aggregation.keys, self._aggregation.aggregates
        of_names = [keys] if len(names) == 1 else list(zip(*keys, strict=True))
        columns: list[pa.Array] = [array_of(starts), array_of(ends)]
        columns += [result_column(one, values) for one in aggregates]
        others = ["window_start", "window_end", *(one.name for one in aggregates)]
        times = packed_times(ends - 1)
        key_columns = [self._column(name, of_names[at]) for at, name in enumerate(names)]
        if None not in key_columns:
            arrow = pa.RecordBatch.from_arrays([*key_columns, *columns], [*names, *others])
            return ArrowBatch(arrow, times)
        # The keys of one column have no type in common, so the rows are no columns.
        parts = [*of_names, *(column.to_pylist() for column in columns)]
        rows = [dict(zip([*names, *others], row, strict=True)) for row in zip(*parts, strict=True)]
        return RecordBatch(rows, None, list(times))

    def _column(self, name: str, keys: Sequence[Any]) -> pa.Array | None:
        """Return keys as a column; None if they have no type in common."""
        import pyarrow as pa

        for kind in (self._types.get(name), None):
            try:
                return array_of_values(list(keys), kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                continue  # the type is not known, or batches had different types
        return None


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return a type for the values of two types; the second one if there is none."""
    import pyarrow as pa

    schemas = [pa.schema([("key", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("key").type
    except pa.ArrowException:
        return second
