"""Define the streams of a program: one class for each kind of stream, in a module of its name.

Start reading at `data_stream.py`. The methods of all classes add operators to the job graph with
the functions of `building.py`.
"""

from __future__ import annotations

from penstock.dataflow.streams.broadcast_stream import BroadcastConnectedStream, BroadcastStream
from penstock.dataflow.streams.connected_streams import ConnectedStreams
from penstock.dataflow.streams.data_stream import CachedDataStream, DataStream
from penstock.dataflow.streams.feedback import FeedbackStream, IterativeStream
from penstock.dataflow.streams.keyed_stream import KeyedStream
from penstock.dataflow.streams.windowed_stream import AllWindowedStream, WindowedStream

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
