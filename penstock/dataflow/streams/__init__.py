"""Define the streams of a program and the methods that transform them.

Start reading at `data_stream.py`. If several streams share a group of methods, the group is a
base class in a separate module. The same applies if a group needs no other class of streams.
"""

from __future__ import annotations

from penstock.dataflow.streams.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
)
from penstock.dataflow.streams.data_stream import (
    DataStream,
    FeedbackStream,
    IterativeStream,
    KeyedStream,
)
from penstock.dataflow.streams.windowed_streams import AllWindowedStream, WindowedStream

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "ConnectedStreams",
    "DataStream",
    "FeedbackStream",
    "IterativeStream",
    "KeyedStream",
    "WindowedStream",
]
