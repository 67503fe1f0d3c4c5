"""Define the kinds of keyed state, which a handle lists for its states."""

from __future__ import annotations

from enum import Enum

__all__ = ["COMPOSITE_KINDS", "StateKind"]


class StateKind(Enum):
    """The kind of a named state. The values are written to disk, so never change them."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    WINDOW = "window"
    TIMER = "timer"

    @property
    def is_composite(self) -> bool:
        """Whether a key may have many entries, each with a composite key."""
        return self in COMPOSITE_KINDS


#: The kinds of states that are stored in composite tables.
COMPOSITE_KINDS = frozenset({StateKind.LIST, StateKind.MAP, StateKind.WINDOW, StateKind.TIMER})
