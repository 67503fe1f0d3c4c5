"""Make the rows that aggregations over columns emit, with the Arrow types of the key columns.

The state holds keys as Python values, and several Arrow types have the same Python values: whole
numbers of all sizes, texts and large texts, times of all units. So the types of the key columns are
remembered. They are operator state, so that a restored job emits the same types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.dataflow.columns.arrow_records import array_of_values, python_values
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.metadata.handles import StateMode

if TYPE_CHECKING:
    import pyarrow as pa

#: The name of the list state with the types of the key columns.
KEY_TYPES = "penstock.key_types"


class AggregationResults:
    """Makes the rows that one operator emits.

    Arguments:
        names: the names of the key columns.
        context: the operator's place in the job.
    """

    def __init__(self, names: Sequence[str], context: OperatorContext) -> None:
        self._names, self._context = names, context
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

    def note_types(self, key_columns: Sequence[Any]) -> None:
        """Remember the types of key columns that are Arrow arrays."""
        for name, column in zip(self._names, key_columns, strict=True):
            if not isinstance(column, list):
                self._note(name, column.type)

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
        self, key_columns: Sequence[Any], others: Mapping[str, pa.Array], timestamps: Any
    ) -> RecordBatch:
        """Return a batch of rows.

        Arguments:
            key_columns: the values of each key column: an Arrow array or a list.
            others: the other columns of the rows.
            timestamps: the event times of the rows; None if they have none.
        """
        import pyarrow as pa

        typed = [
            self._array(name, column) if isinstance(column, list) else column
            for name, column in zip(self._names, key_columns, strict=True)
        ]
        names = [*self._names, *others]
        if all(column is not None for column in typed):
            arrow = pa.RecordBatch.from_arrays([*typed, *others.values()], names)
            return ArrowBatch(arrow).with_timestamps(timestamps)
        # The keys of one column have no type in common, so the rows are no columns.
        columns = [python_values(one) if hasattr(one, "type") else one for one in key_columns]
        columns += map(python_values, others.values())
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return RecordBatch(rows, None, None if timestamps is None else list(timestamps))

    def _array(self, name: str, keys: list[Any]) -> pa.Array | None:
        """Return keys as an Arrow array; None if they have no type in common."""
        import pyarrow as pa

        for kind in (self._types.get(name), None):
            try:
                array = array_of_values(keys, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                continue  # the type is not known, or batches had different types
            if _holds(array, keys):
                self._note(name, array.type)
                return array
        return None


def _holds(array: pa.Array, keys: list[Any]) -> bool:
    """Return whether an array holds keys as they are.

    Arrow makes texts of bytes, and floats of whole numbers, for example. Which types are known
    depends on the snapshot from which the task was restored, and its rows must not.
    """
    import pyarrow as pa

    kinds = set(map(type, keys)) - {type(None)}
    if kinds == {int} and pa.types.is_integer(array.type):
        return True
    if kinds == {str} and (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return True
    values = python_values(array)
    numbers = kinds & {bool, int, float, Decimal}
    # Whole numbers among others are written as these are. A single kind of number stays as it is.
    wanted = numbers - {int} or numbers
    return values == keys and (not numbers or set(map(type, values)) - {type(None)} <= wanted)


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return a type for the values of two types; the second one if there is none."""
    import pyarrow as pa

    schemas = [pa.schema([("key", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("key").type
    except pa.ArrowException:
        return second
