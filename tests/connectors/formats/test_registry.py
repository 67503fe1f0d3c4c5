"""Messages whose schema is in a registry: round trips, evolution, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock import GraphError, JobError
from penstock.connectors.formats import (
    Avro,
    Json,
    MessageDecoder,
    MessageEncoder,
    Protobuf,
    Registered,
    SchemaContext,
    SchemaRegistry,
    SimpleStringSchema,
)
from penstock.dataflow.errors import Recoverability
from penstock.testing.servers import FakeSchemaRegistry
from tests.connectors.formats.protos import empty_order, message_class, order_file

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "name", "type": "string"}],
}


def user_with(*fields: Any) -> dict[str, Any]:
    return {**USER, "fields": [*USER["fields"], *fields]}  # type: ignore[misc]


@pytest.fixture
def fake() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as registry:
        yield registry


def registry_at(fake: FakeSchemaRegistry, **options: Any) -> SchemaRegistry:
    return SchemaRegistry(fake.url, retries=1, options={"retries.max.wait.ms": 10}, **options)


def encoded(schema: Registered, records: list[Any], topic: str = "users") -> list[bytes]:
    return MessageEncoder(schema, SchemaContext(topic)).encode(records)


def decoded(schema: Registered, messages: list[bytes]) -> list[Any]:
    decoder = MessageDecoder(schema, SchemaContext("users"))
    return decoder.decode(messages, lambda index: f"users/0@{index}").records


def test_avro_is_registered_and_read_with_its_schema(fake: FakeSchemaRegistry) -> None:
    users = Registered(Avro(USER), registry_at(fake))
    messages = encoded(users, [{"name": "ann"}, {"name": "bob"}])
    assert messages[0] == b"\0\0\0\0\x01\x06ann"
    assert fake.subjects == {"users-value": [1]}
    assert json.loads(fake.schemas[0]["schema"]) == USER
    reader = Registered(Avro(), registry_at(fake))
    assert decoded(reader, messages) == [{"name": "ann"}, {"name": "bob"}]
    assert sum(path.startswith("/schemas/ids/1") for _, path in fake.requests) == 1


@pytest.mark.parametrize(
    ("naming", "is_key", "subject"),
    [
        ("topic", False, "users-value"),
        ("topic", True, "users-key"),
        ("record", False, "shop.User"),
        ("topic-record", False, "users-shop.User"),
        (lambda topic, is_key, record: f"{topic}/{is_key}/{record}", True, "users/True/shop.User"),
    ],
)
def test_subjects_have_the_name_of_their_strategy(
    fake: FakeSchemaRegistry, naming: Any, is_key: bool, subject: str
) -> None:
    users = Registered(Avro(USER), registry_at(fake), subject_naming=naming)
    MessageEncoder(users, SchemaContext("users", is_key)).encode([{"name": "ann"}])
    assert list(fake.subjects) == [subject]


def test_a_source_reads_messages_of_several_versions_as_its_own_schema(
    fake: FakeSchemaRegistry,
) -> None:
    age = {"name": "age", "type": "int", "default": -1}
    old = encoded(Registered(Avro(USER), registry_at(fake)), [{"name": "ann"}])
    newer = user_with(age)
    new = encoded(Registered(Avro(newer), registry_at(fake)), [{"name": "bob", "age": 7}])
    assert fake.subjects == {"users-value": [1, 2]}
    both = [*old, *new, *old]
    as_new = Registered(Avro(newer), registry_at(fake))
    assert decoded(as_new, both) == [
        {"name": "ann", "age": -1},
        {"name": "bob", "age": 7},
        {"name": "ann", "age": -1},
    ]
    as_old = Registered(Avro(USER), registry_at(fake))
    assert decoded(as_old, both) == [{"name": "ann"}, {"name": "bob"}, {"name": "ann"}]

    @dataclass
    class User:
        name: str
        age: int

    typed = Registered(Avro(newer, type=User), registry_at(fake))
    assert decoded(typed, both) == [User("ann", -1), User("bob", 7), User("ann", -1)]


def test_a_schema_that_the_registry_refuses_says_why(fake: FakeSchemaRegistry) -> None:
    encoded(Registered(Avro(USER), registry_at(fake)), [{"name": "ann"}])
    newer = user_with({"name": "age", "type": "int"})
    with pytest.raises(JobError) as caught:
        encoded(Registered(Avro(newer), registry_at(fake)), [{"name": "ann", "age": 1}])
    text = str(caught.value)
    assert "refuses to register a schema under subject 'users-value'" in text
    assert "incompatible with an earlier version of the subject; change the schema" in text
    assert "age: the writer has no such field, and the reader has no default" in text
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE


def test_a_schema_that_must_be_there_is_only_looked_up(fake: FakeSchemaRegistry) -> None:
    strict = Registered(Avro(USER), registry_at(fake), auto_register=False)
    with pytest.raises(JobError, match="does not have this schema under subject 'users-value'"):
        encoded(strict, [{"name": "ann"}])
    encoded(Registered(Avro(USER), registry_at(fake)), [{"name": "ann"}])
    assert encoded(strict, [{"name": "ann"}]) == [b"\0\0\0\0\x01\x06ann"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "does not begin with a zero byte"),
        (b"\0\0\0", "does not begin with a zero byte"),
        (b'{"a": 1}', "does not begin with a zero byte"),
        (b"\0\0\0\0\x63xx", "has no schema with id 99"),
        (b"\0\0\0\0\x01", "too short|read"),
        (b"\0\0\0\0\x01\x06annx", "1 bytes follow the value"),
        (b"\0\0\0\0\x02{}", "schema 2 is JSON, and Avro reads AVRO"),
        (b"\0\0\0\0\x03\x06ann", "cannot be read with the schema of Avro.*no default"),
    ],
)
def test_messages_that_do_not_fit_say_why(
    fake: FakeSchemaRegistry, message: bytes, reason: str
) -> None:
    good = encoded(Registered(Avro(USER), registry_at(fake)), [{"name": "ann"}])
    encoded(Registered(Json(dict[str, int]), registry_at(fake), subject="j"), [{"a": 1}])
    other = {**USER, "fields": [{"name": "title", "type": "string"}]}
    encoded(Registered(Avro(other), registry_at(fake), subject="o"), [{"title": "ann"}])
    source = Registered(Avro(USER, on_error="side_output"), registry_at(fake))
    decoder = MessageDecoder(source, SchemaContext("users"))
    found = decoder.decode([*good, message, *good], lambda index: f"users/0@{index}")
    assert found == ([{"name": "ann"}] * 2, [0, 2])
    ((_, bad),) = decoder.take_side_output()
    assert (bad.message, bad.place) == (message, "users/0@1")
    with pytest.raises(ValueError, match=reason):
        source.deserialize([message])


def test_an_outage_is_a_failure_of_the_environment_and_no_bad_message(
    fake: FakeSchemaRegistry,
) -> None:
    messages = encoded(Registered(Avro(USER), registry_at(fake)), [{"name": "ann"}])
    source = Registered(Avro(on_error="skip"), registry_at(fake))
    with fake.outage(), pytest.raises(JobError, match="cannot be reached to get") as caught:
        decoded(source, messages)
    assert caught.value.recoverability is Recoverability.ENVIRONMENT
    assert decoded(source, messages) == [{"name": "ann"}]
    with fake.outage(), pytest.raises(JobError, match="cannot be reached to register"):
        encoded(Registered(Avro(USER), registry_at(fake)), [{"name": "ann"}])
    gone = SchemaRegistry("http://127.0.0.1:1", retries=0)
    with pytest.raises(JobError, match="cannot be reached to get schema 1") as caught:
        decoded(Registered(Avro(), gone), messages)
    assert caught.value.recoverability is Recoverability.ENVIRONMENT


def test_wrong_credentials_end_the_job() -> None:
    with FakeSchemaRegistry(user="ann", password="secret") as fake:
        good = registry_at(fake, user="ann", password="secret")
        messages = encoded(Registered(Avro(USER), good), [{"name": "ann"}])
        wrong = registry_at(fake, user="ann", password="guess")
        for attempt in (
            lambda: decoded(Registered(Avro(), wrong), messages),
            lambda: encoded(Registered(Avro(USER), wrong), [{"name": "ann"}]),
        ):
            with pytest.raises(JobError, match="the user or the password is wrong") as caught:
                attempt()
            assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
            assert "guess" not in str(caught.value)


@dataclass
class Item:
    name: str
    count: int = 1


def test_json_is_registered_with_the_schema_of_its_type(fake: FakeSchemaRegistry) -> None:
    items = Registered(Json(Item), registry_at(fake))
    (message,) = encoded(items, [Item("pen")])
    assert message == b'\0\0\0\0\x01{"name":"pen","count":1}'
    assert fake.schemas[0]["schemaType"] == "JSON"
    schema = json.loads(fake.schemas[0]["schema"])
    assert schema["$defs"]["Item"]["required"] == ["name"]
    assert decoded(items, [message]) == [Item("pen")]
    assert decoded(Registered(Json(), registry_at(fake)), [message]) == [
        {"name": "pen", "count": 1}
    ]
    with pytest.raises(GraphError, match="a sink needs the type of its messages"):
        encoded(Registered(Json(), registry_at(fake)), [1])


def test_protobuf_is_registered_with_the_files_that_it_imports(fake: FakeSchemaRegistry) -> None:
    kind = message_class()
    orders = Registered(Protobuf(kind), registry_at(fake))
    records = [{**empty_order(), "id": 1, "customer": {"name": "ann"}}, empty_order()]
    messages = encoded(orders, records)
    assert messages[1] == b"\0\0\0\0\x02\0"
    assert fake.subjects == {"customers.proto": [1], "users-value": [2]}
    assert fake.schemas[1]["references"] == [
        {"name": "customers.proto", "subject": "customers.proto", "version": 1}
    ]
    assert decoded(orders, messages) == records
    sent = cloudpickle.loads(cloudpickle.dumps(orders))
    assert decoded(sent, messages) == records


def test_a_protobuf_message_is_known_by_its_place_in_the_writers_file(
    fake: FakeSchemaRegistry,
) -> None:
    later = message_class("shop.Order", order_file(with_note=True, first="Refund"))
    note = {**empty_order(), "id": 7, "note": "new"}
    messages = encoded(Registered(Protobuf(later), registry_at(fake)), [note])
    assert messages[0][5:7] == b"\x02\x02"  # one number: 1
    reader = Registered(Protobuf(message_class()), registry_at(fake))
    assert decoded(reader, messages) == [{**empty_order(), "id": 7}]
    line = message_class("shop.Order.Line", order_file())
    messages = encoded(Registered(Protobuf(line), registry_at(fake)), [{"number": 3}])
    assert messages[0][5:8] == b"\x04\0\x04"  # two numbers: 0, 2
    assert decoded(Registered(Protobuf(line), registry_at(fake)), messages) == [{"number": 3}]
    with pytest.raises(ValueError, match=r"it is a shop\.Order\.Line, and not a shop\.Order"):
        reader.deserialize(messages)
    with pytest.raises(ValueError, match="ends within the place of its type"):
        reader.deserialize([messages[0][:6]])
    with pytest.raises(ValueError, match="no message type at"):
        reader.deserialize([messages[0][:5] + b"\x02\x40"])


def test_confluents_own_serializers_read_and_write_the_same(fake: FakeSchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": fake.url})
    place = SerializationContext("users", MessageField.VALUE)
    users = Registered(Avro(USER), registry_at(fake))
    theirs = AvroSerializer(client, json.dumps(USER))({"name": "ann"}, place)
    assert decoded(users, [theirs]) == [{"name": "ann"}]
    (ours,) = encoded(users, [{"name": "ann"}])
    assert ours == theirs
    assert AvroDeserializer(client)(ours, place) == {"name": "ann"}
    kind = message_class()
    place = SerializationContext("orders", MessageField.VALUE)
    orders = Registered(Protobuf(kind), registry_at(fake))
    options = {"use.deprecated.format": False}
    theirs = ProtobufSerializer(kind, client, options)(kind(id=3), place)
    assert decoded(orders, [theirs]) == [{**empty_order(), "id": 3}]
    (ours,) = encoded(orders, [{"id": 3}], "orders")
    assert ProtobufDeserializer(kind, options)(ours, place) == kind(id=3)


def test_wrong_arguments_are_refused(fake: FakeSchemaRegistry) -> None:
    registry = registry_at(fake)
    with pytest.raises(GraphError, match="Registered takes Avro"):
        Registered(SimpleStringSchema(), registry)
    with pytest.raises(GraphError, match="takes a SchemaRegistry"):
        Registered(Avro(), fake.url)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="subject_naming is 'topic'"):
        Registered(Avro(), registry, subject_naming="subject")
    with pytest.raises(GraphError, match="needs a URL such as"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(GraphError, match="both user and password"):
        SchemaRegistry(fake.url, user="ann")
    with pytest.raises(JobError, match="cannot be made: Unrecognized properties: nonsense"):
        decoded(
            Registered(Avro(), SchemaRegistry(fake.url, options={"nonsense": 1})),
            [b"\0\0\0\0\x01"],
        )
    with pytest.raises(GraphError, match=r"give Registered.* the argument subject="):
        MessageEncoder(Registered(Avro(USER), registry), SchemaContext()).encode([{"name": "a"}])
    with pytest.raises(GraphError, match="a sink needs the schema of its messages"):
        encoded(Registered(Avro(), registry), [{"name": "a"}])


def test_an_avro_schema_may_refer_to_others(fake: FakeSchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": fake.url})
    client.register_schema("user", Schema(json.dumps(USER)))
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "user", "type": "shop.User"}, {"name": "n", "type": "int"}],
    }
    reference = SchemaReference("shop.User", "user", 1)
    id = client.register_schema("order", Schema(json.dumps(order), references=[reference]))
    message = b"\0\0\0\0" + bytes([id]) + b"\x06ann\x04"
    orders = Registered(Avro(), registry_at(fake))
    assert decoded(orders, [message]) == [{"user": {"name": "ann"}, "n": 2}]
    whole = {**order, "fields": [{"name": "user", "type": USER}, order["fields"][1]]}  # type: ignore[index]
    assert decoded(Registered(Avro(whole), registry_at(fake)), [message]) == [
        {"user": {"name": "ann"}, "n": 2}
    ]
