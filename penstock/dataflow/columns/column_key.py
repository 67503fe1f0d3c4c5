"""Keys from columns: the key selector of `group_by`, and the distinct keys of a batch.

A row and an Arrow batch must give the same key for the same values. Otherwise records with the same
key would go to two subtasks. So both are converted to Python values, which determine the key group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.dataflow.columns.arrow import array_of
from penstock.dataflow.columns.arrow_records import python_values
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.type_variables import UserValue

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.dataflow.columns.arrow import Array

#: Whole numbers below this limit are small, whatever the number of rows.
_SMALL = 1 << 16


class ColumnKey:
    """Returns the key of a row: the value of one column, or the tuple of the values of several.

    Arguments:
        columns: the names of the columns.

    Raises:
        GraphError: if there is no name, or a name is not a string.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        if not columns or not all(isinstance(name, str) and name for name in columns):
            raise GraphError(f"the key is the name of a column or more, not {list(columns)!r}")
        if len(set(columns)) < len(columns):
            raise GraphError(f"a column is twice in the key: {', '.join(columns)}")
        self.columns = tuple(columns)

    def __call__(self, record: UserValue) -> UserValue:
        """Return the key of a row, which is a dict, a Row, a named tuple or a dataclass.

        Raises:
            JobError: if the row lacks a column of the key.
        """
        try:
            if isinstance(record, dict):
                key = tuple([record[name] for name in self.columns])
            else:
                key = tuple([getattr(record, name) for name in self.columns])
        except (KeyError, AttributeError):
            raise JobError(
                f"a record lacks a column of the key, which is {', '.join(self.columns)}: give it "
                f"all these fields, with None for a missing value"
            ) from None
        return key if len(key) > 1 else key[0]


def column_named(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of a batch.

    Raises:
        JobError: if the batch has no column of this name, or has two.
    """
    index = batch.schema.get_field_index(name)
    if index < 0:
        many = batch.schema.names.count(name) > 1
        problem = "two columns" if many else "no column"
        raise JobError(f"a batch has {problem} {name!r}; its columns are {batch.schema.names}")
    return batch.column(index)


def key_columns(keys: list[UserValue], width: int) -> list[list[object]]:
    """Return the values of each column of keys.

    Arguments:
        keys: the keys, which are tuples if the width is greater than 1.
        width: the number of columns.
    """
    return [keys] if width == 1 else [[key[column] for key in keys] for column in range(width)]


class DistinctKeys:
    """The distinct keys of a batch.

    Arguments:
        codes: the index of the key of each row.
        keys: the keys: as Python values, or as an array of whole numbers.
    """

    def __init__(self, codes: Array, keys: list[UserValue] | Array) -> None:
        self.codes = codes
        #: The keys as an array, if they are whole numbers; otherwise None.
        self.whole_numbers = None if isinstance(keys, list) else keys
        self._values = keys if isinstance(keys, list) else None

    def __len__(self) -> int:
        return len(self.values if self.whole_numbers is None else self.whole_numbers)

    def of_rows(self, rows: Array) -> DistinctKeys:
        """Return the keys of some rows of the batch."""
        import numpy as np

        codes = self.codes[rows]
        is_used = np.zeros(len(self), np.bool_)
        is_used[codes] = True
        used = np.flatnonzero(is_used)
        new_codes = np.empty(len(self), codes.dtype)
        new_codes[used] = np.arange(len(used))
        keys: UserValue = self.whole_numbers
        keys = [self.values[at] for at in used.tolist()] if keys is None else keys[used]
        return DistinctKeys(new_codes[codes], keys)

    @property
    def values(self) -> list[UserValue]:
        """Return the keys as Python values."""
        if self._values is None:
            assert self.whole_numbers is not None
            self._values = self.whole_numbers.tolist()
        return self._values


def distinct_keys(batch: pa.RecordBatch, names: Sequence[str]) -> DistinctKeys:
    """Return the distinct keys of a batch, and the index of the key of each row.

    Arguments:
        batch: the rows.
        names: the names of the columns of the key.

    Raises:
        JobError: if a column is missing, or its type is not allowed for keys.
    """
    import numpy as np

    columns = [distinct_values(column_named(batch, name), name) for name in names]
    keys = columns[0]
    if len(columns) == 1:
        return keys
    codes = keys.codes
    for column in columns[1:]:
        # The pairs are numbered again for each column. So a number is below the number of rows
        # times the number of distinct values of one column, and fits into 64 bits.
        pairs = codes.astype("int64") * len(column) + column.codes
        codes = array_of(pairs).dictionary_encode().indices.to_numpy()
    rows = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    rows[codes] = np.arange(len(codes))  # some row of each key
    items = [[column.values[code] for code in column.codes[rows].tolist()] for column in columns]
    return DistinctKeys(codes, list(zip(*items, strict=True)))


def distinct_values(column: pa.Array, name: str) -> DistinctKeys:
    """Return the distinct values of a column, and the index of the value of each row."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        # `dictionary_encode` makes empty values of the nulls of these types.
        column = column.cast(pa.string() if pa.types.is_string_view(column.type) else pa.binary())
    if pa.types.is_integer(column.type) and not column.null_count and len(column):
        found = _small_numbers(column.to_numpy())
        if found is not None:
            return found
    try:
        encoded = column.dictionary_encode(null_encoding="encode")
    except (pa.ArrowException, NotImplementedError) as error:
        raise JobError(f"column {name!r} of type {column.type} cannot be a key: {error}") from None
    codes = encoded.indices.to_numpy()
    if pa.types.is_integer(column.type) and not encoded.dictionary.null_count:
        return DistinctKeys(codes, encoded.dictionary.to_numpy())
    values = python_values(encoded.dictionary)
    if not (pa.types.is_floating(column.type) or pa.types.is_temporal(column.type)):
        return DistinctKeys(codes, values)
    # Values that differ in Arrow may be equal in Python, such as 0.0 and -0.0.
    places: dict[object, int] = {}
    place_of = np.array([places.setdefault(value, len(places)) for value in values], codes.dtype)
    if len(places) == len(values):
        return DistinctKeys(codes, values)
    return DistinctKeys(place_of[codes], list(places))


def _small_numbers(numbers: Array) -> DistinctKeys | None:
    """Return the distinct values of small whole numbers; None if some are large or negative.

    This takes a tenth of the time that a hash table takes.
    """
    import numpy as np

    size = int(numbers.max()) + 1
    if numbers.min() < 0 or size > max(_SMALL, 4 * len(numbers)):
        return None
    is_there = np.zeros(size, np.bool_)
    is_there[numbers] = True
    distinct = np.flatnonzero(is_there)
    code_of = np.empty(size, np.int32)
    code_of[distinct] = np.arange(len(distinct), dtype=np.int32)
    return DistinctKeys(code_of[numbers], distinct)
