"""Formats give streams the types of their records."""

from __future__ import annotations

from typing import reveal_type

from penstock import (
    BAD_MESSAGES,
    Avro,
    ByteArraySchema,
    FileSink,
    FileSource,
    Json,
    MessageLines,
    SimpleStringSchema,
    SocketSource,
    StreamExecutionEnvironment,
)
from tests.typing.samples.records import Order, orders

env = StreamExecutionEnvironment.get_execution_environment()

reveal_type(Json(Order))  # R: Json[Order]
reveal_type(Json())  # R: Json[Any]
reveal_type(Json(Order | int))  # R: Json[Any]
reveal_type(Avro("order.avsc", type=Order))  # R: Avro[Order]
reveal_type(Json(Order).deserialize([b"{}"]))  # R: list[Order]

source = FileSource("orders.jsonl", MessageLines(Json(Order, on_error="side_output")))
stream = env.from_source(source)
reveal_type(stream)  # R: DataStream[Order]
stream.map(lambda order: order.amuont)  # E: "Order" has no attribute "amuont"
reveal_type(stream.get_side_output(BAD_MESSAGES))  # R: DataStream[BadMessage]

reveal_type(env.from_source(SocketSource("host", 1)))  # R: DataStream[str]
typed = SocketSource("host", 1, schema=Json(Order))
reveal_type(env.from_source(typed))  # R: DataStream[Order]
raw = SocketSource("host", 1, schema=ByteArraySchema())
reveal_type(env.from_source(raw))  # R: DataStream[bytes]
SocketSource("host", 1, schema=SimpleStringSchema)  # E: No overload variant of "SocketSource"
orders().sink_to(FileSink("out", MessageLines(Json(Order))))
