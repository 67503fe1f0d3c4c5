"""Each operator over batches, what errors in user code say, and who sees a change of a record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.append_sinks import FunctionSink
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.sink import SinkWriter, WriterContext
from penstock.dataflow.state import RuntimeContext, ValueStateDescriptor
from penstock.runtime.network.elements import EndOfInput
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.network.partitioners import ForwardPartitioner, HashPartitioner
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.operator_chain import ChainNode
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.task import Task
from penstock.runtime.task.task_settings import TaskSettings
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.storage.job_paths import JobPaths
from tests.runtime.operators.making import make_operator

CODEC = Codec(TypeRegistry())


def operator(
    kind: OperatorSpec, function: Any, key: Any = None, codec: Codec = CODEC
) -> RunningOperator:
    context = OperatorContext("the name", "uid", 1, 4, 128, 2, codec)
    if kind.keyed:
        context.backend = KeyedBackend(
            folder=Path("/nowhere"),
            codec=codec,
            canonical=canonical,
            max_parallelism=128,
            groups=range(128),
        )
    made = make_operator(kind, function, key or (lambda record: record[0]), context)
    made.open()
    return made


def failing(target: RunningOperator, records: list[Any]) -> JobError:
    with pytest.raises(Exception) as caught:
        target.process(RecordBatch(records))
    error = caught.value
    assert error.__traceback__ is not None
    # Without the frame of this very test, as if a task had called the operator.
    return to_job_error(error.with_traceback(error.__traceback__.tb_next), target, records)


# ---- the operators


class _KeyedReusingAtTheEnd(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self._row: dict[str, Any] = {}

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self._seen.update(value)
        return ()

    def end_input(self, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        for n in range(2):
            self._row["n"] = (ctx.get_current_key(), n)
            yield self._row


def test_a_hook_may_emit_the_same_object_again() -> None:
    keyed = operator(specs.KEYED_PROCESS, _KeyedReusingAtTheEnd())
    keyed.process(RecordBatch([("a",), ("b",)]))
    emitted = [row["n"] for rows in keyed.end_input() for row in rows.rows()]
    assert sorted(emitted) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_record_may_be_changed_and_passed_on_and_may_be_emitted_twice() -> None:
    running = operator(specs.MAP, lambda record: record.update(seen=True) or record)
    one, other = {"n": 1}, {"n": 2}
    assert running.process(RecordBatch([one, other])).rows() == [
        {"n": 1, "seen": True},
        {"n": 2, "seen": True},
    ]
    assert running.process(RecordBatch([other])).rows() == [other]
    assert running.process(RecordBatch([one, one])).rows() == [one, one]
    same = operator(specs.FLAT_MAP, lambda n: [(n,), (n,)])
    assert same.process(RecordBatch([1, 2])).rows() == [(1,), (1,), (2,), (2,)]


def test_map_emits_one_record_for_each() -> None:
    assert operator(specs.MAP, lambda n: n + 1).process(RecordBatch([1, 2])).rows() == [2, 3]


def test_flat_map_emits_the_items_of_any_iterable_in_order() -> None:
    assert operator(specs.FLAT_MAP, range).process(RecordBatch([2, 0, 3])).rows() == [
        0,
        1,
        0,
        1,
        2,
    ]
    lazily = operator(specs.FLAT_MAP, lambda n: (x for x in [n]))
    assert lazily.process(RecordBatch([1])).rows() == [1]


def test_filter_emits_records_for_which_the_function_is_true() -> None:
    assert operator(specs.FILTER, lambda n: n % 2).process(RecordBatch([1, 2, 3])).rows() == [1, 3]


def test_process_may_return_nothing() -> None:
    class Odd(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
            return [value] if value % 2 else None

    assert operator(specs.PROCESS, Odd()).process(RecordBatch([1, 2, 3])).rows() == [1, 3]


def test_function_objects_are_called_by_their_method_and_opened_and_closed() -> None:
    told: list[str] = []

    class Rich(MapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            told.append(f"open {runtime_context.get_index_of_this_subtask()}")
            told.append(f"attempt {runtime_context.get_attempt_number()}")

        def map(self, value: Any) -> Any:
            return -value

        def close(self) -> None:
            told.append("close")

    running = operator(specs.MAP, Rich())
    assert running.process(RecordBatch([1])).rows() == [-1]
    running.close()
    assert told == ["open 1", "attempt 2", "close"]


def test_every_kind_of_function_object_works_like_a_lambda() -> None:
    class Flat(FlatMapFunction):
        def flat_map(self, value: Any) -> Iterable[Any]:
            return [value, value]

    class Keep(FilterFunction):
        def filter(self, value: Any) -> bool:
            return value > 1

    class Add(ReduceFunction):
        def reduce(self, value1: Any, value2: Any) -> Any:
            return (value1[0], value1[1] + value2[1])

    assert operator(specs.FLAT_MAP, Flat()).process(RecordBatch([1])).rows() == [1, 1]
    assert operator(specs.FILTER, Keep()).process(RecordBatch([1, 2])).rows() == [2]
    assert operator(specs.KEYED_REDUCE, Add()).process(RecordBatch([("a", 1), ("a", 2)])).rows()[
        -1
    ] == ("a", 3)


def test_reduce_emits_the_running_value_of_each_key_over_batches() -> None:
    running = operator(specs.KEYED_REDUCE, lambda a, b: (a[0], a[1] + b[1]))
    assert running.process(RecordBatch([("a", 1), ("b", 5), ("a", 2)])).rows() == [
        ("a", 1),
        ("b", 5),
        ("a", 3),
    ]
    assert running.process(RecordBatch([("a", 10)])).rows() == [("a", 13)]


def test_reduce_begins_anew_after_none() -> None:
    seen: list[tuple[Any, Any]] = []
    running = operator(
        specs.KEYED_REDUCE, lambda a, b: seen.append((a, b)), key=lambda record: "the key"
    )
    assert running.process(RecordBatch([1, 2, 3])).rows() == [1, None, 3]
    assert running.context.backend is not None
    running.context.backend.capture(1)
    assert running.process(RecordBatch([4])).rows() == [None]
    assert seen == [(1, 2), (3, 4)]
    running.context.backend.capture(2)
    assert running.process(RecordBatch([5])).rows() == [5]


def test_reduce_continues_after_its_state_was_captured() -> None:
    running = operator(specs.KEYED_REDUCE, lambda a, b: (a[0], a[1] + b[1]))
    running.process(RecordBatch([("a", 1)]))
    assert running.context.backend is not None
    running.context.backend.capture(1)
    assert running.process(RecordBatch([("a", 2)])).rows() == [("a", 3)]


def test_count_emits_pairs() -> None:
    running = operator(specs.KEYED_COUNT, None)
    assert running.process(RecordBatch(["ax", "bx", "ay"])).rows() == [("a", 1), ("b", 1), ("a", 2)]


def test_keys_that_are_equal_share_their_state() -> None:
    running = operator(specs.KEYED_COUNT, None, lambda record: record)
    assert [n for _, n in running.process(RecordBatch([1, 1.0, True, 2])).rows()] == [1, 2, 3, 1]


class Running(KeyedProcessFunction):
    """Emits the sum of its key, and forgets it at a zero."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if not value[1]:
            self.total.clear()
            return None
        self.total.update((self.total.value() or 0) + value[1])
        return [(ctx.get_current_key(), self.total.value())]


