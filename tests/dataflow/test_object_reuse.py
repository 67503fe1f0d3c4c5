"""What was emitted stays as it was, whatever the function does with the object afterwards."""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from operator import attrgetter
from time import gmtime
from typing import Any, NamedTuple

import pytest

from penstock import KeyedProcessFunction, ProcessFunction, Row, RowKind
from penstock.dataflow.object_reuse import Check, EmissionPolicy, can_change, copy_if_shared
from penstock.dataflow.object_reuse.policy import may_change_objects
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from tests.runtime.operators.making import make_operator
from tests.runtime.operators.test_operators import operator


@dataclass(eq=False)
class ById:
    """Has the hash of an object, and can change."""

    v: int = 0


@dataclass(unsafe_hash=True)
class ByValue:
    """Has a hash of its fields, and can change."""

    v: int = 0


@dataclass(frozen=True)
class Frozen:
    v: Any = 0


class Pair(NamedTuple):
    a: Any
    b: Any


class Colour(Enum):
    RED = 1


def _dict() -> Any:
    return {"v": 0}


def set_v(record: Any, v: int) -> None:
    if isinstance(record, dict | Row):
        record["v"] = v
    else:
        record.v = v


def get_v(record: Any) -> int:
    value: int = record["v"] if isinstance(record, dict) else record.v
    return value


def _row() -> Any:
    return Row(v=0)


CLASSES = [_dict, ById, ByValue, _row]
INPUT = list(range(1, 8))
EXPECTED = INPUT


def running(kind: OperatorSpec, function: Any) -> RunningOperator:
    codec = Codec(TypeRegistry([ById, ByValue, Frozen, Pair, Colour]))
    context = OperatorContext("the name", "the uid", 0, 1, 128, 0, codec)
    return make_operator(kind, function, None, context)


def values(target: RunningOperator, sizes: Iterable[int] = (1, 3, 3)) -> list[int]:
    """The values of all that was emitted for batches of these sizes, looked at in the end."""
    left, emitted = deque(INPUT), []
    for size in sizes:
        emitted += target.process(RecordBatch([left.popleft() for _ in range(size)])).rows()
    return [get_v(record) for record in emitted]


@pytest.mark.parametrize("make", CLASSES)
def test_one_object_may_be_emitted_again(make: Callable[[], Any]) -> None:
    kept = make()

    def change(n: int) -> Any:
        set_v(kept, n)
        return kept

    assert values(running(specs.MAP, change)) == EXPECTED
    assert values(running(specs.FLAT_MAP, lambda n: [change(n)])) == EXPECTED
    assert values(running(specs.FLAT_MAP, lambda n: (change(m) for m in [n]))) == EXPECTED
    # Two in turn.
    others = [make(), make()]

    def take_turns(n: int) -> Any:
        set_v(others[n % 2], n)
        return others[n % 2]

    assert values(running(specs.MAP, take_turns)) == EXPECTED


