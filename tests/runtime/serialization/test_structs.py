"""Structs of msgspec are record classes: they are sent, kept in state and changed."""

from __future__ import annotations

import cloudpickle
import msgspec
import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_serializers import UnsupportedTypeError
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.schema import FieldSchema, RecordSchema


class Point(msgspec.Struct):
    x: int
    y: float = 0.5


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    point: Point
    tags: list[str] = []


class Single(msgspec.Struct, array_like=True, tag=True):
    only: int


VALUES = [Point(1), Point(2, 3.5), Frozen(point=Point(1)), Frozen(point=Point(4), tags=["a"])]


def codec(*classes: type) -> Codec:
    return Codec(TypeRegistry(classes))


def test_structs_come_back_as_they_were() -> None:
    one = codec(Point, Frozen, Single)
    values = [*VALUES, Single(7)]
    found = one.decode_record_batch(one.encode_batch(values)).rows()
    assert found == values
    assert list(map(type, found)) == list(map(type, values))
    assert found[0] is not values[0]


def test_a_struct_that_may_have_other_attributes_is_refused() -> None:
    class Open(msgspec.Struct, dict=True):
        a: int

    with pytest.raises(UnsupportedTypeError, match="further attributes"):
        codec(Open)
    with pytest.raises(UnsupportedTypeError, match="can't be carried"):
        codec().encode_batch([Point(1)])


def test_a_registry_with_structs_can_be_sent() -> None:
    registry = cloudpickle.loads(cloudpickle.dumps(TypeRegistry([Point, Frozen])))
    assert Codec(registry).decode_record_batch(codec(Point, Frozen).encode_batch(VALUES)).rows()


def test_a_struct_with_a_new_field_reads_its_former_version() -> None:
    schema = TypeRegistry([Point]).schemas()[0]
    assert [(one.name, one.type, one.has_default) for one in schema.fields or ()] == [
        ("x", "int", False),
        ("y", "float", True),
    ]
    former = RecordSchema(schema.name, schema.kind, (FieldSchema("x", "int"),))
    registry = TypeRegistry([Point]).extending([former])
    assert registry.serializer_at(0).from_row((3,)) == Point(3, 0.5)
    gone = RecordSchema(schema.name, schema.kind, (FieldSchema("y", "float"),))
    serializer = TypeRegistry([Point]).extending([gone]).serializer_at(0)
    with pytest.raises(ProtocolError, match=r"field 'x' of .*Point has no default"):
        serializer.from_row((0.5,))
    tags = TypeRegistry([Frozen]).schemas()[0]
    without = RecordSchema(tags.name, tags.kind, (tags.fields or ())[:1])
    registry = TypeRegistry([Frozen]).extending([without])
    assert registry.serializer_at(0).from_row((Point(1),)) == Frozen(point=Point(1))


def test_a_job_sends_structs_and_copies_those_of_several_consumers() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)

    def move(point: Point) -> Point:
        point.x += 10
        return point

    points = env.from_collection([1, 2, 3]).rebalance().map(Point)
    moved = points.map(move)
    both = points.union(moved).rebalance().map(lambda point: point.x)
    assert sorted(both.execute_and_collect()) == [1, 2, 3, 11, 12, 13]
