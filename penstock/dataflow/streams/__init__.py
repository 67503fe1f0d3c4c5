"""Define the streams of a program and the methods that transform them.

Start reading at `data_stream.py`. If several streams share a group of methods, or if a group needs
no other class of streams, these methods are in a base class in a separate module.
"""

from __future__ import annotations

from penstock.dataflow.streams.data_stream import (
    DataStream,
    FeedbackStream,
    IterativeStream,
    KeyedStream,
)

__all__ = ["DataStream", "FeedbackStream", "IterativeStream", "KeyedStream"]
