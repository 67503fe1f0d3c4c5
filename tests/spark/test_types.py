"""Every Spark type goes to Python as documented, and back."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock import GraphError, JobError
from penstock.connectors.spark import SparkTableSource
from penstock.connectors.spark.record_decoding import to_python
from penstock.connectors.spark.spark_types import arrow_schema
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from tests.spark.test_table_source import pinned, read_all

_UTC = datetime.UTC
_TS = datetime.datetime(2024, 2, 3, 4, 5, 6, 123456)

#: SQL, and what it is in Python.
CASES: dict[str, tuple[str, Any]] = {
    "boolean": ("true", True),
    "byte": ("cast(-128 as byte)", -128),
    "short": ("cast(2 as short)", 2),
    "int": ("3", 3),
    "long": ("9223372036854775807L", 2**63 - 1),
    "float": ("cast(1.5 as float)", 1.5),
    "double": ("2.5D", 2.5),
    "decimal": ("cast(1.25 as decimal(10, 3))", Decimal("1.250")),
    "wide decimal": (
        "cast('12345678901234567890.1230' as decimal(38, 4))",
        Decimal("12345678901234567890.1230"),
    ),
    "string": ("'ü'", "ü"),
    "binary": ("X'0102'", b"\1\2"),
    "date": ("date'2024-02-03'", datetime.date(2024, 2, 3)),
    "old date": ("date'1500-02-03'", datetime.date(1500, 2, 3)),
    "timestamp": (
        "timestamp'2024-02-03 04:05:06.123456+02:00'",
        _TS.replace(hour=2, tzinfo=_UTC),
    ),
    "old timestamp": (
        "timestamp'1500-02-03 04:05:06.123456Z'",
        _TS.replace(year=1500, tzinfo=_UTC),
    ),
    "far timestamp": (
        "timestamp'9999-12-31 23:59:59.999999Z'",
        datetime.datetime.max.replace(tzinfo=_UTC),
    ),
    "timestamp_ntz": ("timestamp_ntz'2024-02-03 04:05:06.123456'", _TS),
    "day-time interval": (
        "interval '-1 02:03:04.5' day to second",
        -datetime.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
    ),
    "year-month interval": ("interval '1-2' year to month", 14),
    "array": ("array(1, null, 2)", [1, None, 2]),
    "map": ("map('a', 1, 'b', null)", {"a": 1, "b": None}),
    "map with struct keys": ("map(named_struct('k', 1), 2)", [({"k": 1}, 2)]),
    "struct": ("named_struct('x', 1, 'y', 'z')", {"x": 1, "y": "z"}),
    "nested": (
        "named_struct('a', array(named_struct('t', timestamp'2024-02-03 04:05:06.123456Z', "
        "'i', interval '1' day)), 'm', map(1, array(date'2024-02-03', null)))",
        {
            "a": [{"t": _TS.replace(tzinfo=_UTC), "i": datetime.timedelta(days=1)}],
            "m": {1: [datetime.date(2024, 2, 3), None]},
        },
    ),
    "char": ("cast('ab' as char(5))", "ab"),
    "variant": ("""parse_json('{"a": [1, "b"]}')""", '{"a":[1,"b"]}'),
    "void": ("null", None),
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """For each type a value, a null before and one after it, all read from one pin."""
    columns = ", ".join(f"if(id = 1, {sql}, null) AS `{name}`" for name, (sql, _) in CASES.items())
    frame = spark.range(0, 3, 1, 1).selectExpr("*").createOrReplaceTempView("ids")
    assert frame is None
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    source = SparkTableSource(query=f"SELECT {columns} FROM ids")
    pinned(source, tmp_path_factory.mktemp("types"))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    first, middle, last = read_all(source)
    assert set(first.values()) | set(last.values()) == {None}
    return middle


def _same(value: Any, expected: Any) -> bool:
    """Equal in value and type, at any depth, and with the same zone."""
    if type(value) is not type(expected) or value != expected:
        return False
    if isinstance(expected, datetime.datetime):
        return value.tzinfo is expected.tzinfo
    if isinstance(expected, Decimal):
        return value.as_tuple() == expected.as_tuple()
    if isinstance(expected, dict):
        return all(_same(value[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        return all(map(_same, value, expected))
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_every_type_is_what_the_table_says(rows: dict[str, Any], name: str):
    assert _same(rows[name], CASES[name][1]), repr(rows[name])


def test_every_value_can_be_a_record(rows: dict[str, Any]):
    codec = Codec(TypeRegistry([]))
    [record] = codec.decode_batch(codec.encode_batch([rows]))
    assert all(_same(record[name], rows[name]) for name in CASES)


def test_what_python_says_goes_back_to_the_same_spark_value(
    spark: SparkSession, rows: dict[str, Any], tmp_path: Path
):
    # Variant and void are not written; intervals are plain numbers in Parquet.
    names = [n for n in CASES if n not in ("variant", "void") and "interval" not in n]
    names.remove("nested")
    columns = ", ".join(f"{CASES[name][0]} AS `{name}`" for name in names)
    frame = spark.sql(f"SELECT {columns}")
    schema = arrow_schema(frame.schema)
    table = pa.Table.from_pylist([{name: rows[name] for name in names}], schema=schema)
    assert table.to_pylist()[0].keys() == set(names)
    pq.write_table(table, tmp_path / "back.parquet")
    back = spark.read.parquet(str(tmp_path / "back.parquet"))
    assert back.collect() == frame.collect()


def test_a_date_that_python_cannot_say_is_an_error_that_names_the_column():
    days = pa.array([0, None, 5_000_000], pa.int32()).cast(pa.date32())
    with pytest.raises(JobError, match="column d holds a date before the year 1 or after 9999"):
        to_python(days, days.type, "d")
    instants = pa.array([-(10**17)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(JobError, match=r"column t\.x"):
        structs = pa.StructArray.from_arrays([instants], names=["x"])
        to_python(structs, structs.type, "t")


def test_a_slice_of_nested_columns_gives_its_own_values():
    values = [None, [], [{"a": 1}], [None, {"a": None}], [{"a": 2}, {"a": 3}]]
    arrow_type = pa.list_(pa.struct([("a", pa.int32())]))
    array = pa.array(values, arrow_type)
    for start in range(len(values)):
        assert to_python(array.slice(start, 2), arrow_type, "c") == values[start : start + 2]
    maps = [None, [("a", 1)], [], [("b", None), ("c", 3)]]
    array = pa.array(maps, pa.map_(pa.string(), pa.int32()))
    expected = [None if pairs is None else dict(pairs) for pairs in maps]
    for start in range(len(maps)):
        assert to_python(array.slice(start, 2), array.type, "c") == expected[start : start + 2]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("make_interval(1) AS i", "column i has the Spark type interval"),
        ("array(make_interval(1)) AS i", r"column i\[\] has the Spark type interval"),
        ("named_struct('v', parse_json('1')) AS s", "s.v is a variant within another column"),
    ],
)
def test_a_type_with_no_counterpart_is_refused_with_the_columns_name(
    spark: SparkSession, sql: str, message: str
):
    with pytest.raises(GraphError, match=message):
        arrow_schema(spark.sql(f"SELECT {sql}").schema)


def test_geography_comes_as_wkb(spark: SparkSession, tmp_path: Path):
    point = "0101000000000000000000F03F0000000000000040"
    source = SparkTableSource(query=f"SELECT st_geogfromwkb(X'{point}') AS g")
    pinned(source, tmp_path)
    assert read_all(source) == [{"g": bytes.fromhex(point)}]


def test_timestamps_of_files_with_the_old_layout_are_instants(spark: SparkSession, tmp_path: Path):
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    frame = spark.sql("SELECT timestamp'1500-02-03 04:05:06.5Z' AS t, timestamp_ntz'2024-01-01' n")
    for columns, linked in ((["t"], True), (["t", "n"], False)):
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
        path = str(tmp_path / f"table{linked}")
        frame.select(*columns).write.parquet(path)
        spark.conf.set("spark.sql.parquet.outputTimestampType", before)
        source = SparkTableSource(spark.read.parquet(path), columns=["t"])
        pin = pinned(source, tmp_path / f"pins{linked}")
        expected = datetime.datetime(1500, 2, 3, 4, 5, 6, 500000, tzinfo=_UTC)
        assert read_all(source) == [{"t": expected}]
        assert pin.linked
        # A time without a zone and an instant look the same there, so Spark reads them.
        both = SparkTableSource(spark.read.parquet(path))
        assert pinned(both, tmp_path / f"both{linked}").linked == linked
        assert read_all(both)[0]["t"] == expected
