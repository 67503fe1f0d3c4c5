"""Positions in the splits of sources, as snapshots contain them."""

from __future__ import annotations

from typing import Any

#: The keys of a position in a snapshot that also has the state of the split's watermarks.
_POSITION, _EVENT_TIME = "position", "penstock.event_time"


def join_position(position: Any, state: Any) -> Any:
    """Return a position for a snapshot that also has the state of the split's watermarks."""
    return {_POSITION: position, _EVENT_TIME: state}


def split_position(joined: Any) -> tuple[Any, Any]:
    """Return a position, and the state of the watermarks or None if the position has none."""
    if isinstance(joined, dict) and joined.keys() == {_POSITION, _EVENT_TIME}:
        return joined[_POSITION], joined[_EVENT_TIME]
    return joined, None