@pytest.mark.parametrize("make", CLASSES)
def test_an_object_may_be_changed_after_it_was_emitted(make: Callable[[], Any]) -> None:
    def emit(n: int) -> Iterator[Any]:
        record = make()
        set_v(record, n)
        yield record
        set_v(record, -1)

    class Emit(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
            return emit(value)

        def end_input(self, ctx: ProcessFunction.Context) -> Iterator[Any]:
            return emit(7)

    class EmitKeyed(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            return emit(value)

    assert values(running(specs.FLAT_MAP, emit)) == EXPECTED
    process = running(specs.PROCESS, Emit())
    assert values(process) == EXPECTED
    assert [get_v(record) for batch in process.end_input() for record in batch.rows()] == [7]

    # A map that changes what it has emitted for the record before.
    last = make()

    def change_last(n: int) -> Any:
        nonlocal last
        set_v(last, -1)
        last = make()
        set_v(last, n)
        return last

    assert values(running(specs.MAP, change_last)) == EXPECTED


def test_a_keyed_function_may_change_what_it_has_emitted() -> None:
    class Emit(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            record = {"v": value[0], "all": [value]}
            yield record
            record["v"] = -1
            record["all"].clear()

    keyed = operator(specs.KEYED_PROCESS, Emit())
    assert keyed.process(RecordBatch([(1,), (2,)])).rows() == [
        {"v": 1, "all": [(1,)]},
        {"v": 2, "all": [(2,)]},
    ]


def test_what_is_within_a_record_is_looked_at_too() -> None:
    kept: list[int] = []

    def within(n: int) -> Any:
        kept[:] = [n]
        return [(n, kept), {"v": kept}, [kept], Pair(n, kept), Frozen(kept), Row(kept)][n % 6]

    function = running(specs.MAP, within)
    emitted = (
        function.process(RecordBatch([0, 1, 2])).rows()
        + function.process(RecordBatch([3, 4, 5])).rows()
    )
    assert emitted == [(0, [0]), {"v": [1]}, [[2]], Pair(3, [3]), Frozen([4]), Row([5])]

    def lazily(n: int) -> Iterator[Any]:
        inner = [n]
        yield (n, inner)
        inner.append(-1)

    assert running(specs.FLAT_MAP, lazily).process(RecordBatch([1, 2])).rows() == [
        (1, [1]),
        (2, [2]),
    ]


def test_a_copy_of_a_row_has_its_kind_and_its_names() -> None:
    row = Row.of_kind(RowKind.DELETE, a=1, b=[2])
    [copied] = map(copy_if_shared, [row])
    assert copied == row and copied is not row and copied.b is not row.b


def test_a_class_of_tuples_that_cannot_be_made_of_items_is_not_copied() -> None:
    # As `pyarrow.MonthDayNano`: `tuple.__new__` refuses the class.
    kept: dict[str, Any] = {"time": gmtime(0), "n": [0]}

    def change(n: int) -> Any:
        kept["n"][0] = n
        return kept

    function = running(specs.MAP, change)
    emitted = function.process(RecordBatch([1, 2])).rows()
    assert emitted == [{"time": gmtime(0), "n": [n]} for n in (1, 2)]


def test_what_a_list_that_is_kept_holds_is_copied() -> None:
    kept = [{"v": 0}]

    def change(n: int) -> list[Any]:
        kept[0]["v"] = n
        return kept

    assert values(running(specs.FLAT_MAP, change)) == EXPECTED


def test_mutable_records_after_immutable_ones_are_copied_from_their_batch_on() -> None:
    kept = {"v": 0}

    def change(n: int) -> Any:
        kept["v"] = n
        return n if n < 3 else kept

    function = running(specs.MAP, change)
    assert function.process(RecordBatch([1, 2])).rows() == [1, 2]
    first = function.process(RecordBatch([3])).rows()
    assert function.process(RecordBatch([4, 5])).rows() == [{"v": 4}, {"v": 5}]
    assert first == [{"v": 3}]


@pytest.mark.parametrize("kind", [specs.MAP, specs.FLAT_MAP])
def test_a_function_that_changes_objects_is_watched_in_the_batch_of_its_first_mutable_record(
    kind: OperatorSpec,
) -> None:
    kept = {"v": 0}

    def change(n: int) -> Any:
        kept["v"] = n
        emitted = n if n < 3 else kept
        return emitted if kind is specs.MAP else [emitted]

    function = running(kind, change)
    assert function.process(RecordBatch([1, 2])).rows() == [1, 2]
    assert function.process(RecordBatch([3, 4, 5])).rows() == [{"v": 3}, {"v": 4}, {"v": 5}]


def test_records_that_a_list_alone_refers_to_are_not_copied_in_any_batch() -> None:
    made: list[int] = []

    def emit(n: int) -> Any:
        rows: list[Any] = []
        rows.append(n if n < 3 else {"v": n})
        made.append(id(rows[0]))
        return rows

    function = running(specs.FLAT_MAP, emit)
    assert function.process(RecordBatch([1, 2])).rows() == [1, 2]
    assert [id(row) for row in function.process(RecordBatch([3, 4])).rows()] == made[2:]


def test_what_nothing_else_refers_to_is_not_copied() -> None:
    made: list[int] = []

    def make(n: int) -> Any:
        record = {"v": n, "more": [n, {"n": n}]}
        made.append(id(record))
        return record

    for kind, function in (
        (specs.MAP, make),
        (specs.FLAT_MAP, lambda n: [make(n)]),
        (specs.FLAT_MAP, lambda n: (make(m) for m in [n])),
    ):
        made.clear()
        target = running(kind, function)
        emitted = (
            target.process(RecordBatch([1, 2])).rows() + target.process(RecordBatch([3])).rows()
        )
        assert [id(record) for record in emitted] == made
    # Nor is a record that a map was given and returns.
    target = running(specs.MAP, lambda record: record)
    records = [{"v": [1]}, {"v": [2]}]
    assert all(map(lambda a, b: a is b, target.process(RecordBatch(records)).rows(), records))


def test_immutable_records_are_not_looked_at_one_by_one() -> None:
    records = [(1, "a", Frozen(1), Pair(1, None)), (2, "b", Frozen((2,)), Pair(2, Colour.RED))]
    for function in (str, lambda record: record.update(v=1) or record):
        policy = EmissionPolicy(function)
        assert policy.check is Check.EVERY_RECORD
        assert policy.after_batch(records) is records
        assert policy.check is not Check.EVERY_RECORD
        assert policy.after_batch([{}]) == [{}]
        assert policy.check is Check.EVERY_RECORD
        policy.after_batch(records)
        # It has emitted a mutable record, and may do so again.
        assert policy.check is Check.EVERY_RECORD


def test_a_generator_that_changes_objects_is_always_watched() -> None:
    def emit(n: int) -> Iterator[Any]:
        yield n
        if n > 2:
            row = {"v": n}
            yield row
            row["v"] = -1

    target = running(specs.FLAT_MAP, emit)
    assert target.process(RecordBatch([1, 2])).rows() == [1, 2]
    assert target.process(RecordBatch([3])).rows() == [3, {"v": 3}]


class Numbered:
    def __init__(self) -> None:
        self.n = 0

    def count(self, record: Any) -> Any:
        self.n += 1
        return record

    def add(self, record: Any) -> Any:
        return (record, self.n)


def _adds(items: list[int]) -> Any:
    items += [1]
    return items


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (str.split, False),
        (int, False),
        (len, False),
        (lambda line: [(word, 1) for word in line.split()], False),
        (lambda n: n + 1, False),
        (Numbered().add, False),
        (Numbered().count, True),
        (partial(Numbered().count), True),
        (lambda d: d.update(a=1), True),
        (lambda d: [d.pop(key) for key in list(d)], True),
        (_adds, True),
        (set_v, True),
        (attrgetter("a"), True),
    ],
)
def test_a_functions_code_says_whether_it_changes_objects(function: Any, expected: bool) -> None:
    assert may_change_objects(function) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, False),
        ("a", False),
        ((1, ("a", None)), False),
        (frozenset({1}), False),
        (Colour.RED, False),
        (Pair(1, 2), False),
        (Frozen(1), False),
        (Frozen((1, Frozen(2))), False),
        (object(), False),
        ([], True),
        ({}, True),
        ((1, []), True),
        ((1, (2, {})), True),
        (Pair(1, []), True),
        (Frozen([]), True),
        (ById(), True),
        (ByValue(), True),
        (frozenset({ById()}), True),
    ],
)
def test_a_value_can_change_if_it_or_something_in_it_can(value: Any, expected: bool) -> None:
    assert can_change([value]) is expected
    assert can_change([1, value, "a"]) is expected
    assert can_change([]) is False


