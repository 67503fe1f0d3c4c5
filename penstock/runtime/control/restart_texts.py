"""Turn events about restarts into text for `logging`, standard error and the job's log."""

from __future__ import annotations

import logging
from typing import Any

from penstock.runtime.control.failures import details_of, sentence_of

__all__ = ["LEVELS", "RestartTexts"]

#: The level at which each kind of event is logged.
LEVELS = {
    "restarting": logging.WARNING,
    "restarted": logging.INFO,
    "giving_up": logging.ERROR,
}


class RestartTexts:
    """Turns the events about the restarts of one job into text.

    The text contains all details of a failure, unless the previous failure was the same.
    """

    def __init__(self) -> None:
        self._last: str | None = None

    def text(self, event: dict[str, Any]) -> str | None:
        """Return the text of an event, or None if the event is not about a restart."""
        match event["event"]:
            case "restarting":
                return f"restarting in {event['delay_seconds']:g} s: {self._cause(event)}"
            case "restarted":
                where = "from the beginning"
                if event["snapshot"] is not None:
                    where = f"from snapshot {event['snapshot']}"
                then = f"; the next snapshot has the number {event['next_number']}"
                return f"restarted {where} after {event['seconds']:.2f} s" + then
            case "giving_up":
                return f"giving up: {event['reason']}"
        return None

    def _cause(self, event: dict[str, Any]) -> str:
        sentence, details = sentence_of(event), details_of(event)
        if sentence == self._last:
            return f"as before: {sentence}"
        self._last = sentence
        return "\n    ".join([sentence, *details.splitlines()])
