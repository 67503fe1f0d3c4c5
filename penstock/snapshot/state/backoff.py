"""Exponential backoff for speculative work, such as eager flushes."""

from __future__ import annotations

#: The largest number of turns that are skipped in a row.
MAX_SKIPPED = 16


class Backoff:
    """Decides which turns of some speculative work are skipped.

    After each useless attempt, the number of skipped turns doubles: 1, 2, 4, … up to `MAX_SKIPPED`.
    After a useful attempt, no turn is skipped.
    """

    def __init__(self) -> None:
        #: The number of turns that are still to be skipped.
        self._left = 0
        self._skip = 0

    @property
    def is_skipping(self) -> bool:
        """Whether the next turn is skipped."""
        return self._left > 0

    def skip(self) -> bool:
        """Begin a turn, and return whether it is skipped."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def judge(self, *, useless: bool) -> None:
        """Record whether the last attempt was useless."""
        self._skip = min(MAX_SKIPPED, self._skip * 2 or 1) if useless else 0
        self._left = self._skip
