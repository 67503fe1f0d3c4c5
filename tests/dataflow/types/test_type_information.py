"""The types of PyFlink: all are accepted, and collections are checked."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from penstock import (
    GraphError,
    Instant,
    JobError,
    OutputTag,
    ProcessFunction,
    Row,
    StreamExecutionEnvironment,
    TypeInformation,
    Types,
)

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
        (Types.INSTANT(), [Instant.of_epoch_milli(1)], [1]),
        (Types.LIST(STRING), [["a"], []], [[1], "a", 5]),
        (Types.PRIMITIVE_ARRAY(LONG), [[1, 2]], [["a"]]),
        (Types.BASIC_ARRAY(LONG), [[1, 2]], [["a"]]),
        (Types.OBJECT_ARRAY(STRING), [["a"]], [[1]]),
        (Types.MAP(STRING, LONG), [{"a": 1}], [{"a": "b"}, {1: 1}, [1]]),
        (Types.TUPLE([STRING, LONG]), [("a", 1), ("a", None)], [("a",), "a1", ("a", "b")]),
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
    assert kind.converted(("a", 1)) == Row(f0="a", f1=1) == kind.converted(["a", 1])
    assert kind.converted(Row("a", 1)).f1 == 1
    named = Types.ROW_NAMED(["name", "id"], [STRING, LONG])
    assert named.converted(("a", 1)) == Row(name="a", id=1)
    assert named.converted(Row(id=1, name="a")) == Row(name="a", id=1)
    assert named.converted({"id": 1, "name": "a"}) == Row(name="a", id=1)
    assert Types.ROW([kind]).converted([("a", 1)]) == Row(f0=Row(f0="a", f1=1))
    for wrong in (("a",), "ab", Row(name="a", id=1), 7):
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


def test_parts_may_be_none_and_tuples_are_made_of_lists_and_rows():
    pair = Types.TUPLE([STRING, LONG])
    assert pair.converted(["a", 1]) == pair.converted(Row("a", 1)) == ("a", 1)
    assert Types.LIST(LONG).converted([1, None]) == [1, None]
    assert Types.MAP(STRING, LONG).converted({"a": None}) == {"a": None}
    with pytest.raises(ValueError, match="None is no LONG"):
        Types.PRIMITIVE_ARRAY(LONG).converted([1, None])


def test_whole_numbers_of_other_classes_become_numbers():
    class Number:
        def __index__(self) -> int:
            return 7

    assert Types.SHORT().converted(Number()) == 7
    with pytest.raises(ValueError):
        Types.STRING().converted(Number())


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (Types.SHORT(), [1, 2, -3]),
        (STRING, ["a", "b"]),
        (Types.TUPLE([STRING, LONG]), [("a", 1), ("b", 2)]),
        (Types.PICKLED_BYTE_ARRAY(), [1, "a"]),
    ],
)
def test_a_batch_that_needs_no_conversion_is_returned_as_it_is(kind: Any, records: Any):
    assert kind.converted_all(records) is records


def test_a_batch_is_converted_like_its_records():
    pair = Types.TUPLE([STRING, LONG])
    records = [("a", 1), ["b", 2], ("c", None)]
    assert pair.converted_all(records) == [("a", 1), ("b", 2), ("c", None)]
    assert Types.ROW([LONG]).converted_all([(1,), [2]]) == [Row(f0=1), Row(f0=2)]
    for wrong in ([("a", 1), ("b", 2**63)], [("a", 1), ("a",)], [("a", 1), ("b", "c")]):
        with pytest.raises(ValueError):
            pair.converted_all(wrong)
    with pytest.raises(ValueError, match="32768 is out of the range of SHORT"):
        Types.SHORT().converted_all([1, 32768])


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_in_process()


def test_records_of_a_declared_row_have_fields_by_name():
    numbers = environment().from_collection([1, 2, 1])
    kind = Types.ROW_NAMED(["word", "number"], [STRING, Types.INT()])
    rows = numbers.map(lambda n: ("n" * n, n), output_type=kind)
    totals = rows.key_by(lambda row: row.word).sum("number").map(lambda row: row.as_dict())
    assert list(totals.execute_and_collect()) == [
        {"word": "n", "number": 1},
        {"word": "nn", "number": 2},
        {"word": "n", "number": 2},
    ]
    unnamed = numbers.flat_map(lambda n: [(n,)], Types.ROW([LONG])).map(lambda row: row.f0)
    assert list(unnamed.execute_and_collect()) == [1, 2, 1]


@pytest.mark.parametrize(
    ("kind", "record", "reason"),
    [
        (Types.SHORT(), 40_000, "40000 is out of the range of SHORT"),
        (Types.INT(), "a", "'a' is no INT"),
        (Types.TUPLE([LONG, LONG]), (1, "a"), "'a' is no LONG"),
        (Types.ROW([LONG]), (1, 2), "has 2 fields, and ROW\\(LONG\\) 1"),
    ],
)
def test_a_record_that_is_not_of_its_declared_type_is_an_error(kind: Any, record: Any, reason: str):
    stream = environment().from_collection([1]).map(lambda n: record, kind).name("typed")
    # The map is followed by a partitioner, with which it would be fused without a type.
    with pytest.raises(JobError, match=f"operator 'typed' declares that .*{reason}") as caught:
        list(stream.key_by(lambda r: 0).count().execute_and_collect())
    assert caught.value.operator == "typed" and caught.value.record == repr(record)


def test_functions_with_keys_windows_and_two_inputs_have_declared_types_too():
    from penstock import CoMapFunction, CountTumblingWindowAssigner

    class Both(CoMapFunction):
        def map1(self, value: Any) -> Any:
            return [value]

        map2 = map1

    kind = Types.ROW([LONG])
    numbers = environment().from_collection([1, 2])
    keyed = numbers.key_by(lambda n: 0)
    window = keyed.window(CountTumblingWindowAssigner.of(2))
    for stream in (
        keyed.reduce(lambda a, b: a + b, Types.LONG()).map(lambda n: (n,), kind),
        window.apply(lambda key, window, records: [(sum(records),)], kind),
        numbers.connect(numbers).map(Both(), kind),
    ):
        assert {type(record) for record in stream.execute_and_collect()} == {Row}
    assert stream.get_type() == kind


def test_a_stream_knows_the_type_that_was_declared():
    numbers = environment().from_collection([1, 2], LONG)
    assert numbers.get_type() == LONG
    assert numbers.filter(bool).key_by(lambda n: n).sum().get_type() == LONG
    assert numbers.map(str).get_type() == Types.PICKLED_BYTE_ARRAY()
    assert numbers.map(str, STRING).filter(bool).get_type() == STRING

    class Sides(ProcessFunction):
        def process_element(self, value: int, ctx: Any) -> Any:
            yield value

    # The records of a side output and of a union may have another type.
    untyped = Types.PICKLED_BYTE_ARRAY()
    side = numbers.process(Sides(), LONG).get_side_output(OutputTag("side"))
    for stream in (side, numbers.union(numbers.map(str, STRING))):
        assert stream.get_type() == stream.filter(bool).get_type() == untyped


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (1, "1.0"),
        (1.5, "1.5"),
        (1e16, "1.0E16"),
        (1.25e7, "1.25E7"),
        (9999999.0, "9999999.0"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (-1.5e-5, "-1.5E-5"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str):
    assert Types.DOUBLE().text(value) == text


def test_floats_are_written_with_the_digits_of_32_bits():
    texts = [(0.1, "0.1"), (1 / 3, "0.33333334"), (16777216.0, "1.6777216E7"), (3e38, "3.0E38")]
    for value, text in texts:
        assert Types.FLOAT().text(value) == text
    assert Types.FLOAT().text(1e300) == "Infinity"


def test_values_are_written_as_flink_prints_them():
    moment = datetime(2026, 1, 31, 12, 0, 5, 120_000)
    for kind, value, text in (
        (Types.BOOLEAN(), True, "true"),
        (STRING, "a", "a"),
        (LONG, None, "null"),
        (Types.SQL_DATE(), moment.date(), "2026-01-31"),
        (Types.SQL_TIMESTAMP(), moment, "2026-01-31 12:00:05.12"),
        (Types.SQL_TIMESTAMP(), moment.replace(microsecond=0), "2026-01-31 12:00:05.0"),
        (Types.TUPLE([STRING, Types.DOUBLE()]), ("x", 1.5), "(x,1.5)"),
        (Types.TUPLE([STRING, Types.BOOLEAN()]), (None, False), "(null,false)"),
        (Types.LIST(LONG), [1, None], "[1, null]"),
        (Types.MAP(STRING, Types.BOOLEAN()), {"a": True, "b": None}, "{a=true, b=null}"),
        (Types.TUPLE([Types.ROW([LONG, STRING])]), (Row(1, "x"),), "(+I[1, x])"),
    ):
        assert kind.text(value) == text


def test_a_primitive_array_of_bytes_may_be_bytes():
    kind = Types.PRIMITIVE_ARRAY(Types.BYTE())
    for value in (b"ab", bytearray(b"ab"), [1, 2]):
        assert kind.converted(value) is not None and kind.converted_all([value])[0] == value
    for other in (Types.PRIMITIVE_ARRAY(LONG), Types.LIST(Types.BYTE())):
        with pytest.raises(ValueError, match="is no"):
            other.converted(b"ab")
