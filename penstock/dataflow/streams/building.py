"""Add the operators of streams to the job graph, with one function for each operator.

The methods of streams check the arguments of the program, and then call these functions. Each
function returns the output of the operator that it adds. No other module of this folder chooses
the specification of an operator.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.dataflow.async_io.async_operation import AsyncOperation
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.columns.aggregates import ColumnAggregation
from penstock.dataflow.columns.batch_function import BatchOperation
from penstock.dataflow.columns.column_key import ColumnKey
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import Function, KeySelectorLike
from penstock.dataflow.graph.job_graph import JobGraph, OperatorOutput, Partitioning
from penstock.dataflow.joins.operations import (
    AsOfJoinOperation,
    IntervalJoinOperation,
    TableJoinOperation,
)
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec, Role
from penstock.dataflow.output_tag import OutputTag, check_output_tag
from penstock.dataflow.sink import Sink
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types import TypeInformation, Types
from penstock.dataflow.windows import WindowOperation

#: The type of records without a declared type.
ANY_TYPE = Types.PICKLED_BYTE_ARRAY()


@dataclass(frozen=True)
class OperatorInput:
    """The records that an operator reads through one of its inputs.

    Arguments:
        environment: the environment that the records belong to.
        outputs: the outputs of the operators that produce the records.
        key_selector: the function that returns the key of a record; None if the records are not
            keyed.
    """

    environment: BaseEnvironment
    outputs: tuple[OperatorOutput, ...]
    key_selector: KeySelectorLike | None = None

    def key_by(self, key_selector: KeySelectorLike) -> OperatorInput:
        """Return the same records, partitioned by key."""
        outputs = partitioned(self.outputs, Partitioning.HASH, key_selector)
        return OperatorInput(self.environment, outputs, key_selector)

    def broadcast(self) -> OperatorInput:
        """Return the same records; each subtask gets all of them."""
        return OperatorInput(self.environment, partitioned(self.outputs, Partitioning.BROADCAST))

    def gathered(self) -> OperatorInput:
        """Return the same records, in one subtask and with one key for all of them."""
        outputs = partitioned(self.outputs, Partitioning.GLOBAL)
        return OperatorInput(self.environment, outputs, _no_key)


def partitioned(
    outputs: Iterable[OperatorOutput],
    partitioning: Partitioning,
    selector: KeySelectorLike | None = None,
    partitioner: UserValue = None,
) -> tuple[OperatorOutput, ...]:
    """Return the same outputs with another partitioning; see `Edge` for the arguments."""
    return tuple(
        replace(output, partitioning=partitioning, selector=selector, partitioner=partitioner)
        for output in outputs
    )


# ---- operators with one input


def add_operator(
    records: OperatorInput, name: str, function: object, spec: OperatorSpec
) -> OperatorOutput:
    """Add an operator with any specification.

    Raises:
        GraphError: if `spec` does not describe an operator that can read these records.
    """
    if not isinstance(spec, OperatorSpec):
        raise GraphError(f"transform takes an OperatorSpec, not {spec!r}")
    if spec.role is not Role.TRANSFORMATION or spec.two_inputs:
        raise GraphError(
            f"transform adds an operator that reads one stream and makes another, and "
            f"{spec.name!r} is not one"
        )
    if spec.build is None:
        raise GraphError(f"{spec.name!r} has no builder: give OperatorSpec the argument build")
    if spec.keyed and records.key_selector is None:
        raise GraphError(f"{spec.name!r} has keyed state: call key_by(...) before transform")
    return _add(spec, name, function, records)


def add_map(records: OperatorInput, name: str, function: object) -> OperatorOutput:
    """Add an operator that emits the result of a function for each record."""
    return _add(specs.MAP, name, function, records)


def add_flat_map(records: OperatorInput, name: str, function: object) -> OperatorOutput:
    """Add an operator that emits all results of a function for each record."""
    return _add(specs.FLAT_MAP, name, function, records)


def add_filter(records: OperatorInput, name: str, function: object) -> OperatorOutput:
    """Add an operator that keeps the records for which a function returns a true value."""
    return _add(specs.FILTER, name, function, records)


def add_process(records: OperatorInput, name: str, function: object) -> OperatorOutput:
    """Add an operator that runs a `ProcessFunction`."""
    return _add(specs.PROCESS, name, function, records)


def add_map_batches(records: OperatorInput, operation: BatchOperation) -> OperatorOutput:
    """Add an operator that calls a function for each batch of records."""
    return _add(specs.batches(operation), "Map Batches", operation, records)


def add_async_wait(records: OperatorInput, operation: AsyncOperation) -> OperatorOutput:
    """Add an operator that sends a request for each record."""
    operation = replace(operation, key_selector=records.key_selector)
    key = operation.key_selector
    return _add(specs.ASYNC_WAIT, "Async Wait", operation, records, key_selector=key)


def add_timestamps(records: OperatorInput, strategy: WatermarkStrategy) -> OperatorOutput:
    """Add an operator that assigns timestamps and generates watermarks."""
    spec = specs.timestamps(strategy)
    return _add(spec, "Timestamps/Watermarks", strategy, records)


def add_sink(records: OperatorInput, sink: Sink) -> OperatorOutput:
    """Add an operator that writes the records to a sink."""
    return _add(specs.SINK, f"Sink: {type(sink).__name__}", sink, records)


# ---- operators with one input and keyed state


def add_keyed_process(
    records: OperatorInput, name: str, function: object, spec: OperatorSpec = specs.KEYED_PROCESS
) -> OperatorOutput:
    """Add an operator that runs a `KeyedProcessFunction`."""
    return _add(spec, name, function, records)


def add_reduce(records: OperatorInput, name: str, function: object) -> OperatorOutput:
    """Add an operator that combines the records of each key."""
    return _add(specs.KEYED_REDUCE, name, function, records)


def add_count(records: OperatorInput) -> OperatorOutput:
    """Add an operator that counts the records of each key."""
    return _add(specs.KEYED_COUNT, "Count", None, records)


def add_window(records: OperatorInput, operation: WindowOperation) -> OperatorOutput:
    """Add the operator of a window of keyed records."""
    # The name is a part of the operator's derived uid. So it has no lengths: a program may change
    # them, and keep its state.
    name = f"Window: {type(operation.assigner).__name__}"
    return _add(specs.window(operation), name, operation, records)


def add_window_of_all(records: OperatorInput, operation: WindowOperation) -> OperatorOutput:
    """Add the operator of a window of records without keys, which has one subtask."""
    output = add_window(records.gathered(), operation)
    output.operator.parallelism = 1
    output.operator.non_parallel_reason = "a window of all records has one subtask"
    return output


def add_column_aggregation(
    records: OperatorInput, key: ColumnKey, name: str, aggregation: ColumnAggregation
) -> OperatorOutput:
    """Add an operator that aggregates columns for each value of the key columns."""
    return _add(specs.columns(aggregation), name, aggregation, records.key_by(key))


def add_table_join(
    records: OperatorInput, operation: TableJoinOperation, reload_on: OperatorInput | None
) -> OperatorOutput:
    """Add an operator that joins records with a table, and loads it again when records arrive.

    Arguments:
        records: the records that are joined.
        operation: the table and the function of the join.
        reload_on: the records that let all workers load the table again, or None.
    """
    name, key = "Table Join", operation.key_selector
    if reload_on is None:
        return _add(specs.TABLE_JOIN, name, operation, records, key_selector=key)
    reload = reload_on.broadcast()
    return _add(specs.CO_TABLE_JOIN, name, operation, records, reload, key_selector=key)


# ---- operators with two inputs


def add_co_map(first: OperatorInput, second: OperatorInput, function: object) -> OperatorOutput:
    """Add an operator that runs a `CoMapFunction`, with keyed state if both inputs are keyed."""
    spec = specs.KEYED_CO_MAP if _are_keyed(first, second) else specs.CO_MAP
    return _add(spec, "Co-Map", function, first, second)


def add_co_flat_map(
    first: OperatorInput, second: OperatorInput, function: object
) -> OperatorOutput:
    """Add an operator that runs a `CoFlatMapFunction`, with keyed state as `add_co_map`."""
    keyed = _are_keyed(first, second)
    spec = specs.KEYED_CO_FLAT_MAP if keyed else specs.CO_FLAT_MAP
    return _add(spec, "Co-Flat Map", function, first, second)


def add_co_process(first: OperatorInput, second: OperatorInput, function: object) -> OperatorOutput:
    """Add an operator that runs a `CoProcessFunction`, with keyed state as `add_co_map`."""
    if _are_keyed(first, second):
        return _add(specs.KEYED_CO_PROCESS, "Keyed Co-Process", function, first, second)
    return _add(specs.CO_PROCESS, "Co-Process", function, first, second)


def add_broadcast_process(
    first: OperatorInput,
    second: OperatorInput,
    function: object,
    states: tuple[MapStateDescriptor, ...],
) -> OperatorOutput:
    """Add an operator that processes records together with broadcast records.

    Arguments:
        first: the records that are not broadcast.
        second: the broadcast records.
        function: a `KeyedBroadcastProcessFunction` if the first records are keyed, else a
            `BroadcastProcessFunction`.
        states: the descriptors of the broadcast states that the function may use.
    """
    spec, name = specs.BROADCAST_PROCESS, "Broadcast Process"
    if first.key_selector is not None:
        spec, name = specs.KEYED_BROADCAST_PROCESS, "Keyed Broadcast Process"
    output = _add(spec, name, function, first, second)
    output.operator.broadcast_states = states
    return output


def add_window_join(
    first: OperatorInput, second: OperatorInput, name: str, operation: WindowOperation
) -> OperatorOutput:
    """Add an operator that joins or groups the records of two inputs in windows."""
    name = f"{name}: {type(operation.assigner).__name__}"
    return _add(specs.window_join(operation), name, operation, first, second)


def add_interval_join(
    first: OperatorInput, second: OperatorInput, operation: IntervalJoinOperation
) -> OperatorOutput:
    """Add the operator of an interval join."""
    return _add(specs.interval_join(operation), "Interval Join", operation, first, second)


def add_as_of_join(
    first: OperatorInput, second: OperatorInput, operation: AsOfJoinOperation
) -> OperatorOutput:
    """Add the operator of an as-of join, whose second input has the versions."""
    return _add(specs.as_of_join(operation), "As-Of Join", operation, first, second)


# ---- properties of operators


def side_output_of(outputs: Sequence[OperatorOutput], tag: OutputTag) -> OperatorOutput:
    """Return a side output of the operator that has the given main output.

    Arguments:
        outputs: the outputs of the stream whose operator emits to the side output.
        tag: the tag of the side output.

    Raises:
        GraphError: if `tag` is no `OutputTag`, or if no single operator with side outputs makes the
            stream.
    """
    check_output_tag("get_side_output", tag)
    if len(outputs) != 1 or outputs[0].partitioning not in (None, Partitioning.FORWARD):
        raise GraphError(
            f"get_side_output({tag!r}) belongs right after the operator that emits to it, not "
            f"after a union, a key_by or another change of partitioning"
        )
    operator = outputs[0].operator
    if outputs[0].tag is not None or not operator.spec.side_outputs:
        what = "a side output" if outputs[0].tag is not None else f"a {operator.spec.name}"
        raise GraphError(
            f"get_side_output({tag!r}) was called on {operator.name!r}, which is {what} and has "
            f"no side outputs: call it on the result of process(...), of a window, or of a source "
            f"whose format has on_error='side_output'"
        )
    function = operator.function
    if isinstance(function, ColumnAggregation) and not function.has_side_outputs:
        raise GraphError(
            f"get_side_output({tag!r}) was called on {operator.name!r}, which has no side outputs: "
            f"its only one would be that of late rows, which side_output_late_data sets on windows"
        )
    operator.declare_side_output(tag.tag_id)
    return replace(outputs[0], tag=tag.tag_id)


def type_of(records: OperatorInput) -> TypeInformation:
    """Return the declared type of records, or `ANY_TYPE` if there is none or more than one."""
    outputs = ((output.operator.id, output.tag) for output in records.outputs)
    return _common_type(records.environment._graph, outputs)


def _common_type(graph: JobGraph, outputs: Iterable[tuple[int, str | None]]) -> TypeInformation:
    """Return the type of outputs, each an operator's id with the tag of a side output."""
    types = {_type_of_output(graph, *output) for output in outputs}
    return types.pop() if len(types) == 1 else ANY_TYPE


