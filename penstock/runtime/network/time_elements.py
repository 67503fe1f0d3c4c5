"""Write watermarks and statuses as bytes, for logs and for queues on disk."""

from __future__ import annotations

import struct

from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import TimeElement, WatermarkStatus
from penstock.snapshot.storage.in_flight_log import STATUS, WATERMARK, LogMarker

_TIME = struct.Struct(">q")


def to_marker(element: TimeElement) -> LogMarker:
    """Return an element of event time as a part of a log."""
    if isinstance(element, Watermark):
        return LogMarker(WATERMARK, _TIME.pack(element.timestamp))
    return LogMarker(STATUS, bytes([element.idle]))


def to_time_element(kind: int, payload: bytes | memoryview) -> TimeElement:
    """Return the element that `to_marker` wrote."""
    if kind == WATERMARK:
        return Watermark(*_TIME.unpack(payload))
    return WatermarkStatus(payload[0] == 1)
