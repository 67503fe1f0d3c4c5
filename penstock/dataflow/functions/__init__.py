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
    KeySelectorLike,
    MapFunction,
    Partitioner,
    ReduceFunction,
    SinkFunction,
)
from penstock.dataflow.functions.broadcast_functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from penstock.dataflow.functions.co_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    TwoInputProcessFunction,
)
from penstock.dataflow.functions.function import (
    Function,
    check_function,
    check_methods,
    method_of,
)
from penstock.dataflow.functions.hooks import has_end_input, has_on_timer
from penstock.dataflow.functions.join_functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    ProcessJoinFunction,
)
from penstock.dataflow.functions.process_functions import KeyedProcessFunction, ProcessFunction
from penstock.dataflow.functions.versioned_keys import VersionedKeySelector, key_versions
from penstock.dataflow.state import RuntimeContext

__all__ = [
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "JoinFunction",
    "KeySelector",
    "KeySelectorLike",
    "VersionedKeySelector",
    "key_versions",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "MapFunction",
    "Partitioner",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "TwoInputProcessFunction",
    "check_function",
    "check_methods",
    "has_end_input",
    "has_on_timer",
    "method_of",
]
