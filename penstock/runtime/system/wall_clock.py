"""The time of day, as the clock of the machine shows it."""

from __future__ import annotations

import time


def wall_clock_of_machine() -> int:
    """Return the time of the machine's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
