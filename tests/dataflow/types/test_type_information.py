"""The types of PyFlink: all are accepted, and collections are checked."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from penstock import GraphError, Row, StreamExecutionEnvironment, TypeInformation, Types

LONG, STRING = Types.LONG(), Types.STRING()


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Types.STRING(), ["", "a"], [1, b"a"]),
        (Types.CHAR(), ["a"], [1]),
        (Types.BOOLEAN(), [True], [1]),
        (Types.BYTE(), [-128, 127], [128, True, 1.0]),
        (Types.SHORT(), [-(2**15)], [2**15]),
        (Types.INT(), [2**31 - 1], [2**31, "1"]),
        (Types.LONG(), [-(2**63)], [2**63]),
        (Types.BIG_INT(), [2**70], [1.5]),
        (Types.FLOAT(), [1, 1.5], ["1"]),
        (Types.DOUBLE(), [1, 1.5], [True]),
        (Types.BIG_DEC(), [Decimal(1)], [1]),
        (Types.SQL_DATE(), [date(2020, 1, 1)], ["2020-01-01"]),
        (Types.SQL_TIME(), [time(1)], [1]),
        (Types.SQL_TIMESTAMP(), [datetime(2020, 1, 1)], [date(2020, 1, 1)]),
        (Types.PICKLED_BYTE_ARRAY(), [1, "a", None], []),
        (Types.INSTANT(), [1], []),
        (Types.LIST(STRING), [["a"], []], [[1], "a", 5]),
        (Types.PRIMITIVE_ARRAY(LONG), [[1, 2]], [["a"]]),
        (Types.BASIC_ARRAY(LONG), [[1, 2]], [["a"]]),
        (Types.OBJECT_ARRAY(STRING), [["a"]], [[1]]),
        (Types.MAP(STRING, LONG), [{"a": 1}], [{"a": "b"}, {1: 1}, [1]]),
        (Types.TUPLE([STRING, LONG]), [("a", 1), ("a", None)], [("a",), ["a", 1], ("a", "b")]),
    ],
    ids=repr,
)
def test_values_are_checked_by_their_type(kind: TypeInformation, good: Any, bad: Any):
    for value in good:
        assert kind.converted(value) == value
    for value in bad:
        with pytest.raises(ValueError):
            kind.converted(value)


def test_tuples_and_lists_become_rows():
    kind = Types.ROW([STRING, LONG])
    assert kind.converted(("a", 1)) == Row("a", 1) == kind.converted(["a", 1])
    named = Types.ROW_NAMED(["name", "id"], [STRING, LONG])
    assert named.converted(("a", 1)) == Row(name="a", id=1)
    assert named.converted(Row(id=1, name="a")) == Row(name="a", id=1)
    assert kind.converted(Row(name="a", id=1)) == Row(name="a", id=1)
    assert Types.ROW([kind]).converted([("a", 1)]) == Row(Row("a", 1))
    for wrong in (("a",), "ab", {"a": 1}):
        with pytest.raises(ValueError):
            kind.converted(wrong)


def test_types_have_texts_and_are_equal_by_them():
    assert repr(Types.TUPLE([STRING, Types.LIST(LONG)])) == "TUPLE(STRING, LIST(LONG))"
    assert repr(Types.ROW_NAMED(["a"], [STRING])) == "ROW(a: STRING)"
    assert repr(Types.ROW([STRING])) == "ROW(STRING)"
    assert repr(Types.MAP(STRING, LONG)) == "MAP(STRING, LONG)"
    assert Types.STRING() == Types.STRING() and Types.STRING() != Types.LONG()
    assert len({Types.STRING(), Types.STRING()}) == 1


def test_an_element_of_another_type_is_named():
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(GraphError, match="element 1 of the collection: 'b' is no LONG"):
        env.from_collection([1, "b"], type_info=LONG)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Types.TUPLE(Types.STRING()), "Types.TUPLE takes a list of types, not STRING"),
        (lambda: Types.TUPLE([Types.STRING]), "Types.TUPLE takes a type such as"),
        (lambda: Types.ROW_NAMED(["a"], []), "got 1 names and 0 types"),
        (lambda: Types.LIST(str), "Types.LIST takes a type such as"),
        (lambda: Types.MAP(STRING, None), "Types.MAP takes a type such as"),
    ],
)
def test_types_of_other_things_are_refused(make: Any, message: str):
    with pytest.raises(GraphError, match=message):
        make()
    with pytest.raises(AttributeError, match="Types has no type 'NONSENSE'"):
        Types.NONSENSE()  # type: ignore[attr-defined]


def test_a_type_without_parentheses_is_refused_where_a_stream_takes_one():
    env: Any = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1])
    for accepted in (None, Types.LONG(), int, [Types.LONG()]):
        stream.map(lambda n: n, output_type=accepted)
    for add in (
        lambda: stream.map(lambda n: n, Types.LONG),
        lambda: stream.key_by(lambda n: n, key_type=Types.LONG),
        lambda: env.from_collection([1], Types.LONG),
    ):
        with pytest.raises(GraphError, match=r"takes a type such as Types\.STRING"):
            add()
