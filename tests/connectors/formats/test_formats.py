"""What each format encodes, it decodes to the same, and it refuses what is something else."""

from __future__ import annotations

import base64
import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import cloudpickle
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import GraphError, JobError, Row, Types
from penstock.connectors.formats import (
    Avro,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    ByteArraySchema,
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    Json,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    MessageDecoder,
    MessageEncoder,
    Protobuf,
    SchemaContext,
    SimpleStringSchema,
)
from penstock.connectors.formats.avro_compatibility import why_unreadable
from tests.connectors.formats.protos import empty_order, message_class


def there_and_back(write: Any, records: list[Any], read: Any = None) -> list[Any]:
    """Encode and decode with copies of the schemas, as workers have them."""
    write, read = cloudpickle.loads(cloudpickle.dumps((write, read or write)))
    messages = MessageEncoder(write, SchemaContext()).encode(records)
    assert all(type(message) is bytes for message in messages)
    return MessageDecoder(read, SchemaContext()).decode(messages, str).records


def misfit(schema: Any, message: bytes) -> str:
    """Return why a message does not fit."""
    with pytest.raises(JobError) as caught:
        MessageDecoder(schema, SchemaContext()).decode([message], lambda _: "place")
    assert caught.value.message.startswith("place: a message is not valid ")
    return caught.value.message


# ---- JSON

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
# A lone surrogate is no text in UTF-8.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(TEXTS, parts, max_size=4),
    max_leaves=12,
)


class Colour(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: str


class Place(TypedDict):
    city: str


class Struct(msgspec.Struct):
    a: int


class Other(msgspec.Struct):
    b: int


@dataclass
class Order:
    id: int
    amount: Decimal
    at: datetime
    day: date
    colour: Colour
    pair: Pair
    place: Place
    struct: Struct
    key: UUID
    data: bytes = b""
    tags: list[str] = field(default_factory=list)
    parent: Order | None = None


ORDERS = st.builds(
    Order,
    id=st.integers(-(2**63), 2**63 - 1),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    at=st.datetimes(timezones=st.just(UTC)),
    day=st.dates(),
    colour=st.just(Colour.RED),
    pair=st.builds(Pair, st.integers(0, 9), TEXTS),
    place=st.fixed_dictionaries({"city": TEXTS}),
    struct=st.builds(Struct, st.integers(0, 9)),
    key=st.uuids(),
    data=st.binary(),
    tags=st.lists(TEXTS),
    parent=st.none(),
)


@given(st.lists(VALUES))
def test_json_values_come_back(values: list[Any]) -> None:
    assert there_and_back(Json(), values) == values


@given(st.lists(ORDERS))
def test_json_of_dataclasses_comes_back(orders: list[Order]) -> None:
    assert there_and_back(Json(Order), orders) == orders


def test_json_of_other_types_comes_back() -> None:
    for kind, values in (
        (Pair, [Pair(1, "a")]),
        (Place, [{"city": "Ulm"}]),
        (Struct, [Struct(1)]),
        (dict[str, list[int]], [{"a": [1]}]),
        (int | str, [1, "a"]),
    ):
        assert there_and_back(Json(kind), values) == values
    row = Row(b=1, a=[Row(1, 2)])
    assert there_and_back(Json(), [row]) == [{"a": [[1, 2]], "b": 1}]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "Input data was truncated"),
        (b'{"a": 1', "Input data was truncated"),
        (b'{"a": 1} x', "JSON is malformed: trailing characters"),
        (b'{"a": "1"}', r"Expected `int`, got `str` - at `$.a`"),
        (b"{}", "Object missing required field `a`"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"\xff": 1}', "Invalid UTF-8|missing"),
        (b"NaN", "JSON is malformed"),
        (b"[" * 100_000, "recursion|truncated|Expected"),
    ],
)
def test_json_that_does_not_fit_is_a_misfit(message: bytes, reason: str) -> None:
    text = misfit(Json(Struct), message)
    assert any(part in text for part in reason.split("|"))


def test_a_deep_message_is_a_misfit_of_untyped_json() -> None:
    misfit(Json(), b"[" * 100_000 + b"]" * 100_000)


def test_json_may_take_texts_for_numbers() -> None:
    assert Json(Struct, strict=False).deserialize([b'{"a": "7"}']) == [Struct(7)]


def test_a_type_that_json_cannot_have_is_refused() -> None:
    with pytest.raises(GraphError, match="Json cannot decode to"):
        Json(Struct | Other)
    assert "'utf-8' codec" in misfit(Json(Place), b'{"city": "\xff"}')


