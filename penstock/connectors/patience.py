"""Define `Patience`, which says how long to wait for a server that may come back."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from penstock.dataflow.errors import JobError
from penstock.dataflow.metrics import Counter

logger = logging.getLogger("penstock.connectors")

#: The number of times that a connection was lost or refused.
NUM_CONNECTION_ERRORS = "numConnectionErrors"
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0


class Reachable(Protocol):
    """A server that may be away, and knows what the errors of its client mean."""

    @property
    def place(self) -> str:
        """The address, for messages."""

    def is_passing(self, error: BaseException) -> bool:
        """Return whether an error may end by itself."""

    def explain(self, error: BaseException, what: str) -> JobError:
        """Return the error to raise if something could not be done."""


class Patience:
    """Computes how long to wait after errors of a server that may come back.

    Arguments:
        server: the server.
        seconds: how long to bear errors without success in between.
        counter: counts the errors.
    """

    def __init__(self, server: Reachable, seconds: float, counter: Counter | None = None) -> None:
        self._server, self._seconds, self._counter = server, seconds, counter
        self._since: float | None = None
        self._delay = 0.0

    def after(self, error: BaseException, what: str) -> float:
        """Return the time to wait before the next try, in seconds.

        Raises:
            JobError: if no other try can help, or there were errors for too long.
        """
        if not self._server.is_passing(error):
            raise self._server.explain(error, what) from error
        if self._counter is not None:
            self._counter.inc()
        now = time.monotonic()
        if self._since is None:
            self._since, self._delay = now, _FIRST_DELAY
            logger.warning(
                "cannot %s at %s: %s: trying again for %g s",
                *(what, self._server.place, _text(error), self._seconds),
            )
        elif now - self._since > self._seconds:
            raise self._server.explain(error, what) from error
        self._delay = min(_LONGEST_DELAY, self._delay * 2)
        return self._delay

    def succeeded(self) -> None:
        """Forget the errors, because the server has answered."""
        if self._since is not None:
            seconds = time.monotonic() - self._since
            logger.warning("%s answers again after %.1f s", self._server.place, seconds)
            self._since = None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
