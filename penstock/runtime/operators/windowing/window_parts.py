"""Turn windows into parts of composite keys, and back."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.windows import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    GlobalWindow,
    GlobalWindows,
    MergingWindowAssigner,
    TimeWindow,
    WindowAssigner,
)

#: The classes of windows that are stored without their class, by their number of items.
_CLASSES: dict[int, Any] = {0: GlobalWindow, 1: CountWindow, 2: TimeWindow}
_KNOWN = frozenset(_CLASSES.values())


def part_of(window: Any) -> Any:
    """Return the part of a composite key that names a window."""
    return tuple(window) if type(window) in _KNOWN else window


def window_of(part: Any) -> Any:
    """Return the window that a part of a composite key names."""
    return _CLASSES[len(part)]._make(part) if type(part) is tuple else part


def time_of_windows(assigner: WindowAssigner) -> str:
    """Return by which time windows end, as a part of the name of their state."""
    return "event time" if assigner.is_event_time() else "processing time"


def sort_of_windows(assigner: WindowAssigner) -> str:
    """Return which sort of windows an assigner makes, as a part of the name of their state.

    Windows of one sort may change their sizes: an open window ends when it would have ended before.
    A window of another sort would never end.
    """
    if isinstance(assigner, GlobalWindows):
        return "global"
    if isinstance(assigner, CountTumblingWindowAssigner | CountSlidingWindowAssigner):
        return f"count {assigner!r}"
    merging = "merging, " if isinstance(assigner, MergingWindowAssigner) else ""
    return merging + time_of_windows(assigner)