def test_a_keyed_process_function_sees_the_state_of_its_key_alone() -> None:
    running = operator(specs.KEYED_PROCESS, Running())
    records = [("a", 1), ("b", 5), ("a", 2), ("a", 0), ("a", 7), ("b", 1)]
    assert running.process(RecordBatch(records)).rows() == [
        ("a", 1),
        ("b", 5),
        ("a", 3),
        ("a", 7),
        ("b", 6),
    ]


def test_none_clears_a_value_state() -> None:
    class Sets(Running):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
            before = self.total.value()
            self.total.update(value[1])
            return [before]

    running = operator(specs.KEYED_PROCESS, Sets())
    assert running.process(RecordBatch([("a", 1), ("a", None), ("a", 2)])).rows() == [None, 1, None]


def test_state_on_a_stream_without_keys_is_refused() -> None:
    class Wants(MapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_state(ValueStateDescriptor("x"))

        def map(self, value: Any) -> Any:
            return value

    with pytest.raises(GraphError, match="key_by"):
        operator(specs.MAP, Wants())


# ---- mutable values


def test_records_that_reduce_emitted_do_not_change_with_its_state() -> None:
    def extend(a: list[Any], b: list[Any]) -> list[Any]:
        a.append(b[1])
        return a

    running = operator(specs.KEYED_REDUCE, extend)
    first, second = running.process(RecordBatch([["a", 1], ["a", 2]])).rows()
    (third,) = running.process(RecordBatch([["a", 3]])).rows()
    assert (first, second, third) == (["a", 1], ["a", 1, 2], ["a", 1, 2, 3])
    third.append("by a consumer")
    assert running.process(RecordBatch([["a", 4]])).rows() == [["a", 1, 2, 3, 4]]


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: ("a", items)])
@pytest.mark.parametrize("kind", [list, set, dict, bytearray])
def test_a_record_without_a_hash_is_copied_when_reduce_emits_it(kind: Any, wrap: Any) -> None:
    mutable = kind()
    running = operator(specs.KEYED_REDUCE, lambda a, b: wrap(mutable), lambda record: "a")
    _, emitted = running.process(RecordBatch([("a", 1), ("a", 2)])).rows()
    assert emitted == wrap(mutable)
    inner = emitted[1] if type(emitted) is tuple else emitted
    assert type(inner) is kind
    assert inner is not mutable


