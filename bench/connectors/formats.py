"""`formats`: messages decoded and records encoded per second, by format, on one core.

The figures `*_decoded_per_second` are those of a `MessageDecoder` that gets batches of 1,000
messages, as the sources use it, and `*_encoded_per_second` those of a `MessageEncoder`. A record is
an order with a number, a text, a sum, a time and two tags; as JSON it has about 100 bytes. All
formats have the same orders. `json_to_stdlib_ratio` divides the rate of `Json()` by that of
`json.loads` in a plain loop, and `json_dataclass_to_stdlib_ratio` the rate of `Json(Order)` by that
of `json.loads` and a call of the class.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.common.harness import Figures, Say, WrongResultError
from penstock import Row, Types
from penstock.connectors.formats import (
    Avro,
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    Debezium,
    DebeziumChange,
    Json,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    MessageDecoder,
    MessageEncoder,
    Protobuf,
    Registered,
    SchemaContext,
    SchemaRegistry,
    SimpleStringSchema,
)
from penstock.testing.servers import FakeSchemaRegistry

__all__ = ["measure"]

BATCH = 1_000


@dataclass
class Order:
    """The record of most formats."""

    id: int
    customer: str
    amount: float
    time: int
    tags: list[str]


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "time", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
ROW = Types.ROW_NAMED(
    list(Order.__dataclass_fields__),
    [Types.LONG(), Types.STRING(), Types.DOUBLE(), Types.LONG(), Types.LIST(Types.STRING())],
)


def measure(
    records: int | None = None, rounds: int = 3, folder: str | None = None, say: Say = print
) -> Figures:
    """Measure each format.

    Arguments:
        records: the number of records of a measurement; 100,000 if it is None.
        rounds: the number of runs; the best counts.
        folder: not used.
        say: told what happens.
    """
    del folder
    count = records or 100_000
    orders = [
        Order(n, f"customer {n % 997}", n % 10_000 / 100, 1_700_000_000_000 + n, ["new", "web"])
        for n in range(count)
    ]
    dicts = list(map(asdict, orders))
    row = Row(*Order.__dataclass_fields__)
    rows = [row(*one.values()) for one in dicts]
    changes = [DebeziumChange("u", one, one, None, 1) for one in dicts]
    figures: Figures = {}
    with _frozen(), FakeSchemaRegistry() as fake:
        registry = SchemaRegistry(fake.url)
        cases: list[tuple[str, Any, Any, list[Any]]] = [
            ("json", Json(), None, dicts),
            ("json_dataclass", Json(Order), None, orders),
            ("json_row", JsonRowSerializationSchema(ROW), JsonRowDeserializationSchema(ROW), rows),
            ("avro", Avro(AVRO), None, dicts),
            ("avro_dataclass", Avro(AVRO, type=Order), None, orders),
            ("avro_registry", Registered(Avro(AVRO), registry), None, dicts),
            ("protobuf", Protobuf(_message_class()), None, dicts),
            ("csv_row", CsvRowSerializationSchema(ROW), CsvRowDeserializationSchema(ROW), rows),
            ("debezium", Debezium(form="changes"), None, changes),
            ("text", SimpleStringSchema(), None, list(map(json.dumps, dicts))),
        ]
        for name, write, read, wanted in cases:
            say(name)
            figures |= _rates(name, write, read or write, wanted, rounds)
        figures |= _compared(dicts, rounds, figures)
    return figures


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the garbage collector from what was made before, as workers do."""
    already = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not already:
            gc.unfreeze()


def _compared(dicts: list[Any], rounds: int, figures: Figures) -> Figures:
    """Compare JSON with the module of the standard library."""
    messages = MessageEncoder(Json(), SchemaContext()).encode(dicts)
    parts = _parts(messages)
    plain = _best(rounds, parts, lambda part: [json.loads(one) for one in part])
    made = _best(rounds, parts, lambda part: [Order(**json.loads(one)) for one in part])
    typed = figures["json_dataclass_decoded_per_second"]
    return {
        "stdlib_json_decoded_per_second": plain,
        "json_to_stdlib_ratio": round(figures["json_decoded_per_second"] / plain, 2),
        "json_dataclass_to_stdlib_ratio": round(typed / made, 2),
    }


def _rates(name: str, write: Any, read: Any, records: list[Any], rounds: int) -> Figures:
    context = SchemaContext("orders")
    encode = MessageEncoder(write, context).encode
    decode = MessageDecoder(read, context).decode
    parts = _parts(records)
    messages = [encode(part) for part in parts]
    decoded = [one for part in messages for one in decode(part, str).records]
    if decoded != records:
        raise WrongResultError(f"{name}: what is decoded is not what was encoded")
    del decoded  # which the garbage collector would visit while the clock runs
    size = sum(len(one) for part in messages for one in part)
    return {
        f"{name}_decoded_per_second": _best(rounds, messages, lambda part: decode(part, str)),
        f"{name}_encoded_per_second": _best(rounds, parts, encode),
        f"{name}_bytes": round(size / len(records), 1),
    }


def _best(rounds: int, parts: Sequence[Any], run: Callable[[Any], Any]) -> int:
    """Return the records per second of processor time, of the best run."""
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        for part in parts:
            run(part)
        seconds.append(time.process_time() - began)
    return round(sum(map(len, parts)) / min(seconds))


def _parts(records: Sequence[Any]) -> list[Any]:
    return [records[begin : begin + BATCH] for begin in range(0, len(records), BATCH)]


def _message_class() -> Any:
    """Return the class of the orders as Protobuf, without a compiler."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="bench")
    file.syntax = "proto3"
    message = file.message_type.add(name="Order")
    types = (
        kinds.TYPE_INT64,
        kinds.TYPE_STRING,
        kinds.TYPE_DOUBLE,
        kinds.TYPE_INT64,
        kinds.TYPE_STRING,
    )
    for number, (name, type) in enumerate(zip(Order.__dataclass_fields__, types, strict=True), 1):
        label = kinds.LABEL_REPEATED if name == "tags" else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=type, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Order"))
