"""Load a static table that is joined with the records of a stream.

A table in the memory of the program is sent to the workers with the program. If the table is a
Parquet file or a function, each worker reads the file or calls the function itself. Only functions
of this module import pyarrow.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.columns.arrow import data_frame_table, repeated_column
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.type_variables import UserFunction, UserValue

_TABLES = (
    "a mapping, a pyarrow.Table, a DataFrame of pandas, Polars or Spark, the path of a Parquet "
    "file or folder, or a function without arguments that returns one of these"
)


@dataclass
class StaticTable:
    """A table that each worker loads.

    Arguments:
        name: the name of the table in messages.
        source: a mapping, the bytes of an Arrow stream, the path of a Parquet file or folder, or a
            function that returns a table.
        key: the names of the key's columns; None for a mapping.
        as_tuple: whether keys are tuples.
        many: whether a key may have several rows.
    """

    name: str
    source: UserValue
    key: tuple[str, ...] | None
    as_tuple: bool
    many: bool

    def load(self) -> dict[UserValue, UserValue]:
        """Return the row of each key; with `many`, a list of the rows of each key.

        Raises:
            GraphError: if the table has no such columns, or several rows for a key.
            JobError: if the table cannot be read.
        """
        source = self.source
        if callable(source) and not isinstance(source, Mapping):
            source = _packed(source(), self.name)
        if isinstance(source, Mapping):
            return self._of_mapping(source)
        try:
            table = _read(source)
        except (OSError, ValueError) as error:
            raise JobError(
                f"{self.name} cannot be read: {error}; give the path of a Parquet file, or of a "
                f"folder of such files, that each worker can read"
            ) from error
        return self._of_rows(table)

    def _of_mapping(self, mapping: Mapping[UserValue, UserValue]) -> dict[UserValue, UserValue]:
        if self.many:
            for key, rows in mapping.items():
                if not isinstance(rows, list | tuple):
                    raise GraphError(
                        f"with many=True, a mapping has a list of rows for each key, and "
                        f"{self.name} has {rows!r} for {key!r}"
                    )
        return dict(mapping)

    def _of_rows(self, table: UserValue) -> dict[UserValue, UserValue]:
        if self.key is None:
            raise GraphError(f"{self.name} has columns: say which are its key, with key=...")
        self.check_columns(table.column_names)
        columns = [table.column(name).to_pylist() for name in self.key]
        keys: Sequence[object] = list(zip(*columns, strict=True)) if self.as_tuple else columns[0]
        rows = table.to_pylist()
        pairs = [(key, row) for key, row in zip(keys, rows, strict=True) if not _is_null(key)]
        if self.many:
            found: dict[UserValue, UserValue] = {}
            for key, row in pairs:
                found.setdefault(key, []).append(row)
            return found
        found = dict(pairs)
        if len(found) < len(pairs):
            key, count = Counter(key for key, _ in pairs).most_common(1)[0]
            raise GraphError(
                f"{self.name} has {count} rows with the key {key!r}: a record is joined with one "
                f"row; remove the others, or set many=True to join a record with each of them"
            )
        return found

    def check_columns(self, names: Sequence[str]) -> None:
        """Check that columns with these names form rows, and that the key is among them.

        Raises:
            GraphError: if several columns have the same name, or a column of the key is missing.
        """
        if repeated := repeated_column(names):
            raise GraphError(f"{self.name} has several columns {repeated!r}: rename or remove them")
        for column in self.key or ():
            if column not in names:
                raise GraphError(
                    f"{self.name} has no column {column!r} for the key; it has "
                    f"{', '.join(map(repr, names))}"
                )


def static_table(table: UserValue, key: UserValue, many: bool) -> StaticTable:
    """Return the description of a table that a program passes to a join.

    Arguments:
        table: a mapping, a table in memory, a path, or a function.
        key: the name of the key's column, or a tuple or list of names; None for a mapping.
        many: whether a key may have several rows.

    Raises:
        GraphError: if an argument has the wrong type, or if a path does not exist. Also if a table
            in memory lacks a key column, or has several rows for a key.
    """
    columns: tuple[str, ...] | None = None
    if key is not None:
        columns = tuple(key) if isinstance(key, tuple | list) else (key,)
        if not columns or not all(isinstance(column, str) for column in columns):
            raise GraphError(f"key=... is the name of a column, or a tuple of names, not {key!r}")
    name = f"the table {_shown(table)}"
    packed = table if callable(table) and not isinstance(table, Mapping) else _packed(table, name)
    made = StaticTable(name, packed, columns, not isinstance(key, str), many)
    if columns is not None and isinstance(packed, Mapping):
        raise GraphError("key=... is for tables with columns: the keys of a mapping are its keys")
    if columns is None and isinstance(packed, bytes | str):
        raise GraphError(f"{name} has columns: say which are its key, with key=...")
    if isinstance(packed, bytes | Mapping):
        made.load()  # which checks the table
    elif isinstance(packed, str):
        _check_parquet(made, packed)
    return made


def _check_parquet(table: StaticTable, path: str) -> None:
    import pyarrow.dataset

    try:
        schema = pyarrow.dataset.dataset(path, format="parquet").schema
    except (OSError, ValueError) as error:
        raise GraphError(
            f"{table.name} cannot be read: {error}; give the path of a Parquet file, or of a "
            f"folder of such files"
        ) from error
    table.check_columns(schema.names)


def _packed(table: UserValue, name: str) -> UserValue:
    """Return a table as a mapping, the bytes of an Arrow stream, or an absolute path."""
    if isinstance(table, Mapping):
        return table
    if isinstance(table, str | os.PathLike):
        return str(Path(without_scheme(os.fspath(table))).absolute())
    arrow = _as_arrow(table)
    if arrow is None:
        raise GraphError(f"join_table takes {_TABLES}, and got {name.removeprefix('the table ')}")
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    return sink.getvalue().to_pybytes()


def _as_arrow(table: UserValue) -> UserValue:
    """Return a table in memory as a `pyarrow.Table`; None if the value is not a table."""
    library = type(table).__module__.partition(".")[0]
    if library == "pyarrow" and hasattr(table, "to_pylist") and hasattr(table, "schema"):
        import pyarrow as pa

        return pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    if library == "polars" and hasattr(table, "to_arrow"):
        return table.to_arrow()
    if library == "pyspark" and hasattr(table, "toArrow"):
        return table.toArrow()
    if library == "pyspark" and hasattr(table, "toPandas"):
        table, library = table.toPandas(), "pandas"
    if library == "pandas" and hasattr(table, "columns"):
        return data_frame_table(table)
    return None


def _read(source: bytes | str) -> UserValue:
    import pyarrow as pa
    import pyarrow.dataset

    if isinstance(source, bytes):
        return pa.ipc.open_stream(source).read_all()
    return pyarrow.dataset.dataset(source, format="parquet").to_table()


def _is_null(key: object) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)


def _shown(table: UserValue) -> str:
    if isinstance(table, str | os.PathLike):
        return repr(os.fspath(table))
    named: UserFunction | type = table if hasattr(table, "__qualname__") else type(table)
    return f"{named.__module__}.{named.__qualname__}"
