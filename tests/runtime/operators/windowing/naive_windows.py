"""A second implementation of windows, which keeps all records and computes each result again.

It is written from the definitions of Flink's documentation, and not for speed: windows are lists of
records, and sessions are computed again from all records at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

NO_WATERMARK = -(2**63)

Span = tuple[int, int]
#: A window that fires: its key, its window, its records, and the time of its results.
Fired = tuple[Any, Span, list[Any], int]


@dataclass
class Kept:
    """A record that a window holds."""

    value: Any
    timestamp: int


@dataclass
class NaiveWindows:
    """Event-time windows with their default trigger.

    Arguments:
        assign: returns the windows of a timestamp, as pairs of start and end.
        merging: whether windows that touch each other are merged.
        lateness: the allowed lateness, in milliseconds.
    """

    assign: Callable[[Any, int], Iterable[Span]]
    merging: bool = False
    lateness: int = 0
    watermark: int = NO_WATERMARK
    windows: dict[Any, dict[Span, list[Kept]]] = field(default_factory=dict)
    late: list[Any] = field(default_factory=list)

    def add(self, key: Any, value: Any, timestamp: int) -> list[Fired]:
        """Add a record, and return the windows that fire for it at once."""
        if self.merging:
            return self._add_merging(key, value, timestamp)
        fired, taken = [], False
        for span in self.assign(value, timestamp):
            if span[1] - 1 + self.lateness <= self.watermark:
                continue
            taken = True
            records = self.windows.setdefault(key, {}).setdefault(span, [])
            records.append(Kept(value, timestamp))
            if span[1] - 1 <= self.watermark:
                fired.append((key, span, [kept.value for kept in records], timestamp))
        if not taken and timestamp + self.lateness <= self.watermark:
            self.late.append(value)
        return fired

    def _add_merging(self, key: Any, value: Any, timestamp: int) -> list[Any]:
        old = self.windows.get(key, {})
        (span,) = self.assign(value, timestamp)
        merged, records = span, [Kept(value, timestamp)]
        rest = dict(old)
        while touching := [s for s in rest if s[0] <= merged[1] and s[1] >= merged[0]]:
            for each in touching:
                records += rest.pop(each)
                merged = min(merged[0], each[0]), max(merged[1], each[1])
        if merged[1] - 1 + self.lateness <= self.watermark:
            if timestamp + self.lateness <= self.watermark:
                self.late.append(value)
            return []
        self.windows[key] = {**rest, merged: records}
        if merged[1] - 1 <= self.watermark:
            return [(key, merged, [kept.value for kept in records], timestamp)]
        return []

    def advance(self, watermark: int) -> list[Fired]:
        """Advance the watermark, and return the windows that fire."""
        fired = []
        for key, windows in self.windows.items():
            for span, records in list(windows.items()):
                if self.watermark < span[1] - 1 <= watermark:
                    fired.append((key, span, [kept.value for kept in records], span[1] - 1))
                if span[1] - 1 + self.lateness <= watermark:
                    del windows[span]
        self.watermark = max(self.watermark, watermark)
        return fired


def tumbling(size: int, offset: int = 0) -> Callable[[Any, int], Iterable[Span]]:
    """Return the assignment of tumbling windows."""
    return sliding(size, size, offset)


def sliding(size: int, slide: int, offset: int = 0) -> Callable[[Any, int], Iterable[Span]]:
    """Return the assignment of sliding windows, by trying all windows that are near."""

    def assign(value: Any, timestamp: int) -> Iterable[Span]:
        del value
        nearest = (timestamp - offset) // slide
        for number in range(nearest - size // slide - 2, nearest + 2):
            start = offset + number * slide
            if start <= timestamp < start + size:
                yield start, start + size

    return assign


def session(gap: Callable[[Any], int]) -> Callable[[Any, int], Iterable[Span]]:
    """Return the assignment of sessions with a gap that depends on the record."""
    return lambda value, timestamp: [(timestamp, timestamp + gap(value))]
