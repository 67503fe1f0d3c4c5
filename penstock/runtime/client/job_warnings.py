"""Reports notes, restarts and losses of a job in the process of its program.

The text of a report goes to `logging`. It is also printed on standard error, unless `logging` or
the progress of the command line shows it there already. The log of a submitted job contains the
same text.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from penstock.runtime.control.warning_texts import LEVELS, WarningTexts

logger = logging.getLogger("penstock.jobmanager")
# Without this handler, `logging` would print warnings if the program has not configured `logging`.
logger.addHandler(logging.NullHandler())


class JobWarnings:
    """Reports notes, warnings, restarts and losses of one job.

    They go to `logging`, and if needed to standard error.

    Arguments:
        shown: whether the progress callback shows them.
    """

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._texts = WarningTexts()

    def handle(self, event: dict[str, Any]) -> None:
        """Report a note, a warning, a restart, or the end of a job with losses."""
        for text in self._texts.texts(event):
            self._report(LEVELS[event["event"]], text)

    def _report(self, level: int, text: str) -> None:
        logger.log(level, "%s", text)
        if not self._shown and not logging_shows(level):
            print(text, file=sys.stderr, flush=True)


def logging_shows(level: int = logging.WARNING) -> bool:
    """Return whether `logging` shows messages of this level on the terminal.

    It does if a handler writes them to standard error or standard output.
    """
    if not logger.isEnabledFor(level):
        return False
    found: logging.Logger | None = logger
    while found is not None:
        for handler in found.handlers:
            stream = getattr(handler, "stream", None)
            terminal = stream is not None and stream in (sys.stderr, sys.stdout)
            if terminal and level >= handler.level:
                return True
        found = found.parent if found.propagate else None
    return False
