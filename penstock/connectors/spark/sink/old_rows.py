"""Read the rows of a table's own files, as a rewrite must keep them.

The files may come from another writer and an older schema. A column's name may be in other cases,
the column may be missing or have a narrower type, and old days may be of another calendar. If a
row cannot be kept as Spark reads it, the file is refused.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.connectors.spark.calendars import has_old_calendar
from penstock.dataflow.errors import JobError

__all__ = ["conform", "old_rows"]

#: From this year on, both calendars and all time zones in them agree.
_FIRST_DAY = datetime.date(1582, 10, 15)
_FIRST_INSTANT = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)


def old_rows(files: Iterable[Path], format: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files, with the columns of the present schema.

    Arguments:
        files: the files.
        format: "parquet" or "orc".
        schema: the present schema.

    Raises:
        JobError: if a file's rows cannot be kept as they are.
    """
    for path in files:
        if format == "parquet":
            # Old versions of Spark wrote instants with 96 bits.
            file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
            with file:
                old_calendar = has_old_calendar(file.metadata.metadata)
                for batch in file.iter_batches(1 << 16):
                    rows = conform(pa.Table.from_batches([batch]), schema, path)
                    if old_calendar:
                        _require_new_times(rows, path)
                    yield rows
        else:
            from pyarrow import orc

            # Spark and Arrow give the numbers of days before 1582 the same meaning. They are kept,
            # although Python would read them as other days.
            source = orc.ORCFile(path)
            for stripe in range(source.nstripes):
                table = pa.Table.from_batches([source.read_stripe(stripe)])
                yield conform(table, schema, path)


def _require_new_times(rows: pa.Table, path: Path) -> None:
    """Check that a file of the old calendar has no times that differ in the new one."""
    for field in rows.schema:
        kind = field.type
        if pa.types.is_nested(kind):
            old = re.search(r"date32|tz=", str(kind)) is not None  # nested values are not inspected
        elif pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None):
            first = pa.scalar(_FIRST_DAY if pa.types.is_date(kind) else _FIRST_INSTANT, kind)
            old = pc.any(pc.less(rows[field.name], first)).as_py() is True
        else:
            old = False
        if old:
            raise JobError(
                f"{path} cannot be rewritten: an old Spark, or one in the mode LEGACY, wrote it, "
                f"and its column {field.name!r} may hold times of the old calendar. Rewrite "
                f"the table's files with Spark, with "
                f"spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
            )


def conform(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    """Return the rows of a file with the columns of the present schema.

    Arguments:
        table: the rows.
        schema: the present schema.
        path: of the file, for errors.

    Raises:
        JobError: if the values of a column cannot be converted to its present type.
    """
    columns = []
    for field, index in zip(schema, _places(table.schema.names, schema.names, path), strict=True):
        if index is None:
            columns.append(pa.nulls(len(table), field.type))  # a column that was added later
            continue
        column = table.column(index)
        kind = _renamed(column.type, field.type, path)
        if kind != column.type:
            column = pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise JobError(
                f"{path} cannot be rewritten: its column {field.name!r} is {column.type}, and the "
                f"table's is {field.type} ({error})"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _places(found: Sequence[str], wanted: Sequence[str], path: Path) -> list[int | None]:
    """Return the place of each wanted name among those found, ignoring case as Spark."""
    places: list[int | None] = []
    for name in wanted:
        alike = [i for i, other in enumerate(found) if other == name] or [
            i
            for i, other in enumerate(found)
            if other.lower() == name.lower() and other not in wanted
        ]
        if len(alike) > 1:
            raise JobError(
                f"{path} cannot be rewritten: it has the columns {[found[i] for i in alike]}, and "
                f"each may be the table's {name!r}. Rewrite the table's files with Spark"
            )
        places.append(alike[0] if alike else None)
    return places


def _renamed(found: pa.DataType, wanted: pa.DataType, path: Path) -> pa.DataType:
    """Return a type with its struct fields renamed, because Arrow casts by name."""
    if found.id != wanted.id or not pa.types.is_nested(found):
        return found
    if pa.types.is_list(found):
        return pa.list_(_renamed_field(found.value_field, wanted.value_field, path))
    if pa.types.is_map(found):
        return pa.map_(
            _renamed_field(found.key_field, wanted.key_field, path),
            _renamed_field(found.item_field, wanted.item_field, path),
        )
    if not pa.types.is_struct(found):
        return found
    fields = [found.field(i) for i in range(found.num_fields)]
    names = [wanted.field(i).name for i in range(wanted.num_fields)]
    for i, place in enumerate(_places([f.name for f in fields], names, path)):
        if place is not None:
            field = wanted.field(i)
            fields[place] = _renamed_field(fields[place], field, path).with_name(field.name)
    return pa.struct(fields)


def _renamed_field(found: pa.Field, wanted: pa.Field, path: Path) -> pa.Field:
    return found.with_type(_renamed(found.type, wanted.type, path))
