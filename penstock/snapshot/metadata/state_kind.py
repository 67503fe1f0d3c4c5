"""Define the kinds of keyed state. A handle has the kind of each of its states."""

from __future__ import annotations

from enum import Enum


class StateKind(Enum):
    """The kind of a named state. The values are written to disk, so never change them.

    WINDOW holds the contents of windows. The kinds after it are states of window functions and
    triggers, which belong to a key and a window.
    """

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    TIMER = "timer"
    WINDOW = "window"
    WINDOW_VALUE = "window value"
    WINDOW_LIST = "window list"
    WINDOW_MAP = "window map"
    WINDOW_REDUCING = "window reducing"
    WINDOW_AGGREGATING = "window aggregating"

    @property
    def is_composite(self) -> bool:
        """Whether a key may have many entries, each with a composite key."""
        return self not in _SINGLE

    @property
    def is_list(self) -> bool:
        """Whether the state is a list. An entry whose last part is None has its bounds."""
        return self in (StateKind.LIST, StateKind.WINDOW_LIST)

    def of_windows(self) -> StateKind:
        """Return the kind of a state of this kind that belongs to a key and a window."""
        return StateKind(f"window {self.value}")


#: The kinds of states that have at most one entry for each key.
_SINGLE = frozenset({StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING})
