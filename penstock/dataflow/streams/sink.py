"""Define `DataStreamSink`, a sink that was added to a stream."""

from __future__ import annotations

from penstock.dataflow.arguments.pyflink_names import SINK, PyFlinkNames
from penstock.dataflow.streams.operator_settings import OperatorSettings

__all__ = ["DataStreamSink"]


class DataStreamSink(PyFlinkNames, OperatorSettings):
    """A sink that was added to a stream. Its methods set its name, uid and parallelism.

    (Flink: `DataStreamSink`.)
    """

    _missing = SINK