def _type_of_output(graph: JobGraph, id: int, tag: str | None) -> TypeInformation:
    if tag is not None:
        return ANY_TYPE
    operator = next(one for one in graph.operators if one.id == id)
    if operator.result_type is None and operator.spec.keeps_type:
        return _common_type(graph, ((edge.source, edge.tag) for edge in graph.inputs_of(id)))
    return operator.result_type or ANY_TYPE


# ---- adding an operator


def _add(
    spec: OperatorSpec,
    name: str,
    function: object,
    first: OperatorInput,
    second: OperatorInput | None = None,
    key_selector: KeySelectorLike | None = None,
) -> OperatorOutput:
    """Add an operator, connect it with its inputs, and return its output.

    Arguments:
        spec: the specification of the operator.
        name: the name that is shown to users.
        function: the user's function, or an operation that contains it.
        first: the records of its only or first input.
        second: the records of its second input, or None.
        key_selector: a key selector that an operator without keyed state calls.
    """
    if isinstance(function, Function):
        # The program may use the same function object for several operators. Each operator
        # therefore gets a copy.
        function = copy.copy(function)
        if first.key_selector is not None and type(function).open is not Function.open:
            # The function may get state in `open`, so it needs the keys of the records.
            spec = spec.with_keys or spec
    environment = first.environment
    selector = first.key_selector if spec.keyed else key_selector
    operator = environment._add_operator(spec, name, function, selector)
    environment._graph.connect(first.outputs, operator)
    if second is not None:
        operator.second_key_selector = second.key_selector if spec.keyed else None
        environment._graph.connect(second.outputs, operator, input=1)
    return OperatorOutput(operator)


def _are_keyed(first: OperatorInput, second: OperatorInput) -> bool:
    return first.key_selector is not None and second.key_selector is not None


def _no_key(record: object) -> None:
    """Return None, the key of all records of a stream without keys."""
    del record