ROW = Types.ROW_NAMED(
    ["id", "name", "ok", "price", "day", "at", "data", "tags", "inner", "map", "clock", "pair"],
    [
        Types.LONG(),
        Types.STRING(),
        Types.BOOLEAN(),
        Types.BIG_DEC(),
        Types.SQL_DATE(),
        Types.SQL_TIMESTAMP(),
        Types.PRIMITIVE_ARRAY(Types.BYTE()),
        Types.LIST(Types.INT()),
        Types.ROW_NAMED(["x"], [Types.DOUBLE()]),
        Types.MAP(Types.STRING(), Types.INT()),
        Types.SQL_TIME(),
        Types.TUPLE([Types.INT(), Types.STRING()]),
    ],
)
FULL = Row("id", *ROW.get_field_names()[1:])(  # type: ignore[attr-defined]
    1,
    "ann",
    True,
    Decimal("1.50"),
    date(2024, 2, 29),
    datetime(2024, 2, 29, 12, 30, 1, 5),
    b"\x00\xff",
    [1, None, 3],
    Row(x=0.5),
    {"a": 1},
    time(1, 2, 3),
    (1, "a"),
)
EMPTY = Row("id", *ROW.get_field_names()[1:])(*[None] * 12)  # type: ignore[attr-defined]


def test_rows_come_back_from_json() -> None:
    write = JsonRowSerializationSchema.builder().with_type_info(ROW).build()
    read = JsonRowDeserializationSchema.builder().type_info(ROW).build()
    assert there_and_back(write, [FULL, EMPTY], read) == [FULL, EMPTY]
    (message,) = write.serialize([FULL])
    value = msgspec.json.decode(message)
    assert value["at"] == "2024-02-29T12:30:01.000005Z"
    assert value["clock"] == "01:02:03Z"
    assert base64.b64decode(value["data"]) == b"\x00\xff"


def test_json_rows_that_do_not_fit_are_misfits() -> None:
    kind = Types.ROW_NAMED(["a", "d"], [Types.INT(), Types.SQL_DATE()])
    read = JsonRowDeserializationSchema.builder().type_info(kind).build()
    assert read.deserialize([b'{"b": 1}', b'{"a": 2, "d": null}']) == [
        Row(a=None, d=None),
        Row(a=2, d=None),
    ]
    assert "field 'a': 'x' is no INT" in misfit(read, b'{"a": "x"}')
    assert "field 'd': 'x' is no SQL_DATE" in misfit(read, b'{"d": "x"}')
    assert "out of the range of INT" in misfit(read, b'{"a": 5000000000}')
    assert "[1] is no ROW" in misfit(read, b"[1]")
    strict = JsonRowDeserializationSchema.builder().type_info(kind).fail_on_missing_field().build()
    assert "field 'd' is missing" in misfit(strict, b'{"a": 1}')
    skipping = JsonRowDeserializationSchema.builder().type_info(kind).ignore_parse_errors().build()
    assert skipping.on_error == "skip"
    for builder in (JsonRowDeserializationSchema.builder(), JsonRowSerializationSchema.builder()):
        with pytest.raises(GraphError, match="of the builder before build"):
            builder.build()
    with pytest.raises(GraphError, match="takes the type of a row"):
        JsonRowDeserializationSchema.builder().type_info(Types.INT()).build()
    with pytest.raises(GraphError, match="not from a JSON schema"):
        JsonRowDeserializationSchema.builder().json_schema("{}")
    write = JsonRowSerializationSchema.builder().with_type_info(kind).build()
    with pytest.raises(JobError, match="cannot encode a record: 'x' is no INT"):
        MessageEncoder(write, SchemaContext()).encode([Row(1, None), Row("x", None)])


# ---- CSV

CSV = Types.ROW_NAMED(
    ["n", "text", "ok", "f", "d", "day", "list"],
    [
        Types.LONG(),
        Types.STRING(),
        Types.BOOLEAN(),
        Types.DOUBLE(),
        Types.BIG_DEC(),
        Types.SQL_DATE(),
        Types.LIST(Types.INT()),
    ],
)
CSV_ROWS = st.builds(
    lambda *values: Row("n", "text", "ok", "f", "d", "day", "list")(*values),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.none() | st.booleans(),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.decimals(allow_nan=False),
    st.none() | st.dates(),
    st.none() | st.lists(st.integers(-9, 9), min_size=1),
)


