"""Map Spark types to Arrow types, and document their Python values.

Spark type              Arrow type             Python value
----------------------  ---------------------  --------------------------------------------------
boolean                 bool                   bool
tinyint … bigint        int8 … int64           int
float, double           float, double          float
decimal(p, s)           decimal128(p, s)       decimal.Decimal, of the same scale
string, char, varchar   string                 str
binary                  binary                 bytes
date                    date32                 datetime.date
timestamp               timestamp[us, UTC]     datetime.datetime with the zone datetime.UTC
timestamp_ntz           timestamp[us]          datetime.datetime without a zone
time(p)                 time64[us]             datetime.time; not written
interval day to second  duration[us]           datetime.timedelta
interval year to month  int32                  int, a number of months
array<T>                list<T>                list
map<K, V>               map<K, V>              dict; a list of pairs if K is no plain value
struct<…>               struct<…>              dict, by the names of its fields
geography, geometry     binary                 bytes, as WKB without its system; not written
variant                 string                 str, as JSON; only as a whole column; not written
void                    null                   None; not written
a user-defined type     as its SQL type        as its SQL type; not written

NULL is None, also within lists, maps and structs. A timestamp is an instant. Sources return it with
the zone UTC, in any time zone of the session. Sinks accept a timestamp with any zone, and refuse
one without a zone. Spark cannot write a CalendarInterval to a file; cast it to a string.

The Arrow type of a column is chosen by its Spark type, and not by the type in the file, because
Parquet stores intervals as plain numbers. No function of this module needs a Spark session. The
source of the table is the page "Data Types" of Spark's docs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_BY_NAME = {
    "boolean": "bool_",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "binary": "binary",
    "date": "date32",
    "void": "null",
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a table, with Spark's columns in their order.

    Arguments:
        schema: the schema of a DataFrame. The Arrow columns have the same nullability. Values
            within lists, maps and structs may always be null.

    Raises:
        GraphError: if the type of a column has no counterpart in Python, or if two columns have
            the same name.
    """
    import pyarrow as pa

    names = [field.name for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise GraphError(f"two columns have the name {twice[0]!r}: rename one of them")
    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.dataType, field.name), field.nullable)
            for field in schema.fields
        ]
    )


def arrow_type(spark_type: DataType, column: str = "?") -> pa.DataType:
    """Return the Arrow type for a Spark type.

    Arguments:
        spark_type: the Spark type.
        column: the name of the column, for error messages. A field within a struct is called
            `column.field`.

    Raises:
        GraphError: if the Spark type has no counterpart in Python.
    """
    import pyarrow as pa
    from pyspark.sql import types as t

    match spark_type:
        case t.DecimalType():
            return pa.decimal128(spark_type.precision, spark_type.scale)
        case t.StringType() | t.CharType() | t.VarcharType() | t.VariantType():
            if isinstance(spark_type, t.VariantType) and _is_nested(column):
                raise GraphError(
                    f"{column} is a variant within another column: select it as a column of its "
                    f"own, or as text with to_json()"
                )
            return pa.string()
        case t.TimestampType():
            return pa.timestamp("us", tz="UTC")
        case t.TimestampNTZType():
            return pa.timestamp("us")
        case t.DayTimeIntervalType():
            return pa.duration("us")
        case t.YearMonthIntervalType():
            return pa.int32()
        case t.ArrayType():
            return pa.list_(arrow_type(spark_type.elementType, f"{column}[]"))
        case t.MapType():
            key = arrow_type(spark_type.keyType, f"{column}{{key}}")
            return pa.map_(key, arrow_type(spark_type.valueType, f"{column}{{value}}"))
        case t.StructType():
            return pa.struct(
                [(f.name, arrow_type(f.dataType, f"{column}.{f.name}")) for f in spark_type.fields]
            )
        case t.UserDefinedType():
            return arrow_type(spark_type.sqlType(), column)
    name = spark_type.simpleString()
    if name in _BY_NAME:
        return getattr(pa, _BY_NAME[name])()
    # These types are recognized by name, because older versions of pyspark lack their classes.
    if name.startswith("time("):
        return pa.time64("us")
    if name.startswith(("geography", "geometry")):
        return pa.binary()
    raise GraphError(
        f"column {column} has the Spark type {name}, which has no counterpart in Python here: "
        f"cast it to another, such as string"
    )


def _is_nested(column: str) -> bool:
    return any(sign in column for sign in ("[]", "{", "."))
