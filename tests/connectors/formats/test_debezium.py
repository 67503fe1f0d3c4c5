"""Changes of a database in Debezium's envelopes: rows with kinds, changes, and what is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import cloudpickle
import pytest

from penstock import GraphError, JobError, Row, RowKind, Types
from penstock.connectors.formats import (
    Avro,
    Debezium,
    DebeziumChange,
    Json,
    MessageDecoder,
    MessageEncoder,
    Registered,
    SchemaContext,
    SchemaRegistry,
    SimpleStringSchema,
)
from penstock.testing.servers import FakeSchemaRegistry

ANN, BOB = {"id": 1, "name": "ann"}, {"id": 1, "name": "bob"}


def envelope(op: str, before: Any = None, after: Any = None, **more: Any) -> bytes:
    source = {"connector": "postgresql", "table": "users", "lsn": 7}
    value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 5, **more}
    return json.dumps(value).encode()


def row(kind: RowKind, **values: Any) -> Row:
    return Row.of_kind(kind, **values)


CHANGES = [
    (envelope("r", None, ANN), [row(RowKind.INSERT, **ANN)]),
    (envelope("c", None, ANN), [row(RowKind.INSERT, **ANN)]),
    (
        envelope("u", ANN, BOB),
        [row(RowKind.UPDATE_BEFORE, **ANN), row(RowKind.UPDATE_AFTER, **BOB)],
    ),
    (envelope("d", BOB), [row(RowKind.DELETE, **BOB)]),
    (None, []),
    (envelope("m"), []),
]


def test_changes_become_rows_with_kinds() -> None:
    decoder = MessageDecoder(cloudpickle.loads(cloudpickle.dumps(Debezium())), SchemaContext())
    found = decoder.decode([message for message, _ in CHANGES], str)
    assert found.records == [one for _, rows in CHANGES for one in rows]
    assert found.origins == [0, 1, 2, 2, 3]


def test_rows_have_the_declared_type() -> None:
    kind = Types.ROW_NAMED(["name", "id", "day"], [Types.STRING(), Types.INT(), Types.SQL_DATE()])
    schema = Debezium(type_info=kind)
    message = envelope("u", {**ANN, "day": "2024-02-29"}, BOB)
    assert schema.deserialize([message]) == [
        [
            row(RowKind.UPDATE_BEFORE, name="ann", id=1, day=date(2024, 2, 29)),
            row(RowKind.UPDATE_AFTER, name="bob", id=1, day=None),
        ]
    ]
    with pytest.raises(ValueError, match="field 'id': 'x' is no INT"):
        schema.deserialize([envelope("c", None, {"id": "x"})])


@dataclass
class User:
    id: int
    name: str


def test_changes_have_everything_that_debezium_says() -> None:
    ((change,), nothing, (truncated,)) = Debezium(form="changes").deserialize(
        [envelope("u", ANN, BOB), None, envelope("t")]
    )
    assert change == DebeziumChange(
        "u", ANN, BOB, {"connector": "postgresql", "table": "users", "lsn": 7}, 5
    )
    assert nothing == []
    assert (truncated.op, truncated.before, truncated.after) == ("t", None, None)
    typed = Debezium(form="changes", type=User)
    ((change,),) = typed.deserialize([envelope("u", ANN, BOB)])
    assert (change.before, change.after) == (User(1, "ann"), User(1, "bob"))
    with pytest.raises(ValueError, match="missing required field `name`"):
        typed.deserialize([envelope("c", None, {"id": 1})])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "no envelope of Debezium, because it has no operation"),
        (b'{"id": 1, "name": "ann"}', "ExtractNewRecordState writes plain rows"),
        (b'{"op": 1}', "no envelope"),
        (envelope("x"), "op is 'x', which no row can say"),
        (envelope("t"), "op is 't', which no row can say"),
        (envelope("u", None, BOB), "REPLICA IDENTITY FULL"),
        (envelope("d"), "REPLICA IDENTITY FULL"),
        (envelope("c"), "there is no row after the change"),
        (envelope("c", None, 7), "after is 7, and not a row"),
        (b'{"schema": {}, "payload": {"op": "c", "after": {}}}', "its schema is not one of"),
        (b'{"schema": null, "payload": 7}', "no envelope"),
    ],
)
def test_messages_that_do_not_fit_say_why(message: bytes, reason: str) -> None:
    decoder = MessageDecoder(Debezium(on_error="side_output"), SchemaContext())
    good = envelope("c", None, ANN)
    assert decoder.decode([good, message, None, good], str).origins == [0, 3]
    ((_, bad),) = decoder.take_side_output()
    assert (bad.message, bad.place) == (message, "1")
    assert reason in bad.reason


def typed_field(name: str, kind: str, logical: str | None = None, **more: Any) -> dict[str, Any]:
    field = {"field": name, "type": kind, "optional": True, **more}
    return field if logical is None else {**field, "name": logical}


FIELDS = [
    typed_field("id", "int32"),
    typed_field("day", "int32", "io.debezium.time.Date"),
    typed_field("milli", "int64", "io.debezium.time.Timestamp"),
    typed_field("micro", "int64", "io.debezium.time.MicroTimestamp"),
    typed_field("nano", "int64", "io.debezium.time.NanoTimestamp"),
    typed_field("zoned", "string", "io.debezium.time.ZonedTimestamp"),
    typed_field("clock", "int64", "io.debezium.time.MicroTime"),
    typed_field(
        "price", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}
    ),
    typed_field("any", "struct", "io.debezium.data.VariableScaleDecimal", fields=[]),
    typed_field("data", "bytes"),
    typed_field("inner", "struct", fields=[typed_field("day", "int32", "io.debezium.time.Date")]),
]
SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "before", "type": "struct", "fields": FIELDS},
        {"field": "after", "type": "struct", "fields": FIELDS},
        {"field": "op", "type": "string"},
    ],
}
RAW = {
    "id": 1,
    "day": 19782,
    "milli": 1_700_000_000_123,
    "micro": 1_700_000_000_123_456,
    "nano": 1_700_000_000_123_456_789,
    "zoned": "2024-02-29T12:00:00+02:00",
    "clock": 3_600_000_001,
    "price": "/5w=",  # -100
    "any": {"scale": 3, "value": "BNI="},
    "data": "AP8=",
    "inner": {"day": 0},
}
VALUES = {
    "id": 1,
    "day": date(2024, 2, 29),
    "milli": datetime(2023, 11, 14, 22, 13, 20, 123_000),
    "micro": datetime(2023, 11, 14, 22, 13, 20, 123_456),
    "nano": datetime(2023, 11, 14, 22, 13, 20, 123_456),
    "zoned": datetime(2024, 2, 29, 10, tzinfo=UTC),
    "clock": time(1, 0, 0, 1),
    "price": Decimal("-1.00"),
    "any": Decimal("1.234"),
    "data": b"\x00\xff",
    "inner": {"day": date(1970, 1, 1)},
}


def with_schema(payload: bytes) -> bytes:
    return json.dumps({"schema": SCHEMA, "payload": json.loads(payload)}).encode()


def test_an_envelope_with_its_schema_has_values_of_logical_types() -> None:
    schema = Debezium(form="changes")
    message = with_schema(envelope("u", {"id": 1, "day": None}, RAW))
    ((change,),) = schema.deserialize([message])
    assert change.before == {"id": 1, "day": None}
    assert change.after == VALUES
    ((plain,),) = schema.deserialize([envelope("c", None, RAW)])
    assert plain.after == RAW
    with pytest.raises(ValueError, match="field 'day': 'x'"):
        schema.deserialize([with_schema(envelope("c", None, {"day": "x"}))])


def test_rows_are_written_as_flink_writes_them() -> None:
    rows = [one for _, rows in CHANGES for one in rows]
    messages = MessageEncoder(Debezium(), SchemaContext()).encode(rows)
    assert [json.loads(message) for message in messages] == [
        {"before": None, "after": ANN, "op": "c"},
        {"before": None, "after": ANN, "op": "c"},
        {"before": ANN, "after": None, "op": "d"},
        {"before": None, "after": BOB, "op": "c"},
        {"before": BOB, "after": None, "op": "d"},
    ]
    kind = Types.ROW_NAMED(["day"], [Types.SQL_DATE()])
    (message,) = Debezium(type_info=kind).serialize([Row(date(2024, 1, 1))])
    assert json.loads(message)["after"] == {"day": "2024-01-01"}
    with pytest.raises(JobError, match="it is int, and not a Row or DebeziumChange"):
        MessageEncoder(Debezium(), SchemaContext()).encode([1])


def test_changes_come_back() -> None:
    schema = Debezium(form="changes")
    changes = [
        DebeziumChange("u", ANN, BOB, {"table": "users"}, 5),
        DebeziumChange("d", ANN),
        DebeziumChange("t"),
    ]
    messages = MessageEncoder(schema, SchemaContext()).encode(changes)
    assert MessageDecoder(schema, SchemaContext()).decode(messages, str).records == changes


AVRO = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "int"},
                        {"name": "name", "type": ["null", "string"], "default": None},
                    ],
                },
            ],
            "default": None,
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def test_envelopes_may_be_avro_in_a_registry() -> None:
    with FakeSchemaRegistry() as fake:
        registry = SchemaRegistry(fake.url)
        write = Debezium(Registered(Avro(AVRO), registry), form="changes")
        changes = [DebeziumChange("u", ANN, BOB, None, 5), DebeziumChange("c", None, ANN)]
        messages = MessageEncoder(write, SchemaContext("users")).encode(changes)
        read = Debezium(Registered(Avro(), registry))
        found = MessageDecoder(read, SchemaContext("users")).decode([*messages, None], str)
        assert found.records == [*changes[0].to_rows(), *changes[1].to_rows()]
        rows = found.records
        messages = MessageEncoder(write, SchemaContext("users")).encode(rows)
        assert len(MessageDecoder(read, SchemaContext()).decode(messages, str).records) == 3


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(GraphError, match="the envelope of Debezium is Json"):
        Debezium(SimpleStringSchema)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="the envelope of Debezium is Json"):
        Debezium(Debezium())
    with pytest.raises(GraphError, match='"rows" or "changes"'):
        Debezium(form="row")
    with pytest.raises(GraphError, match="rows have a type_info"):
        Debezium(type=User)
    with pytest.raises(GraphError, match="changes have a type"):
        Debezium(Json(), form="changes", type_info=Types.ROW([Types.INT()]))
    with pytest.raises(GraphError, match="takes the type of a row"):
        Debezium(type_info=Types.INT())
