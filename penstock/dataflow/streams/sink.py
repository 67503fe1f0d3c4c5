"""Define `DataStreamSink`, a sink that was added to a stream."""

from __future__ import annotations

from penstock.dataflow.arguments.pyflink_names import SINK, PyFlinkNames
from penstock.dataflow.streams.operator_settings import OperatorSettings


class DataStreamSink(PyFlinkNames, OperatorSettings):
    """A sink that was added to a stream. Its methods set its name, uid and parallelism.

    (Flink: `DataStreamSink`.)

    Examples:
        >>> sink = env.from_collection([1, 2]).print()
        >>> _ = sink.name("numbers").uid("numbers").set_parallelism(1)
    """

    _missing = SINK
