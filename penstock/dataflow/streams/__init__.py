"""Define the streams of a program and the methods that transform them.

Start reading at `data_stream.py`. Groups of methods that several streams share, or that need no
other class of streams, are base classes in modules of their own.
"""

from __future__ import annotations

from penstock.dataflow.streams.data_stream import (
    DataStream,
    FeedbackStream,
    IterativeStream,
    KeyedStream,
)

__all__ = ["DataStream", "FeedbackStream", "IterativeStream", "KeyedStream"]
