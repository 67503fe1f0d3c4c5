"""Define the streams of a program and the methods that transform them.

Start reading at `data_stream.py`, which defines the classes. The other modules have their methods.
"""

from __future__ import annotations

from penstock.dataflow.streams.connected_streams import BroadcastStream
from penstock.dataflow.streams.data_stream import (
    AllWindowedStream,
    BroadcastConnectedStream,
    CachedDataStream,
    ConnectedStreams,
    DataStream,
    IterativeStream,
    KeyedStream,
    WindowedStream,
)
from penstock.dataflow.streams.feedback_stream import FeedbackStream

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CachedDataStream",
    "ConnectedStreams",
    "DataStream",
    "FeedbackStream",
    "IterativeStream",
    "KeyedStream",
    "WindowedStream",
]
