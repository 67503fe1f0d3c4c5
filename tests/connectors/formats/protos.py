"""Classes of Protobuf messages, made without a compiler."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

F = descriptor_pb2.FieldDescriptorProto


def customer_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="customers.proto", package="shop")
    file.syntax = "proto3"
    message = file.message_type.add(name="Customer")
    _field(message, "name", 1, F.TYPE_STRING)
    return file


def order_file(*, with_note: bool = False, first: str | None = None) -> Any:
    """Return the file of an order, which imports that of a customer.

    Arguments:
        with_note: whether an order has a further field.
        first: the name of a message type before it in the file.
    """
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop")
    file.syntax = "proto3"
    file.dependency.append("customers.proto")
    if first is not None:
        file.message_type.add(name=first)
    message = file.message_type.add(name="Order")
    state = message.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    _field(message, "id", 1, F.TYPE_INT64)
    _field(message, "amount", 2, F.TYPE_DOUBLE)
    _field(message, "tags", 3, F.TYPE_STRING, repeated=True)
    _field(message, "customer", 4, F.TYPE_MESSAGE, ".shop.Customer")
    _field(message, "parts", 5, F.TYPE_MESSAGE, ".shop.Order", repeated=True)
    _map(message, "counts", 6, "CountsEntry", F.TYPE_INT32)
    _map(message, "others", 7, "OthersEntry", F.TYPE_MESSAGE, ".shop.Customer")
    _field(message, "data", 8, F.TYPE_BYTES)
    _field(message, "state", 9, F.TYPE_ENUM, ".shop.Order.State")
    message.oneof_decl.add(name="_discount")
    field = _field(message, "discount", 10, F.TYPE_INT32)
    field.proto3_optional, field.oneof_index = True, 0
    if with_note:
        _field(message, "note", 11, F.TYPE_STRING)
    line = message.nested_type.add(name="Line")
    _field(line, "number", 1, F.TYPE_UINT32)
    return file


def _field(
    message: Any, name: str, number: int, type: Any, type_name: str = "", repeated: bool = False
) -> Any:
    label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    return message.field.add(
        name=name, number=number, type=type, type_name=type_name or None, label=label
    )


def _map(message: Any, name: str, number: int, entry: str, type: Any, type_name: str = "") -> None:
    nested = message.nested_type.add(name=entry)
    nested.options.map_entry = True
    _field(nested, "key", 1, F.TYPE_STRING)
    _field(nested, "value", 2, type, type_name)
    _field(message, name, number, F.TYPE_MESSAGE, f".shop.Order.{entry}", repeated=True)


def message_class(name: str = "shop.Order", *files: Any) -> Any:
    """Return the class of a message of these files."""
    pool = descriptor_pool.DescriptorPool()
    for file in (customer_file(), *(files or (order_file(),))):
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def empty_order() -> dict[str, Any]:
    """Return an order of which nothing is set."""
    return {
        "id": 0,
        "amount": 0.0,
        "tags": [],
        "customer": None,
        "parts": [],
        "counts": {},
        "others": {},
        "data": b"",
        "state": 0,
        "discount": None,
    }
