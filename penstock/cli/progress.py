"""Shows a running job: a live view on a terminal, plain lines otherwise.

Both are made of the events that the JobManager reports, and both go to standard error, since
standard output belongs to the job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.cli.event_lines import EventLines
from penstock.cli.live_view import LiveView
from penstock.cli.options import print_message

__all__ = ["Progress"]


class Progress:
    """Shows one job after the other, in the chosen way.

    Arguments:
        mode: "auto", "live", "plain" or "none".
        resuming: whether the user asked to resume.
    """

    def __init__(self, mode: str = "auto", resuming: bool = False) -> None:
        self._mode = mode
        self._resuming = resuming
        self._show: Callable[[dict[str, Any]], None] = _ignore
        #: Number of the last snapshot that a job completed or was resumed from.
        self.last_snapshot: int | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Show an event."""
        if event["event"] in ("snapshot", "resumed"):
            self.last_snapshot = event["number"]
        self._show(event)

    @contextmanager
    def showing(self, printing: bool) -> Iterator[None]:
        """Show a job in this block.

        Arguments:
            printing: whether the job writes to the terminal, which would destroy a live view.
        """
        self.last_snapshot = None
        mode = self._mode
        if mode == "auto":
            disturbed = printing and sys.stdout.isatty()
            mode = "live" if sys.stderr.isatty() and not disturbed else "plain"
        try:
            if mode == "live":
                with LiveView(self._resuming) as self._show:
                    yield
            else:
                plain = EventLines(print_message, self._resuming)
                self._show = _ignore if mode == "none" else plain
                yield
        finally:
            self._show = _ignore


def _ignore(_: dict[str, Any]) -> None:
    pass
