"""Import pyarrow when a job needs it, and check the schemas that a program passes.

Jobs without columns never import pyarrow, which is an optional package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import UserValue

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    #: An array of NumPy, whatever its shape and the type of its items.
    Array: TypeAlias = np.ndarray[UserValue, UserValue]


def array_of(values: Array, nulls: Array | None = None) -> pa.Array:
    """Return an Arrow array with the values of a NumPy array, without copying them.

    (`pyarrow.array` would import pandas, which takes almost a second in each worker.)

    Arguments:
        values: an array of 64-bit integers or floats.
        nulls: whether each value is null; None if none is.
    """
    import numpy as np
    import pyarrow as pa

    kind = pa.float64() if values.dtype.kind == "f" else pa.int64()
    values = np.ascontiguousarray(values, "f8" if values.dtype.kind == "f" else "i8")
    validity = None
    if nulls is not None:
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])


def data_frame_table(frame: UserValue) -> pa.Table:
    """Return a data frame of pandas as an Arrow table.

    Each level of the index that has a name becomes a column. Without a name, a level is only the
    numbers of the rows, and is left out.
    """
    import pyarrow as pa

    unnamed = [level for level, name in enumerate(frame.index.names) if name is None]
    frame = frame.reset_index(level=unnamed, drop=True) if unnamed else frame
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(level=named, allow_duplicates=True) if named else frame
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def repeated_column(names: Sequence[str]) -> str | None:
    """Return the first name that several columns have; None if all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def require_pyarrow(user: str) -> ModuleType:
    """Return the module `pyarrow`.

    Arguments:
        user: the name of the feature that needs the module, for the error message.

    Raises:
        GraphError: if pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise GraphError(
            f'{user} needs pyarrow: install it with pip install "penstock[columns]"'
        ) from error
    module: ModuleType = pyarrow
    return module


def check_schema(user: str, schema: object) -> pa.Schema | None:
    """Return the schema that a program passes, or None.

    Arguments:
        user: the name of the feature that takes the schema, for the error message.
        schema: a `pyarrow.Schema`, a mapping from the name to the type of each column, or None.

    Raises:
        GraphError: if it is something else, or if a type is unknown.
    """
    if schema is None:
        return None
    pa = require_pyarrow(user)
    if isinstance(schema, pa.Schema):
        if repeated := repeated_column(schema.names):
            raise GraphError(f"the schema of {user} has several columns {repeated!r}")
        return schema
    if not isinstance(schema, Mapping) or not schema:
        raise GraphError(
            f"the schema of {user} is a pyarrow.Schema, or a dict of the types of its columns such "
            f'as {{"user": "string", "amount": "int64"}}, not {schema!r}'
        )
    fields = []
    for name, kind in schema.items():
        try:
            fields.append(pa.field(name, kind))
        except (TypeError, ValueError) as error:
            raise GraphError(
                f"the schema of {user} has no usable type for column {name!r}: {error}"
            ) from None
    return pa.schema(fields)
