"""Turn notes, restarts, losses and warnings into text for `logging` and the log."""

from __future__ import annotations

import logging
from typing import Any

from penstock.runtime.control.failures import details_of, sentence_of
from penstock.runtime.control.metric_texts import loss_texts

#: The level at which each kind of event is logged.
LEVELS = {
    "note": logging.WARNING,
    "restarting": logging.WARNING,
    "restarted": logging.INFO,
    "slots": logging.WARNING,
    "giving_up": logging.ERROR,
    "finished": logging.WARNING,
    "warning": logging.WARNING,
}


class WarningTexts:
    """Turns the notes, restarts, losses and warnings of one job into text.

    The text of a restart has all details of a failure, unless the previous failure was the same.
    """

    def __init__(self) -> None:
        self._last: str | None = None

    def texts(self, event: dict[str, Any]) -> list[str]:
        """Return the texts of an event: none for most events, several for a job with losses."""
        match event["event"]:
            case "note":
                return [f"note: {event['text']}"]
            case "restarting":
                what = f"restarting{_region(event)} in {event['delay_seconds']:g} s"
                return [f"{what}: {self._cause(event)}"]
            case "restarted":
                where = "from the beginning"
                if event["snapshot"] is not None:
                    where = f"from snapshot {event['snapshot']}"
                then = f"; the next snapshot has the number {event['next_number']}"
                what = f"restarted{_region(event)} {where}"
                return [f"{what} after {event['seconds']:.2f} s{then}"]
            case "slots":
                count = f"{event['slots']} of {event['wanted']} workers"
                return [f"the job continues with {count}: {event['reason']}"]
            case "giving_up":
                return [f"giving up: {event['reason']}"]
            case "warning":
                return [event["text"]]
            case "finished":
                return loss_texts(event["metrics"])
        return []

    def _cause(self, event: dict[str, Any]) -> str:
        sentence, details = sentence_of(event), details_of(event)
        if sentence == self._last:
            return f"as before: {sentence}"
        self._last = sentence
        return "\n    ".join([sentence, *details.splitlines()])


def _region(event: dict[str, Any]) -> str:
    """Return the region that restarts alone, as a part of a sentence."""
    return f" the region of {event['region']!r}" if "region" in event else ""
