"""Build the program of a harness: its inputs, the tested function or piece, and captures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
    TwoInputProcessFunction,
)
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.operators import specs
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import ListEnumerator, ReaderContext, Source, SourceReader
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.streams.data_stream import DataStream
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.control.record_class_search import record_classes
from penstock.testing.harness.captured_output import Capture

#: The method of a stream that adds an operator for a function of each class.
_METHODS: tuple[tuple[type, str], ...] = (
    (ReduceFunction, "reduce"),
    (FlatMapFunction, "flat_map"),
    (MapFunction, "map"),
    (FilterFunction, "filter"),
    (SinkFunction, "add_sink"),
    (ProcessFunction, "process"),
    (KeyedProcessFunction, "process"),
    (CoMapFunction, "map"),
    (CoFlatMapFunction, "flat_map"),
    (TwoInputProcessFunction, "process"),
)
_TWO_INPUTS = (CoMapFunction, CoFlatMapFunction, TwoInputProcessFunction)
_BROADCAST = (BroadcastProcessFunction, KeyedBroadcastProcessFunction)


class HarnessInput(Source):
    """A source without splits: the test passes records to its task.

    Arguments:
        number: the number of the input, 0 or 1.
    """

    bounded = True

    def __init__(self, number: int) -> None:
        self.number = number

    def create_enumerator(self, parallelism: int) -> ListEnumerator:
        """Return an enumerator without splits. The harness never calls it."""
        del parallelism
        return ListEnumerator()

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that is never opened."""
        del context
        return _NoReader()


class _NoReader(SourceReader):
    def open(self, split: Any, position: Any) -> None:
        raise AssertionError(f"the input of a harness has no split {split} at {position}")

    def read(self, max_records: int) -> Any:
        raise AssertionError(f"the input of a harness has no {max_records} records")


@dataclass(frozen=True)
class HarnessSettings:
    """The arguments of a harness except the function; see `OperatorHarness`."""

    key_selector: Any = None
    second_key_selector: Any = None
    broadcast_states: Sequence[MapStateDescriptor] = ()
    side_outputs: Sequence[OutputTag] = ()
    parallelism: int = 1
    max_parallelism: int = 128
    types: Sequence[type] = ()


def build_code(function: Any, settings: HarnessSettings) -> JobCode:
    """Return the code of a program that runs a function or piece between inputs and captures.

    Raises:
        GraphError: if `function` is neither a function object nor a callable that takes one or two
            streams, or if the program cannot be built from it.
    """
    environment = StreamExecutionEnvironment()
    environment.set_parallelism(settings.parallelism)
    environment.set_max_parallelism(settings.max_parallelism)
    environment.register_type(*settings.types)
    streams = _inputs(environment, function, settings)
    if isinstance(function, Function):
        # With this uid, another version of the function finds its state in a snapshot.
        made = _add(function, streams, settings).uid("harness-function")
    else:
        made = function(*streams)
    _capture(made, settings.side_outputs)
    graph, config = environment._graph_of(environment._executions.pending()), environment.config
    types = record_classes(graph, list(settings.types))
    return compiled(JobCode(graph, config, types=types))


def compiled(code: JobCode, parallelism: int | None = None) -> JobCode:
    """Return the code with its execution graph, at another parallelism if it is given.

    Raises:
        GraphError: if the program has a loop or asynchronous requests, or cannot be compiled.
    """
    if parallelism is not None:
        code = replace(code, config=replace(code.config, parallelism=parallelism))
    plan = compile_graph(code.graph, code.config)
    requests = any(info.spec.name == specs.ASYNC_WAIT.name for info in plan.operators)
    if plan.loops or requests:
        raise GraphError(
            f"a harness cannot run {'asynchronous requests' if requests else 'loops'}: run the "
            f"program as a job with execute_and_collect(in_process=True), and a TestSource as its "
            f"input"
        )
    return replace(code, plan=plan)


def _inputs(
    environment: StreamExecutionEnvironment, function: Any, settings: HarnessSettings
) -> list[Any]:
    """Return the streams that the function or piece reads; keyed if there is a key selector."""
    selectors = [settings.key_selector]
    if _reads_two_streams(function):
        second = settings.second_key_selector
        keyed = settings.key_selector is not None and not isinstance(function, _BROADCAST)
        selectors.append(settings.key_selector if second is None and keyed else second)
    streams: list[Any] = []
    for number, selector in enumerate(selectors):
        name = f"Input {number + 1}"
        stream = environment.from_source(HarnessInput(number), source_name=name)
        stream.uid(f"harness-input-{number + 1}")
        streams.append(stream if selector is None else stream.key_by(selector))
    return streams


def _reads_two_streams(function: Any) -> bool:
    if isinstance(function, Function):
        return isinstance(function, _TWO_INPUTS)
    if not callable(function) or isinstance(function, type):
        raise GraphError(
            f"a harness takes a function object, such as a KeyedProcessFunction, or a callable "
            f"that takes a stream and returns one, such as lambda stream: stream.map(f), and got "
            f"{function!r}"
        )
    parameters = inspect.signature(function).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind in _POSITIONAL]
    if len(needed) not in (1, 2):
        raise GraphError(
            f"a piece of a program takes one stream or two, and {function!r} takes {len(needed)} "
            f"arguments: write lambda stream: ... or lambda first, second: ..."
        )
    return len(needed) == 2


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _add(function: Function, streams: list[Any], settings: HarnessSettings) -> Any:
    """Add the operator of a function object."""
    method = next((name for kind, name in _METHODS if isinstance(function, kind)), None)
    if method is None:
        raise GraphError(
            f"a harness cannot see where a {type(function).__name__} belongs: pass a piece of a "
            f"program, such as lambda stream: stream.window(...).aggregate(function)"
        )
    if settings.key_selector is None and isinstance(
        function, ReduceFunction | KeyedProcessFunction
    ):
        raise GraphError(
            f"a {type(function).__name__} runs on a keyed stream: give the harness a key_selector"
        )
    if len(streams) == 1:
        return getattr(streams[0], method)(function)
    first, second = streams
    if isinstance(function, _BROADCAST):
        second = second.broadcast(*_declared(function, settings))
    connected: Callable[[Any], Any] = getattr(first.connect(second), method)
    return connected(function)


def _declared(function: Function, settings: HarnessSettings) -> Sequence[MapStateDescriptor]:
    if not settings.broadcast_states:
        raise GraphError(
            f"a {type(function).__name__} reads a broadcast stream: give the harness "
            f"broadcast_states=[MapStateDescriptor(...)]"
        )
    return settings.broadcast_states


def _capture(made: Any, tags: Sequence[OutputTag]) -> None:
    """Add the captures of the main output and of the side outputs."""
    if not isinstance(made, DataStream):
        return  # a sink
    for tag in tags:
        _add_capture(made.get_side_output(tag), Capture(tag.tag_id))
    _add_capture(made.union(), Capture())


def _add_capture(stream: Any, capture: Capture) -> None:
    # One subtask keeps all records in the order in which they were emitted.
    stream.process(capture).name("Capture").set_parallelism(1)