@given(st.lists(CSV_ROWS))
def test_rows_come_back_from_csv(rows: list[Row]) -> None:
    write = CsvRowSerializationSchema.Builder(CSV).set_null_literal("\\N").build()
    read = CsvRowDeserializationSchema.Builder(CSV).set_null_literal("\\N").build()
    rows = [row for row in rows if row["text"] != "\\N"]
    assert there_and_back(write, rows, read) == rows


def test_line_ends_in_csv_fields_come_back_or_are_refused() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.STRING()])
    rows = [Row(a, b) for a in ("\n", "x\r", "\r\n") for b in ("", "y\nz")]
    write = CsvRowSerializationSchema.Builder(kind).build()
    read = CsvRowDeserializationSchema.Builder(kind).build()
    assert [list(row) for row in there_and_back(write, rows, read)] == [list(row) for row in rows]
    assert write.serialize([Row("x", "\r\n")]) == [b'x,"\r\n"']
    without_quotes = CsvRowSerializationSchema.Builder(kind).disable_quote_character().build()
    with pytest.raises(ValueError, match="need to escape"):
        without_quotes.serialize([Row("\n", "")])


def test_csv_has_the_characters_of_its_options() -> None:
    kind = Types.ROW_NAMED(["a", "b", "c"], [Types.INT(), Types.STRING(), Types.STRING()])
    write = (
        CsvRowSerializationSchema.Builder(kind)
        .set_field_delimiter(";")
        .set_quote_character("'")
        .set_line_delimiter("\r\n")
        .build()
    )
    assert write.serialize([Row(1, "x;y", None)]) == [b"1;'x;y';\r\n"]
    read = (
        CsvRowDeserializationSchema.Builder(kind)
        .set_field_delimiter(";")
        .set_quote_character("'")
        .set_allow_comments()
        .set_ignore_parse_errors()
        .build()
    )
    decoder = MessageDecoder(read, SchemaContext())
    messages = [b"1;'x;y';", b"# no row", None, b"x;y;z", b"2;'a\nb';c\r\n"]
    found = decoder.decode(messages, str)
    assert found.records == [Row(a=1, b="x;y", c=""), Row(a=2, b="a\nb", c="c")]
    assert found.origins == [0, 4]
    plain = CsvRowSerializationSchema.Builder(kind).disable_quote_character().build()
    with pytest.raises(JobError, match="need to escape"):
        MessageEncoder(plain, SchemaContext()).encode([Row(1, "x,y", "")])
    escaped = (
        CsvRowSerializationSchema.Builder(kind)
        .disable_quote_character()
        .set_escape_character("\\")
        .build()
    )
    assert escaped.serialize([Row(1, "x,y", "")]) == [b"1,x\\,y,"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"1", "it has 1 fields instead of 2"),
        (b"1,a,b", "it has 3 fields instead of 2"),
        (b"x,a", "field 'a': 'x' is no INT"),
        (b"1,a\n2,b", "it has 2 rows instead of one"),
        (b'1,"a', "unexpected end of data"),
        (b"1,\xff", "can't decode byte 0xff"),
        (b"", "it has 1 fields instead of 2"),
    ],
)
def test_csv_that_does_not_fit_is_a_misfit(message: bytes, reason: str) -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    assert reason in misfit(CsvRowDeserializationSchema(kind), message)


def test_wrong_options_of_csv_are_refused() -> None:
    kind = Types.ROW_NAMED(["a"], [Types.INT()])
    with pytest.raises(GraphError, match="delimiter"):
        CsvRowSerializationSchema(kind, field_delimiter=";;")
    with pytest.raises(GraphError, match="takes the type of a row"):
        CsvRowDeserializationSchema.Builder(Types.INT())


# ---- Avro

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "data", "type": "bytes"},
        {"name": "map", "type": {"type": "map", "values": "double"}},
    ],
}
AVRO_ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | TEXTS,
        "at": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
        "price": st.decimals(-(10**9), 10**9, places=2),
        "tags": st.lists(TEXTS),
        "data": st.binary(),
        "map": st.dictionaries(TEXTS, st.floats(allow_nan=False)),
    }
)


@given(st.lists(AVRO_ORDERS))
def test_avro_records_come_back(orders: list[dict[str, Any]]) -> None:
    assert there_and_back(Avro(ORDER), orders) == orders


@dataclass
class Line:
    n: int
    inner: Pair | None = None
    price: Decimal = Decimal(0)


LINE: dict[str, Any] = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "n", "type": "int"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        },
    ],
}


@dataclass
class Priced:
    n: int
    price: Decimal


