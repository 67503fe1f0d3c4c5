"""Define the base classes of user functions, with the names of PyFlink.

Most methods of the API take a plain function or lambda as well as an object of one of these
classes. Such an object is called a *rich function*: it has the methods `open` and `close`, and can
have attributes.
"""

from __future__ import annotations

from penstock.dataflow.functions.basic_functions import (
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ReduceFunction,
    SinkFunction,
)
from penstock.dataflow.functions.function import Function, check_function, method_of
from penstock.dataflow.functions.process_functions import (
    KeyedProcessFunction,
    ProcessFunction,
    has_end_input,
)
from penstock.dataflow.state import RuntimeContext

__all__ = [
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedProcessFunction",
    "MapFunction",
    "Partitioner",
    "ProcessFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "check_function",
    "has_end_input",
    "method_of",
]
