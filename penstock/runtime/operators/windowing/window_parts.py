"""Turn windows into parts of composite keys, and back."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.windows import CountWindow, GlobalWindow, TimeWindow

__all__ = ["part_of", "window_of"]

#: The classes of windows that are stored without their class, by their number of items.
_CLASSES: dict[int, Any] = {0: GlobalWindow, 1: CountWindow, 2: TimeWindow}
_KNOWN = frozenset(_CLASSES.values())


def part_of(window: Any) -> Any:
    """Return the part of a composite key that names a window."""
    return tuple(window) if type(window) in _KNOWN else window


def window_of(part: Any) -> Any:
    """Return the window that a part of a composite key names."""
    return _CLASSES[len(part)]._make(part) if type(part) is tuple else part