def test_avro_of_a_type_comes_back() -> None:
    lines = [Priced(1, Decimal("1.500")), Priced(-1, Decimal("0.001"))]
    assert there_and_back(Avro(LINE, type=Priced), lines) == lines
    pair = {
        **LINE,
        "fields": [{"name": "left", "type": "int"}, {"name": "right", "type": "string"}],
    }
    assert there_and_back(Avro(pair), [Pair(1, "a")]) == [{"left": 1, "right": "a"}]
    assert there_and_back(Avro("string"), ["a"]) == ["a"]
    assert "Expected `int`" in misfit(Avro('"string"', type=int), b"\x02a")


def test_a_schema_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "line.avsc"
    path.write_bytes(msgspec.json.encode(LINE))
    for schema in (path, str(path), path.read_text()):
        assert Avro(schema).schema == LINE
    with pytest.raises(GraphError, match="cannot be read: No such file"):
        Avro(tmp_path / "gone.avsc")


@pytest.mark.parametrize(
    "message",
    [b"", b"\x02", b"\xff" * 20, b"\x02\x7fx", b"\x02\x02\x01\x00", b"\x02\x04\x01"],
)
def test_avro_that_does_not_fit_is_a_misfit(message: bytes) -> None:
    misfit(Avro(LINE), message)


def test_records_that_avro_cannot_have_are_refused() -> None:
    for record, reason in (
        ({"n": 1}, "no value and no default|price"),
        ({"n": "x", "price": Decimal(1)}, "x|int|str"),
        ({"n": 1, "price": Decimal(1), "more": 1}, "more"),
    ):
        with pytest.raises(JobError, match="Avro cannot encode a record") as caught:
            MessageEncoder(Avro(LINE), SchemaContext()).encode([record])
        assert any(part in caught.value.message for part in reason.split("|")), caught.value


@pytest.mark.parametrize(
    "schema",
    ["{", {"type": "record"}, {"type": "nothing"}, "nothing", {"type": "array"}, 7],
)
def test_wrong_avro_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(GraphError, match="not a valid Avro schema"):
        Avro(schema)


def test_avro_needs_a_schema() -> None:
    with pytest.raises(GraphError, match=r"write Registered\(Avro\(\), registry\)"):
        Avro().deserialize([b""])


def test_avro_rows_come_back() -> None:
    text = msgspec.json.encode(ORDER).decode()
    write, read = (
        AvroRowSerializationSchema(avro_schema_string=text),
        AvroRowDeserializationSchema(avro_schema_string=text),
    )
    at = datetime(2024, 1, 1, tzinfo=UTC)
    row = Row("id", "name", "at", "price", "tags", "data", "map")
    full = row(1, None, at, Decimal("1.50"), ["a"], b"x", {})
    (found,) = there_and_back(write, [full], read)
    assert found.get_field_names() == full.get_field_names()
    assert list(found)[:6] == list(full)[:6]
    unnamed = Row(1, None, at, Decimal("1.50"), ["a"], b"x", {})
    assert there_and_back(write, [unnamed], read) == [found]
    with pytest.raises(GraphError, match="a class of the JVM"):
        AvroRowDeserializationSchema("com.shop.Order")
    with pytest.raises(GraphError, match="needs avro_schema_string"):
        AvroRowSerializationSchema()
    with pytest.raises(GraphError, match="needs the schema of a record"):
        AvroRowSerializationSchema(avro_schema_string='"int"')


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def of(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


TREE = record(of("n", "int"), of("next", ["null", "Tree"]), name="Tree")
#: The writer's schema, the reader's schema, and why data cannot be read; None if they can.
PAIRS: list[tuple[Any, Any, str | None]] = [
    ("int", "long", None),
    ("int", "double", None),
    ("long", "int", "the schema: long cannot be read as int"),
    ("string", "bytes", None),
    ("int", ["null", "int"], None),
    ("int", ["null", "string"], "the union of the reader has no int"),
    (["null", "int"], "int", "null cannot be read as int"),
    (["null", "int"], ["null", "long", "string"], None),
    (record(of("a", "int")), record(of("a", "long")), None),
    (record(of("a", "int")), record(), None),
    (record(), record(of("a", "int")), "a: the writer has no such field, and the reader has no"),
    (record(), record(of("a", "int", default=1)), None),
    (record(of("b", "int")), record(of("a", "int", aliases=["b"])), None),
    (record(of("a", "int")), record(of("a", "string")), "a: int cannot be read as string"),
    (
        record(of("a", record(of("b", "int"), name="X"))),
        record(of("a", record(of("b", "int"), name="Y"))),
        "a: record X cannot be read as Y",
    ),
    (
        record(of("a", record(of("b", "int"), name="X"))),
        record(of("a", record(of("b", "int"), of("c", "int"), name="X"))),
        "a.c: the writer has no such field",
    ),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, None),
    (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "string"},
        "[]: int cannot be read as string",
    ),
    (
        {"type": "map", "values": "int"},
        {"type": "map", "values": "string"},
        "{}: int cannot be read as string",
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        "the enum of the reader has no 'B' and no default",
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
        None,
    ),
    (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 5},
        "fixed(4) cannot be read as fixed(5)",
    ),
    (TREE, TREE, None),
    (TREE, record(of("n", "string"), of("next", ["null", "Tree"]), name="Tree"), "n: int cannot"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-millis"},
        None,
    ),
]


