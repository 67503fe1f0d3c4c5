"""Rows: their fields, their kinds, and how they travel."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from penstock import KeyRefusedError, Row, RowKind, StreamExecutionEnvironment, Types
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.types.hash_probe import HashProbe
from penstock.runtime.serialization.batch_codec import BatchCodec
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.serialization.value_codec import ValueCodec


def test_fields_are_found_by_position_and_by_name():
    row = Row(id=7, name="a")
    assert (row[0], row["id"], row.id, row[-1]) == (7, 7, 7, "a")
    assert row[0:2] == [7, "a"] and list(row) == [7, "a"] and len(row) == 2
    assert "name" in row and "nothing" not in row and "a" not in row
    assert "a" in Row(7, "a")
    assert row.as_dict() == {"id": 7, "name": "a"}
    assert row.get_field_names() == ("id", "name")
    assert row.get_fields_by_names(["name", "id"]) == ["a", 7]
    assert repr(row) == "Row(id=7, name='a')"
    assert repr(Row(7, "a")) == "<Row(7, 'a')>"
    assert Row(7).get_field_names() is None


def test_fields_can_be_set():
    row = Row(id=7, name="a")
    row[0], row["name"] = 8, "b"
    assert row == Row(id=8, name="b")
    row["id"] = 9
    assert row.id == 9
    with pytest.raises(AttributeError, match=r"write row\['id'\] = "):
        row.id = 9
    unnamed = Row(1, 2)
    unnamed.set_field_names(["x", "y"])
    assert unnamed.y == 2
    assert row.replaced("id", 1) == Row(id=1, name="b") and row.id == 9


def test_a_row_of_names_makes_rows():
    person = Row("id", "name")
    assert person(7, "a") == Row(id=7, name="a")
    with pytest.raises(ValueError, match="2 names for a Row of 1 fields"):
        person(7)


def test_rows_are_equal_if_their_kinds_names_and_values_are():
    assert Row(1, 2) == Row(1, 2)
    assert Row(1, 2) != Row(1, 3)
    assert Row(a=1) != Row(1) and Row(a=1) != Row(b=1)
    deleted = Row.of_kind(RowKind.DELETE, 1, 2)
    assert deleted != Row(1, 2) and deleted.get_row_kind() is RowKind.DELETE
    assert repr(deleted) == "Row.of_kind(-D, 1, 2)"
    assert Row(1) != (1,)
    assert [str(kind) for kind in RowKind] == ["+I", "-U", "+U", "-D"]


def test_a_dict_of_a_row_can_contain_the_dicts_of_inner_rows():
    row = Row(a=Row(b=1), c=[Row(d=2)], e={"f": Row(3)})
    assert row.as_dict(True) == {"a": {"b": 1}, "c": [{"d": 2}], "e": {"f": [3]}}
    with pytest.raises(TypeError, match="a Row without names cannot be a dict"):
        Row(1).as_dict()


def test_missing_fields_are_named():
    row = Row(id=7)
    with pytest.raises(AttributeError, match="a Row has no field 'age'"):
        _ = row.age
    with pytest.raises(ValueError, match="a Row has no field 'age'"):
        _ = row["age"]
    with pytest.raises(ValueError, match="a Row has no field 'age'"):
        row["age"] = 5
    with pytest.raises(AttributeError, match=r"write row\['age'\] = "):
        row.age = 5
    with pytest.raises(ValueError, match="either values without names"):
        Row(1, a=2)


ROWS = [
    Row(),
    Row(1, "a"),
    Row(id=7, name=None, tags=["x"], inner=Row(deep=(1, 2))),
    Row.of_kind(RowKind.UPDATE_BEFORE, 2**70),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_row_is_carried_and_copied(row: Row):
    codec = ValueCodec(TypeRegistry())
    assert codec.decode(codec.encode(row)) == row
    assert codec.decode(codec.encode({"k": (row,)})) == {"k": (row,)}
    batches = BatchCodec(TypeRegistry(), codec)
    assert batches.decode(batches.encode([row, row])) == [row, row]
    assert pickle.loads(pickle.dumps(row)) == row
    assert copy.copy(row) == row


def test_a_row_counts_as_mutable():
    codec = Codec(TypeRegistry())
    row = Row(1)
    copied = codec.copy_mutable([row])[0]
    assert copied == row and copied is not row
    probe = HashProbe()
    for value in (row, (1, row), "text", 1):
        with pytest.raises(TypeError):
            _ = value in probe
    assert not codec.is_immutable((1, row)) and not codec.is_immutable(frozenset([row]))
    assert codec.is_immutable((1, "text"))


def test_a_process_without_rows_trusts_hashes():
    source = """
from penstock.dataflow.types.hash_probe import HashProbe
from penstock import Row
probe = HashProbe()
assert 1 not in probe and (1, "a") not in probe
for value in ([1], (1, [2])):
    try:
        value in probe
        raise AssertionError(value)
    except TypeError:
        pass
Row(1)
try:
    1 in probe
    raise AssertionError
except TypeError:
    pass
"""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_equal_rows_have_equal_hashes():
    assert {Row(1, 2), Row(1, 2), Row(1, 3)} == {Row(1, 3), Row(1, 2)}
    named = Row(name="a", id=7)
    assert list(named) == [7, "a"] and named.get_field_names() == ("id", "name")
    other = Row("name", "id")("a", 7)
    assert list(other) == ["a", 7]
    assert named == Row(id=7, name="a") == other
    assert len({named, Row(id=7, name="a"), other}) == 1
    with pytest.raises(TypeError):
        hash(Row([1]))


def test_a_row_is_no_key_because_it_can_change():
    with pytest.raises(KeyRefusedError, match=r"use one of its fields, or tuple\(row\)"):
        canonical(Row(1))


def test_a_program_uses_rows():
    env = StreamExecutionEnvironment.get_execution_environment()
    kind = Types.ROW_NAMED(["user", "amount"], [Types.STRING(), Types.LONG()])
    data: list[Any] = [("a", 1), ["b", 2], Row(amount=3, user="a")]
    sums = env.from_collection(data, kind).key_by(lambda row: row.user).sum("amount")
    found = sums.map(lambda row: (row.user, row["amount"])).execute_and_collect(in_process=True)
    with found:
        assert sorted(found) == [("a", 1), ("a", 4), ("b", 2)]


def test_a_row_without_fields_is_equal_whether_its_names_were_set_or_not():
    assert Row()() == Row() == Row.of_parts(RowKind.INSERT, [], [])
