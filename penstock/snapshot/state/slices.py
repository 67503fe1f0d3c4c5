"""Divides slow work into short slices, so that it does not block the event loop.

Slow work is a generator. It yields after each slice on the event loop, and the runtime processes
records between two slices. A step that blocks runs in a thread, off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar, cast

from penstock.dataflow.errors import ProtocolError

T = TypeVar("T")

#: A value that a generator of slow work yields: None after a slice on the event loop, or a callable
#: that blocks. The runtime runs the callable off the event loop. It then sends the result to the
#: generator, or throws the exception into it.
Step = Callable[[], object] | None
Work = Generator[Step, object, T]


def run_at_once(work: Work[T]) -> T:
    """Run slow work to its end in this thread, with its blocking steps; return its result."""
    try:
        step = next(work)
        while True:
            try:
                result = None if step is None else step()
            except Exception as error:
                step = work.throw(error)
            else:
                step = work.send(result)
    except StopIteration as end:
        return cast("T", end.value)


class SliceTimer:
    """Reports when a slice of work on the event loop should end.

    Arguments:
        clock: a function that returns a monotonic time in seconds.
        seconds: the longest duration of a slice.
        max_entries: the largest number of entries in a slice. It ends slices in tests whose clock
            does not advance.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, max_entries: int) -> None:
        self._clock = clock
        # A slice ends after the step that exceeds its time, so some time is left for that step.
        self._seconds = seconds * 0.85
        self._max_entries = max_entries
        self.restart()

    def restart(self) -> None:
        """Begin a new slice."""
        self._entries = 0
        self._begin = self._clock()

    def is_over(self, entries: int) -> bool:
        """Count further entries of the slice, and return whether the slice should end."""
        self._entries += entries
        if self._entries >= self._max_entries:
            return True
        return self._clock() - self._begin >= self._seconds


class Slicing:
    """Divides the slow work of one backend into slices, and steps off the event loop.

    Arguments:
        clock: a function that returns a monotonic time in seconds.
        seconds: the longest duration of a slice on the event loop.
        max_entries: the largest number of entries that a slice processes.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, max_entries: int) -> None:
        self.clock = clock
        self.max_entries = max_entries
        self._seconds = seconds
        self._offloading = False

    def timer(self) -> SliceTimer:
        """Return a timer whose first slice begins now."""
        return SliceTimer(self.clock, self._seconds, self.max_entries)

    def offload(self, work: Callable[[], T]) -> Work[T]:
        """Let the runtime run `work` off the event loop, and return the result of `work`.

        Raises:
            ProtocolError: if another generator of this backend is in a step off the event loop.
        """
        self.require_on_loop()
        self._offloading = True
        try:
            return cast("T", (yield work))
        finally:
            self._offloading = False

    def require_on_loop(self) -> None:
        """Raise `ProtocolError` if a generator of this backend is in a step off the event loop."""
        if self._offloading:
            raise ProtocolError("two generators of a state backend are driven at the same time")