@dataclasses.dataclass(eq=False)
class Tally:
    """Has a hash, and can change all the same."""

    count: int


def test_a_mutable_record_with_a_hash_is_copied_too() -> None:
    def count(tally: Tally, _: Tally) -> Tally:
        tally.count += 1
        return tally

    codec = Codec(TypeRegistry([Tally]))
    running = operator(specs.KEYED_REDUCE, count, lambda _: "a", codec)
    emitted = running.process(RecordBatch([Tally(1), Tally(1), Tally(1)])).rows()
    assert [tally.count for tally in emitted] == [1, 2, 3]


def test_records_that_a_keyed_process_function_emitted_do_not_change_with_its_state() -> None:
    class Collects(Running):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
            items = self.total.value() or []
            items.append(value[1])
            self.total.update(items)
            return [items]

    running = operator(specs.KEYED_PROCESS, Collects())
    assert running.process(RecordBatch([("a", 1), ("a", 2)])).rows() == [[1], [1, 2]]


# ---- errors


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (specs.MAP, lambda r: (r[0], 1 // r[1])),
        (specs.FLAT_MAP, lambda r: [1 // r[1]]),
        (specs.FLAT_MAP, lambda r: [1 // n for n in (1, r[1])]),
        (specs.MAP, lambda r: (r[0].upper(), 1 // r[1])),
        (specs.FILTER, lambda r: 1 // r[1]),
        (specs.KEYED_REDUCE, lambda a, b: ("a", 1 // b[1])),
    ],
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_error_names_the_operator_and_the_record(
    kind: OperatorSpec, function: Any, place: int
) -> None:
    records = [("a", 1)] * 4
    records[place] = ("a", 0)
    error = failing(operator(kind, function), records)
    assert error.operator == "the name"
    assert error.record == "('a', 0)"
    assert error.user_traceback is not None
    assert "ZeroDivisionError" in error.user_traceback
    assert "penstock/runtime" not in error.user_traceback
    assert "test_operators.py" in error.user_traceback, "the line of the user's own function"


def test_an_error_in_a_key_selector_names_the_record() -> None:
    running = operator(specs.KEYED_COUNT, None, lambda record: record["key"])
    error = failing(running, [{"key": 1}, {"other": 2}])
    assert error.record == "{'other': 2}"
    assert "KeyError" in str(error)


def test_an_error_in_a_lazy_iterable_names_the_record() -> None:
    def words(line: str) -> Iterable[str]:
        yield line
        raise ValueError(line)

    assert failing(operator(specs.FLAT_MAP, words), ["a", "b"]).record == "'a'"


def test_long_records_are_shortened_and_a_failing_repr_is_reported() -> None:
    def fail(_: Any) -> Any:
        raise ValueError

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    long = failing(operator(specs.MAP, fail), ["x" * 2000])
    assert long.record is not None
    assert len(long.record) < 600
    assert "2002 characters" in long.record
    broken = failing(operator(specs.MAP, fail), [Broken()])
    assert broken.record == "<Broken whose repr fails: no repr>"


# ---- chains


class Keeps(SinkWriter):
    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, batch: list[Any]) -> None:
        self.records += batch


class _Silent:
    def input_ended(self, task: Task) -> None:
        return None

    def outside_ended(self, task: Task) -> None:
        return None

    def acknowledge(self, acknowledgement: Any) -> None:
        return None

    def decline(self, number: int, reason: str) -> None:
        return None


def task_of(root: ChainNode, outputs: list[OutputChannel]) -> tuple[Task, Any]:
    gate = InputGate(lambda: None, lambda: 0.0)
    channel = gate.add(ChannelId(0, 0, 0), 8)
    checkpoint_writer = CheckpointWriter(
        subtask=0,
        lineage="l",
        attempt=0,
        backends={},
        responder=_Silent(),
        paths=JobPaths(Path("/nowhere")),
        clock=lambda: 0.0,
    )
    operators = [node.operator for node in root.walk()]
    end_of_input = EndOfInputTracker(gate.channels, None, operators)
    task = Task(
        id=(0, 0),
        name="chain",
        chain=ChainRunner(root, CODEC, end_of_input),
        gate=gate,
        outputs=outputs,
        protocol=AlignedProtocol(gate.channels),
        checkpoint_writer=checkpoint_writer,
        end_of_input=end_of_input,
        listener=_Silent(),
        settings=TaskSettings(clock=lambda: 0.0, timer=lambda: 0.0),
    )
    return task, channel


def node(running: RunningOperator, *children: ChainNode) -> ChainNode:
    return ChainNode(running, list(children), [])


def sink(writer: SinkWriter) -> ChainNode:
    return node(SinkOperator(writer, OperatorContext("sink", "s", 0, 1, 128, 0, CODEC)))


def test_a_chain_runs_its_operators_in_order_and_counts_records() -> None:
    writer = Keeps()
    double = operator(specs.FLAT_MAP, lambda n: [n, n])
    root = node(operator(specs.FILTER, lambda n: n > 1), node(double, sink(writer)))
    task, channel = task_of(root, [])
    channel.put(RecordBatch([1, 2, 3]))
    channel.put(EndOfInput())
    while task.step():
        pass
    assert writer.records == [2, 2, 3, 3]
    assert [(o.records_in, o.records_out) for o in task.chain.operators] == [(3, 2), (2, 4), (4, 0)]
    assert task.ended


class Last(SinkFunction):
    def __init__(self) -> None:
        self.records, self.last = 0, {}

    def invoke(self, value: Any) -> None:
        self.records += 1
        self.last[value[0]] = value


class Called(Last):
    def invoke(self, value: Any) -> None:
        self.records += int(True)
        self.last[value[0]] = value


@pytest.mark.parametrize("function", [Last(), Called()], ids=["in the loop", "called"])
def test_an_error_in_a_sinks_function_has_the_users_line_and_the_record(function: Last) -> None:
    context = WriterContext("s", "sink", 0, 1, 0, "l")
    root = sink(FunctionSink(function).create_writer(context))
    task, channel = task_of(root, [])
    channel.put(RecordBatch([("a", 1), ("b", 2), ([], 3), ("c", 4)]))
    with pytest.raises(JobError) as caught:
        while task.step():
            pass
    assert caught.value.operator == "sink" and caught.value.record == "([], 3)"
    assert "self.last[value[0]] = value" in (caught.value.user_traceback or "")
    assert function.last == {"a": ("a", 1), "b": ("b", 2)}


def test_where_an_output_fans_out_one_consumer_does_not_see_what_another_changes() -> None:
    def spoil(record: list[Any]) -> list[Any]:
        record.append("spoilt")
        return record

    spoilt, kept = Keeps(), Keeps()
    root = node(
        operator(specs.MAP, lambda r: r),
        node(operator(specs.MAP, spoil), sink(spoilt)),
        sink(kept),
    )
    task, channel = task_of(root, [])
    channel.put(RecordBatch([[1], [2]]))
    while task.step():
        pass
    assert spoilt.records == [[1, "spoilt"], [2, "spoilt"]]
    assert kept.records == [[1], [2]]


def test_an_error_in_routing_names_the_operator_that_emitted_the_record() -> None:
    gate = InputGate(lambda: None, lambda: 0.0)
    outputs: list[OutputChannel] = [
        LocalOutputChannel(gate.add(ChannelId(0, 0, i), 1), 10) for i in range(2)
    ]
    partitioner = HashPartitioner(outputs, lambda record: record["key"], 128, 2)
    root = ChainNode(operator(specs.MAP, lambda r: r), [], [partitioner])
    task, channel = task_of(root, outputs)
    channel.put(RecordBatch([{"key": 1}, {"no key": 2}]))
    with pytest.raises(JobError) as caught:
        while task.step():
            pass
    assert caught.value.operator == "the name"
    assert caught.value.record == "{'no key': 2}"


def test_a_key_that_cannot_be_routed_names_the_record() -> None:
    gate = InputGate(lambda: None, lambda: 0.0)
    outputs: list[OutputChannel] = [
        LocalOutputChannel(gate.add(ChannelId(0, 0, i), 1), 10) for i in range(2)
    ]
    partitioner = HashPartitioner(outputs, lambda record: record[0], 128, 2)
    root = ChainNode(operator(specs.MAP, lambda r: r), [], [partitioner])
    task, channel = task_of(root, outputs)
    channel.put(RecordBatch([((1, 2), "fine"), ((1, [2]), "list in a key")]))
    with pytest.raises(JobError) as caught:
        while task.step():
            pass
    assert caught.value.operator == "the name"
    assert caught.value.record == "((1, [2]), 'list in a key')"


def test_a_task_whose_output_waits_takes_no_more_input() -> None:
    gate = InputGate(lambda: None, lambda: 0.0)
    target = gate.add(ChannelId(0, 0, 0), 1)
    output = LocalOutputChannel(target, 1)
    root = ChainNode(operator(specs.MAP, lambda r: r), [], [ForwardPartitioner([output])])
    task, channel = task_of(root, [output])
    for number in range(4):
        channel.put(RecordBatch([number]))
    while task.step():
        pass
    assert (len(target), len(output.sealed), len(channel)) == (1, 1, 2)
    gate.take()
    assert task.step()
    assert (len(target), len(output.sealed), len(channel)) == (1, 1, 1)


def test_all_functions_are_closed_even_if_one_raises() -> None:
    closed: list[str] = []

    class Closes(MapFunction):
        def __init__(self, name: str) -> None:
            self.name = name

        def map(self, value: Any) -> Any:
            return value

        def close(self) -> None:
            closed.append(self.name)
            if self.name == "a":
                raise ValueError("in close")

    root = node(operator(specs.MAP, Closes("a")), node(operator(specs.MAP, Closes("b"))))
    task, _ = task_of(root, [])
    with pytest.raises(JobError, match="in close"):
        task.close()
    assert closed == ["a", "b"]
