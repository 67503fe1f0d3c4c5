"""Count what a collector does not take, and report it: `ExportFailures`."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)


class ExportFailures:
    """Counts exports that have failed, and logs when they begin and end. Threads may share it.

    Arguments:
        collector: the name of the collector, for people.
    """

    def __init__(self, collector: str) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._failing = False
        #: The number of exports that have failed.
        self.count = 0

    def failed(self, reason: str) -> None:
        """Count a failure. Only the first one in a row is logged."""
        with self._lock:
            self.count += 1
            first, self._failing = not self._failing, True
        if first:
            logger.warning(
                "%s takes no data: %s. Jobs go on; what cannot be sent is dropped (%d so far)",
                *(self._collector, reason, self.count),
            )

    def succeeded(self) -> None:
        """Note a success, which is logged after failures."""
        with self._lock:
            again, self._failing = self._failing, False
        if again:
            logger.warning(
                "%s takes data again, after %d exports have failed", self._collector, self.count
            )
