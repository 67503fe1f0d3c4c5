"""Show a running job on standard error, as a live view or as lines of text.

By default, a terminal gets the live view, and a file or a pipe gets lines. Both show the events
that the JobManager reports. Standard output is not used, since the job may write to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.cli.event_lines import EventLines
from penstock.cli.live_view import LiveView
from penstock.cli.options import print_message


class Progress:
    """Shows the running jobs of a job file, one after the other.

    Arguments:
        mode: the value of `--progress`: "auto", "live", "plain" or "none".
        resuming: whether the user gave `--resume`.
    """

    def __init__(self, mode: str = "auto", resuming: bool = False) -> None:
        self._mode = mode
        self._resuming = resuming
        self._show: Callable[[dict[str, Any]], None] = _ignore
        #: The number of the newest snapshot that the job has completed or was restored from. None
        #: if there is no such snapshot.
        self.last_snapshot: int | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Show an event of the job, and record the number of its snapshot."""
        if event["event"] in ("snapshot", "resumed"):
            self.last_snapshot = event["number"]
        self._show(event)

    @contextmanager
    def showing(self, printing: bool) -> Iterator[None]:
        """Show the events of one job while the block runs.

        Arguments:
            printing: whether the job prints records. In mode "auto", the live view is not used if
                they would appear on the same terminal.
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