@pytest.mark.parametrize(("writer", "reader", "reason"), PAIRS)
def test_avro_schemas_are_compared(writer: Any, reader: Any, reason: str | None) -> None:
    found = why_unreadable(writer, reader)
    assert found is None if reason is None else reason in (found or "")
    if reason is None:
        Avro(writer, reader_schema=reader)
    else:
        with pytest.raises(GraphError, match="cannot be read with reader_schema"):
            Avro(writer, reader_schema=reader)


def test_a_reader_schema_fills_new_fields_and_leaves_out_old_ones() -> None:
    writer = record(of("a", "int"), of("b", "string"))
    reader = record(of("a", "long"), of("c", "string", default="none"))
    schema = Avro(writer, reader_schema=reader)
    assert there_and_back(schema, [{"a": 1, "b": "x"}]) == [{"a": 1, "c": "none"}]


# ---- Protobuf

PROTO_ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "amount": st.floats(allow_nan=False),
        "tags": st.lists(TEXTS),
        "customer": st.none() | st.fixed_dictionaries({"name": TEXTS}),
        "parts": st.lists(st.integers(0, 9).map(lambda n: {**empty_order(), "id": n}), max_size=2),
        "counts": st.dictionaries(TEXTS, st.integers(-9, 9)),
        "others": st.dictionaries(TEXTS, st.fixed_dictionaries({"name": TEXTS}), max_size=2),
        "data": st.binary(),
        "state": st.integers(0, 1),
        "discount": st.none() | st.integers(-9, 9),
    }
)


@given(st.lists(PROTO_ORDERS, max_size=4))
def test_protobuf_messages_come_back_as_dicts(orders: list[dict[str, Any]]) -> None:
    assert there_and_back(Protobuf(message_class()), orders) == orders


def test_protobuf_messages_come_back_as_messages() -> None:
    kind = message_class()
    schema = Protobuf(kind, form="message")
    orders = [kind(id=1, state="PAID", customer={"name": "ann"}), kind()]
    assert schema.deserialize(schema.serialize(orders)) == orders
    # A worker gets the definition of a class that is in no module.
    (found, _) = there_and_back(schema, [{"id": 1, "tags": ["a"]}, {}])
    assert (found.id, list(found.tags)) == (1, ["a"])


@pytest.mark.parametrize("message", [b"\xff", b"\x08", b"\x12\x05a", b"\x1a\x02\xff\xfe"])
def test_protobuf_that_does_not_fit_is_a_misfit(message: bytes) -> None:
    if message == b"\x12\x05a":
        message = b"\x42\x05a"
    misfit(Protobuf(message_class()), message)


def test_records_that_protobuf_cannot_have_are_refused() -> None:
    encoder = MessageEncoder(Protobuf(message_class()), SchemaContext())
    for record in ({"nothing": 1}, {"id": "x"}, {"id": 2**70}, [1], {"state": "LOST"}):
        with pytest.raises(JobError, match="Protobuf cannot encode a record"):
            encoder.encode([record])
    with pytest.raises(GraphError, match="a class that protoc has generated"):
        Protobuf(dict)
    with pytest.raises(GraphError, match='form of Protobuf is "dict" or "message"'):
        Protobuf(message_class(), form="json")


# ---- plain


@given(st.lists(TEXTS), st.lists(st.binary()))
def test_texts_and_bytes_come_back(texts: list[str], data: list[bytes]) -> None:
    assert there_and_back(SimpleStringSchema(), texts) == texts
    assert there_and_back(ByteArraySchema(), data) == data


def test_only_bytes_are_written_as_bytes() -> None:
    with pytest.raises(JobError, match="it is str, and not bytes"):
        MessageEncoder(ByteArraySchema(), SchemaContext()).encode(["a"])


def test_json_of_numbers_that_json_lacks_is_refused_or_null() -> None:
    # As the JSON module of JavaScript does.
    assert Json().serialize([math.nan]) == [b"null"]
