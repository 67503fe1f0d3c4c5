"""Read the existing rows of a table, so that an upsert can write them to new files unchanged.

Other programs may have written the files, and with an older schema. A column name may differ in
case, a column may be missing or have a narrower type, and old dates may be in the Julian calendar.
If a rewrite would change the rows that Spark reads, an error is raised.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.connectors.lake.calendars import has_old_calendar
from penstock.dataflow.errors import JobError

#: The first day on which the Julian and the Gregorian calendar of Spark agree, and the first
#: instant at which the time zone offsets of old and new Spark versions agree.
_FIRST_DAY = datetime.date(1582, 10, 15)
_FIRST_INSTANT = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)


def old_rows(files: Iterable[Path], format: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of data files, converted to the current schema of the table.

    Arguments:
        files: the paths of the files.
        format: "parquet" or "orc".
        schema: the current schema.

    Raises:
        JobError: if the rows of a file cannot be rewritten without a change.
    """
    for path in files:
        if format == "parquet":
            # Old versions of Spark wrote timestamps with 96 bits (INT96).
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

            # Arrow copies the numbers of days before 1582 unchanged, so Spark reads the same dates.
            # A conversion to Python dates would change the days.
            source = orc.ORCFile(path)
            for stripe in range(source.nstripes):
                table = pa.Table.from_batches([source.read_stripe(stripe)])
                yield conform(table, schema, path)


def _require_new_times(rows: pa.Table, path: Path) -> None:
    """Check that a file of an old Spark has no dates or times that the new calendar changes.

    Raises:
        JobError: if a column has such a date or time, or may have one within nested values.
    """
    for field in rows.schema:
        kind = field.type
        if pa.types.is_nested(kind):
            # Nested values are not inspected; they are refused if they may contain dates or times.
            old = re.search(r"date32|tz=", str(kind)) is not None
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
    """Convert the rows of a file to the current schema of the table.

    Arguments:
        table: the rows of the file.
        schema: the current schema.
        path: the path of the file, for error messages.

    Raises:
        JobError: if the values of a column cannot be converted to its current type.
    """
    columns = []
    for field, index in zip(schema, _places(table.schema.names, schema.names, path), strict=True):
        if index is None:
            # The column was added to the table after this file was written.
            columns.append(pa.nulls(len(table), field.type))
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
    """Return the index of each wanted column in a file, or None if the file lacks it.

    An exact match is preferred. Otherwise the case of names is ignored, as Spark does.

    Raises:
        JobError: if several columns of the file match one name.
    """
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
    """Return the type in a file with the struct field names of the table.

    Arrow matches struct fields by name when it casts.
    """
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