@dataclass
class Order:
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slotted:
    items: list[Any]
    more: int = field(default=0, init=False)


def test_copies_are_equal_and_of_the_same_type() -> None:
    inner = [[1]]
    kept = [
        Order([1, {"a": (1, [2])}]),
        Slotted(inner),
        Pair(inner, 1),
        {"a": {1, 2}},
        deque([inner], 3),
        bytearray(b"a"),
        OrderedDict(a=inner),
        Counter("aab"),
        defaultdict(list, a=inner),
        (frozenset({1}), inner),
    ]
    copies = list(map(copy_if_shared, kept))
    assert copies == kept
    assert [type(copy) for copy in copies] == [type(value) for value in kept]
    assert all(copy is not value for copy, value in zip(copies, kept, strict=True))
    inner[0].append(2)
    assert copies[0].items[1]["a"][1] is not kept[0].items[1]["a"][1]
    assert (copies[1].items, copies[2].a, copies[4][0], copies[6]["a"]) == ([[1]],) * 4
    assert copies[4].maxlen == 3
    assert copies[8]["b"] == []


def test_what_is_no_record_is_handed_on_as_it_is() -> None:
    lock = threading.Lock()
    kept = [{"lock": lock}, [re.match("a", "a")]]
    copies = list(map(copy_if_shared, kept))
    assert copies == kept
    assert copies[0] is not kept[0]
    assert copy_if_shared(lock) is lock
    around: list[Any] = []
    around.append(around)
    assert copy_if_shared(around) is around
