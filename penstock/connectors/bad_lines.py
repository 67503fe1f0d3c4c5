"""Decide about the lines and rows of a file that cannot be read: fail, or skip and count them."""

from __future__ import annotations

import logging

from penstock.dataflow.errors import JobError
from penstock.dataflow.metrics import Counter

logger = logging.getLogger("penstock.connectors")


class BadLines:
    """Counts the bad lines of the splits that one reader reads, or raises the error of the first.

    The first bad line of each split is logged at once. At the end of the split, their number is.

    Arguments:
        format: the name of the class of the file format, for the error of a bad line.
        skip: whether bad lines are skipped.
        skipped: counts the lines that are skipped.
    """

    def __init__(self, format: str, skip: bool, skipped: Counter) -> None:
        self._format = format
        self.skip = skip
        self._skipped = skipped
        self._in_split = 0

    def add(self, error: JobError) -> None:
        """Count a bad line, or raise its error if bad lines are not skipped."""
        if not self.skip:
            error.message += f". {self._format}(on_error='skip') skips and counts such lines"
            raise error
        if not self._in_split:
            shown = "" if error.record is None else f": {error.record}"
            logger.warning("a line is skipped, as later bad lines are: %s%s", error.message, shown)
        self._skipped.inc()
        self._in_split += 1

    def end_split(self, name: str) -> None:
        """Log the number of lines that were skipped in a split, if there was more than one."""
        if self._in_split > 1:
            logger.warning("%d bad lines were skipped in %s", self._in_split, name)
        self._in_split = 0
