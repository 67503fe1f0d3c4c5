"""When records arrived: a sink that keeps it, and the file that it leaves behind.

A record is a tuple whose second item says which one it is, and whose third is `time.monotonic_ns()`
when it was made: the clock is one for all processes of a machine.
"""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from typing import Any

from penstock import RuntimeContext, SinkFunction

__all__ = ["Arrivals", "read_arrivals"]


class Arrivals(SinkFunction):
    """Keeps which record it was, when it was made and when it arrived."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self, runtime_context: RuntimeContext) -> None:
        """Nothing has come yet."""
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.rows = array("q")

    def invoke(self, value: Any) -> None:
        """Take the time."""
        self.rows.extend((value[1], value[2], time.monotonic_ns()))

    def close(self) -> None:
        """Leave the file behind."""
        _path(self._place, self.subtask).write_bytes(self.rows.tobytes())


def read_arrivals(place: Path, subtask: int) -> tuple[array[int], array[int], array[int]]:
    """Of what came to a subtask of the sink: which, when made, when arrived (nanoseconds)."""
    flat = array("q")
    flat.frombytes(_path(place, subtask).read_bytes())
    return flat[::3], flat[1::3], flat[2::3]


def _path(place: Path, subtask: int) -> Path:
    return place / f"arrivals-{subtask}"
