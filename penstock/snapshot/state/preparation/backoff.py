"""Exponential backoff for speculative work."""

from __future__ import annotations

__all__ = ["Backoff"]

#: The most turns that are skipped in a row.
MAX_SKIPPED = 16


class Backoff:
    """After each useless attempt, skips 1, 2, 4, … turns."""

    def __init__(self) -> None:
        #: How many of the next turns are skipped.
        self._left = 0
        self._skip = 0

    @property
    def is_skipping(self) -> bool:
        """Whether the next turn is skipped."""
        return self._left > 0

    def skip(self) -> bool:
        """Count a turn, and return whether it is skipped."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def judge(self, *, useless: bool) -> None:
        """Note whether the attempt of a turn was useless."""
        self._skip = min(MAX_SKIPPED, self._skip * 2 or 1) if useless else 0
        self._left = self._skip
