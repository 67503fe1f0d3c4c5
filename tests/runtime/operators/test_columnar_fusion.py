"""Operators make and take tuples by column, and nothing can tell them from tuples."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.connectors.append_sinks import FunctionSink
from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import FlatMapFunction, MapFunction, SinkFunction
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.sink import WriterContext
from penstock.runtime.codegen import specialize
from penstock.runtime.codegen.switch import VARIABLE
from penstock.runtime.network.elements import Barrier, EncodedBatch
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.network.partitioners import HashPartitioner
from penstock.runtime.operators import record_loops as loops
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.columnar_fusion import FusedOperator, fused
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.serialization.record_batch import (
    EMPTY,
    WIDEST,
    RecordBatch,
    RecordBuffer,
)
from penstock.runtime.task.operator_chain import ChainNode
from tests.runtime.operators.test_operators import CODEC, operator, task_of


@pytest.fixture(autouse=True)
def _codegen_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


ROWS = [("a", 1, 2.5), ("b", 2, None), ("c", 3, b"x"), ("a", 4, 0.0)]


def by_column(rows: list[tuple[Any, ...]]) -> RecordBatch:
    return RecordBatch.of_columns([list(column) for column in zip(*rows, strict=True)])


def typed(value: Any) -> Any:
    """What two values share exactly if they are equal in value and type."""
    return repr(value)


# ---- made


class Pairs(FlatMapFunction):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def flat_map(self, value: Any) -> Any:
        return [(n, n * 2, "x") for n in value if n > 1]


class Weighed(MapFunction):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def map(self, value: Any) -> Any:
        return (value[0] * self.factor, value[1], True)


NUMBERS = [[1, 2, 3], [], [4, -1], [2, 2]]
TUPLES = [(3, "a"), (4, "b"), (3, "c"), (-1, "")]

FUSED: list[tuple[OperatorSpec, Any, Callable[[Any], Any], list[Any]]] = [
    (
        specs.FLAT_MAP,
        lambda line: [(word, 1) for word in line.split()],
        lambda pair: pair[0],
        ["to be or", "", "not to be", "be"],
    ),
    (specs.FLAT_MAP, Pairs(3), lambda row: (row[1], row[-1]), NUMBERS),
    (specs.FLAT_MAP, lambda n: [(k, v) for k, v in n.items()], lambda p: p, [{"a": 1}] * 3),
    (specs.FLAT_MAP, lambda ns: [(n,) for n in ns if n > 1 if n], lambda p: p[0], NUMBERS),
    (specs.MAP, Weighed(2), lambda row: row[0] % 3, TUPLES),
    (specs.MAP, lambda row: (1, row[1], row, row[0] + 1), lambda made: made[3], TUPLES),
    (specs.MAP, lambda row: (row, row), lambda made: made[0][0], TUPLES),
    (specs.MAP, lambda row: (7, row[0]), lambda made: made[0], TUPLES),
    # What would be warned of if the constant stood in the place of the item.
    (specs.MAP, lambda row: (row[0], 1), lambda made: (made[0], made[1] is None), TUPLES),
]


def outputs_of(count: int, batch_records: int = 3) -> tuple[InputGate, list[OutputChannel]]:
    gate = InputGate(lambda: None, lambda: 0.0)
    channels = [gate.add(ChannelId(0, 0, i), 1000) for i in range(count)]
    return gate, [LocalOutputChannel(channel, batch_records) for channel in channels]


def routed(outputs: list[OutputChannel], seal: bool) -> list[list[Any]]:
    """The batches that each channel gets."""
    found = []
    for output in outputs:
        assert isinstance(output, LocalOutputChannel)
        output.seal_full()
        if seal:
            output.seal()
        output.push()
        batches = []
        while len(output.channel):
            element = output.channel.take()
            assert isinstance(element, RecordBatch)
            batches.append(element.rows())
        found.append(batches)
    return found


@pytest.mark.parametrize(("kind", "function", "key", "records"), FUSED)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_fused_loops_route_what_operator_and_partitioner_do(
    kind: OperatorSpec, function: Any, key: Any, records: list[Any], parallelism: int
) -> None:
    (_, theirs), (_, ours) = outputs_of(parallelism), outputs_of(parallelism)
    plain, partitioner = operator(kind, function), HashPartitioner(theirs, key, 128, parallelism)
    one = fused(operator(kind, function), HashPartitioner(ours, key, 128, parallelism))
    assert one is not None
    made = 0
    for turn in range(4):
        out = plain.process(RecordBatch(list(records))).rows()
        made += len(out)
        partitioner.route(RecordBatch(out))
        assert one.process(RecordBatch(list(records))).rows() == []
        assert [len(o.buffer) for o in ours] == [len(o.buffer) for o in theirs]
        expected = routed(theirs, seal=turn % 2 == 1)
        assert typed(routed(ours, seal=turn % 2 == 1)) == typed(expected)
    assert made > 0 and one.records_out == made


@pytest.mark.parametrize(
    ("kind", "function", "key"),
    [
        (specs.MAP, lambda n: n, lambda p: p[0]),
        (specs.MAP, lambda n: [n, n], lambda p: p[0]),
        (specs.MAP, lambda n: (1, 2), lambda p: p[0]),
        (specs.MAP, lambda n: (n,) * 2, lambda p: p[0]),
        (specs.MAP, lambda n: (n, 1), lambda p: hash(p)),
        (specs.MAP, lambda n: (n, max(n, 1)), lambda p: p[0]),
        (specs.MAP, lambda n: (n, n, n, n, n, n, n, n, n), lambda p: p[0]),
        (specs.FLAT_MAP, lambda n: (n, 1), lambda p: p[0]),
        (specs.FLAT_MAP, lambda n: [(i, [j + 1 for j in i]) for i in n], lambda p: p[0]),
        (specs.FLAT_MAP, lambda n: [i + 1 for i in n], lambda p: p[0]),
        (specs.FILTER, lambda n: (n, 1), lambda p: p[0]),
    ],
)
def test_other_operators_are_not_fused(kind: OperatorSpec, function: Any, key: Any) -> None:
    _, outputs = outputs_of(2)
    assert fused(operator(kind, function), HashPartitioner(outputs, key, 128, 2)) is None
    assert all(type(output.pending) is RecordBuffer for output in outputs)


def test_a_barrier_that_overtakes_columns_logs_them() -> None:
    _, outputs = outputs_of(1)
    one = fused(operator(specs.MAP, lambda n: (n, 1)), HashPartitioner(outputs, second, 128, 1))
    assert one is not None
    one.process(RecordBatch([1, 2, 3, 4, 5]))
    overtaken = outputs[0].overtake(Barrier(1))
    assert [row for batch in overtaken for row in batch.rows()] == [(n, 1) for n in range(1, 6)]
    assert CODEC.decode_batch(CODEC.encode_record_batch(overtaken[0])) == overtaken[0].rows()


def second(pair: Any) -> Any:
    return pair[1]


def failing(function: Any, key: Any, records: list[Any], kind: OperatorSpec) -> JobError:
    """What a task tells of a fused operator that fails."""
    _, outputs = outputs_of(2)
    plain, partitioner = operator(kind, function), HashPartitioner(outputs, key, 128, 2)
    one = fused(plain, partitioner)
    assert one is not None
    root = ChainNode(one, [], [])
    return told(root, outputs, records)


def told(root: ChainNode, outputs: list[OutputChannel], records: Any) -> JobError:
    task, channel = task_of(root, outputs)
    channel.put(records if isinstance(records, RecordBatch) else RecordBatch(records))
    with pytest.raises(JobError) as caught:
        while task.step():
            pass
    return caught.value


@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_error_of_the_function_has_its_line_and_its_record(place: int) -> None:
    records: list[Any] = ["a b"] * 4
    records[place] = 5
    error = failing(
        lambda line: [(word, 1) for word in line.split()], second, records, specs.FLAT_MAP
    )
    assert (error.operator, error.record) == ("the name", "5")
    assert error.user_traceback is not None and "AttributeError" in error.user_traceback
    assert "test_columnar_fusion.py" in error.user_traceback
    assert "penstock/runtime" not in error.user_traceback


def test_what_python_would_warn_of_in_another_place_is_silent_and_the_users_to_see() -> None:
    # An index of a tuple put together in the loop; Python warns of it where it sees one.
    error = failing(lambda n: (n, 1), lambda pair: pair["x"], [1], specs.MAP)
    assert "tuple indices must be integers" in str(error) and error.record == "(1, 1)"


@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_error_of_the_key_selector_has_its_line_and_what_was_emitted(place: int) -> None:
    records: list[Any] = [2, 2, 2, 2]
    records[place] = 0
    error = failing(lambda n: (n, 1), lambda pair: 1 // pair[0], records, specs.MAP)
    assert (error.operator, error.record) == ("the name", "(0, 1)")
    assert error.user_traceback is not None and "ZeroDivisionError" in error.user_traceback
    assert "test_columnar_fusion.py" in error.user_traceback


@pytest.mark.parametrize("bad", [[3], (1, [2]), object()], ids=["list", "list within", "object"])
def test_a_key_that_cannot_be_routed_is_refused_with_what_was_emitted(bad: Any) -> None:
    ours = failing(lambda n: (n, 1), lambda pair: pair[0], [1, bad, 2], specs.MAP)
    _, outputs = outputs_of(2)
    partitioner = HashPartitioner(outputs, lambda pair: pair[0], 128, 2)
    root = ChainNode(operator(specs.MAP, lambda n: (n, 1)), [], [partitioner])
    theirs = told(root, outputs, [1, bad, 2])
    assert (ours.operator, ours.record) == (theirs.operator, theirs.record)
    assert str(ours) == str(theirs) and ours.record == repr((bad, 1))


# ---- taken


def sink_of(function: Any) -> SinkOperator:
    writer = FunctionSink(function).create_writer(WriterContext("s", "sink", 0, 1, 0, "l"))
    return SinkOperator(writer, operator(specs.MAP, lambda r: r).context)


class LastOf(SinkFunction):
    def __init__(self) -> None:
        self.count = 0
        self.last: dict[Any, Any] = {}

    def invoke(self, value: Any) -> None:
        self.count += 1
        self.last[value[0]] = value


TAKERS: dict[str, Callable[[], RunningOperator]] = {
    "map to an item": lambda: operator(specs.MAP, lambda row: row[1]),
    "map to all": lambda: operator(specs.MAP, lambda row: row),
    "map that is called": lambda: operator(specs.MAP, lambda row: max(row[1], 2)),
    "flat map": lambda: operator(specs.FLAT_MAP, lambda row: [row[0], row]),
    "filter": lambda: operator(specs.FILTER, lambda row: row[1] > 2),
    "reduce": lambda: operator(specs.KEYED_REDUCE, lambda a, b: (a[0], a[1] + b[1], b[2])),
    "reduce that is called": lambda: operator(specs.KEYED_REDUCE, lambda a, b: max(a, b)),
    "reduce by a key that is called": lambda: operator(
        specs.KEYED_REDUCE, lambda a, b: (a[0], a[1] + b[1], b[2]), lambda row: str(row[0])
    ),
    "count": lambda: operator(specs.KEYED_COUNT, None),
}


def opened(make: Callable[[], RunningOperator]) -> RunningOperator:
    running = make()
    running.open()
    return running


@pytest.mark.parametrize("name", TAKERS)
def test_an_operator_makes_the_same_of_columns_as_of_rows(name: str) -> None:
    rows = [("a", 1, 2.5), ("b", 2, 1.0), ("c", 3, 9.0), ("a", 4, 0.0), ("c", -1, 2.0)]
    ours, theirs = opened(TAKERS[name]), opened(TAKERS[name])
    for _ in range(2):
        assert (
            ours.process(by_column(rows)).rows() == theirs.process(RecordBatch(list(rows))).rows()
        )


def test_a_sink_is_called_with_the_tuples() -> None:
    ours, theirs = LastOf(), LastOf()
    sink_of(ours).process(by_column(ROWS))
    sink_of(theirs).process(RecordBatch(ROWS))
    assert vars(ours) == vars(theirs) and ours.count == 4


def test_a_random_reduce_makes_the_same_of_columns() -> None:
    rng = random.Random(5)
    ours, theirs = opened(TAKERS["reduce"]), opened(TAKERS["reduce"])
    for _ in range(50):
        rows = [(rng.randrange(9), rng.randrange(9), rng.random()) for _ in range(20)]
        assert ours.process(by_column(rows)).rows() == theirs.process(RecordBatch(rows)).rows()


@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize("kind", [specs.FILTER, specs.KEYED_REDUCE])
def test_an_error_over_columns_has_the_line_and_the_record(kind: OperatorSpec, place: int) -> None:
    rows = [("a", 1, 1)] * 4
    rows[place] = ("a", 0, 0)
    function: Any = lambda row: 1 // row[1] + row[2]  # noqa: E731
    if kind is specs.KEYED_REDUCE:
        function = lambda a, b: (a[0], 1 // b[1], 1 // a[2])  # noqa: E731
    running = operator(kind, function)
    running.open()
    error = told(ChainNode(running, [], []), [], by_column(rows))
    # The first record of a key is its value, and fails with the second.
    at = max(place, 1) if kind is specs.KEYED_REDUCE else place
    assert (error.operator, error.record) == ("the name", repr(rows[at]))
    assert error.user_traceback is not None and "ZeroDivisionError" in error.user_traceback
    assert "test_columnar_fusion.py" in error.user_traceback


class Writes(SinkFunction):
    def invoke(self, value: Any) -> None:
        value[0] = value[1]


def test_a_record_that_is_a_tuple_cannot_be_written_to() -> None:
    error = told(ChainNode(sink_of(Writes()), [], []), [], by_column([(1, 2)]))
    assert "does not support item assignment" in str(error)


def test_what_is_fused_tells_rows_even_if_it_is_given_columns() -> None:
    def of(running: RunningOperator, outputs: list[OutputChannel], rows: Any) -> JobError:
        return told(ChainNode(running, [], []), outputs, by_column(rows))

    for bad, key in ((("b", 0), lambda made: made[0]), (("b", 1, [2]), lambda made: made[2])):
        _, outputs = outputs_of(1)
        partitioner = HashPartitioner(outputs, key, 128, 1)
        one = fused(operator(specs.MAP, lambda row: (row[0], 1 // row[1], row[-1])), partitioner)
        assert one is not None
        rows = [("a", 1, 1)[: len(bad)], bad, ("c", 3, 4)[: len(bad)]]
        error = of(one, outputs, rows)
        assert error.record in (repr(bad), repr((bad[0], 1, bad[-1]))), error.record
        assert "ZeroDivisionError" in str(error) or "list can't be a key" in str(error)


class Property:
    """Fails the first time that it is asked."""

    asked = 0

    @property
    def value(self) -> int:
        self.asked += 1
        if self.asked == 1:
            raise OSError("once")
        return 1


def test_an_error_in_a_class_of_the_users_is_raised_once_and_has_its_record() -> None:
    record = Property()
    error = failing(lambda n: (n.value, 1), second, [record], specs.MAP)
    assert "once" in str(error) and "Property" in str(error.record) and record.asked == 1


def test_wide_tuples_and_those_wanted_whole_are_gone_through_as_rows() -> None:
    running = opened(lambda: operator(specs.MAP, lambda row: row[0]))
    assert isinstance(running, RecordLoopOperator)
    running.process(RecordBatch([(0,)]))  # the first batch shows that it emits what cannot change
    for width in (1, 2, WIDEST, WIDEST + 1, 1000):
        rows = [tuple(range(width)), tuple(range(1, width + 1))]
        assert running.process(by_column(rows)).rows() == [0, 1]
    assert set(running._loop._by_column) == {1, 2, WIDEST}


def test_a_loop_that_wants_whole_records_goes_through_rows() -> None:
    assert specialize(loops.filter_records, {"function": lambda row: row[1] > 2}, 2) is None
    assert specialize(loops.map_records, {"function": lambda row: row}, 2) is None
    assert specialize(loops.map_records, {"function": max}, 2) is None
    assert specialize(loops.map_records, {"function": lambda row: row[2]}, 2) is None
    assert specialize(loops.map_records, {"function": lambda row: row[2]}, 3) is not None


@pytest.mark.parametrize("encoded", [False, True])
def test_a_task_passes_columns_on(encoded: bool) -> None:
    rows = [("a", 1), ("b", 2)]
    running = operator(specs.FILTER, lambda row: row[1])
    seen: list[RecordBatch] = []
    running.process = lambda batch: seen.append(batch) or EMPTY  # type: ignore
    task, channel = task_of(ChainNode(running, [], []), [])
    whole = CODEC.encode_batch(rows)
    channel.put(EncodedBatch(whole, 2) if encoded else by_column(rows))
    while task.step():
        pass
    assert all(batch.columns() is not None for batch in seen)
    assert [row for batch in seen for row in batch.rows()] == rows


def test_functions_are_opened_and_closed_once() -> None:
    class Opens(Weighed):
        told = ""

        def open(self, runtime_context: Any) -> None:
            self.told += "o"

        def close(self) -> None:
            self.told += "c"

    function, (_, outputs) = Opens(1), outputs_of(1)
    one = fused(operator(specs.MAP, function), HashPartitioner(outputs, lambda p: p[0], 128, 1))
    assert isinstance(one, FusedOperator)
    function.told = ""  # the plain operator was opened
    one.open()
    one.process(RecordBatch([(2, 3)]))
    one.close()
    assert function.told == "oc"
