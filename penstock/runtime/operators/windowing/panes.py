"""Compute panes: the pieces of event time that no border of a window divides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd


@dataclass(frozen=True)
class Panes:
    """The windows of an assigner, and the panes that they consist of.

    All times are milliseconds. Windows and panes are named by their start.

    Arguments:
        size: the length of a window, which is at least `slide`.
        slide: the time between the starts of two windows.
        offset: the start of some window.
    """

    size: int
    slide: int
    offset: int

    @cached_property
    def length(self) -> int:
        """The length of a pane."""
        return gcd(self.size, self.slide)

    def pane_at(self, time: int) -> int:
        """Return the pane that contains a time."""
        return time - (time - self.offset) % self.length

    def last_window_at(self, time: int) -> int:
        """Return the last window that contains a time."""
        return time - (time - self.offset) % self.slide

    def windows_at(self, time: int) -> range:
        """Return the windows that contain a time, the last one first."""
        return range(self.last_window_at(time), time - self.size, -self.slide)

    def first_window_of(self, pane: int, after: int) -> int | None:
        """Return the first window that contains a pane and ends after a time, or None.

        Arguments:
            pane: the pane.
            after: the window must contain a time after this one.
        """
        earliest = max(pane + self.length, after + 2) - self.size
        window = earliest + (self.offset - earliest) % self.slide
        return window if window <= pane else None

    def panes_of(self, window: int) -> range:
        """Return the panes of a window."""
        return range(window, window + self.size, self.length)

    def border_in(self, window: int) -> int:
        """Return the border between blocks of the size of a window that a window contains.

        It is after the start of the window, and at or before its end.
        """
        return window + self.size - (window - self.offset) % self.size

    def panes_leaving(self, window: int) -> range:
        """Return the panes of a window that do not belong to the next window."""
        return range(window, window + self.slide, self.length)

    def panes_entering(self, window: int) -> range:
        """Return the panes of a window that do not belong to the window before it."""
        return range(window + self.size - self.slide, window + self.size, self.length)

    def panes_staying(self, window: int) -> range:
        """Return the panes of a window that also belong to the next window."""
        return range(window + self.slide, window + self.size, self.length)
