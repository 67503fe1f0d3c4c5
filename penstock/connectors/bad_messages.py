"""Decide about messages, lines and rows that cannot be decoded: `on_error` of a format.

* "fail" fails the job. The error names the place and shows the message.
* "skip" leaves the message out, counts it, and logs the first one of each split.
* "side_output" emits a `BadMessage` to the side output `BAD_MESSAGES` of the source.

All sources use this module: files for their lines and rows, and sources of messages through
`penstock.connectors.formats`.

`docs/inside/decisions/051-side-outputs-of-sources.md` has the reasons and the figures.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.metrics import Counter
from penstock.dataflow.output_tag import OutputTag, SideOutput

logger = logging.getLogger("penstock.connectors")

ON_ERROR = ("fail", "skip", "side_output")
#: The number of bytes of a bad message that errors and logs show.
_SHOWN = 200


@dataclass(frozen=True)
class BadMessage:
    """A message that could not be decoded, as the side output `BAD_MESSAGES` of a source has it.

    Arguments:
        message: the bytes of the message, of the line or of the row.
        reason: why it could not be decoded.
        place: where it was, such as the file and the line, or the topic, partition and offset.

    Examples:
        >>> _ = Path("numbers.jsonl").write_text("1\\nnone\\n")
        >>> format = JsonLines(on_error="side_output")
        >>> numbers = env.from_source(FileSource("numbers.jsonl", format))
        >>> bad = numbers.get_side_output(BAD_MESSAGES)
        >>> [one.message for one in bad.execute_and_collect()]
        [b'none']
    """

    message: bytes
    reason: str
    place: str


#: The tag of the side output for messages that a source could not decode.
BAD_MESSAGES: OutputTag[BadMessage]


@cache
def bad_messages_tag() -> OutputTag[BadMessage]:
    """Return the tag `BAD_MESSAGES`.

    It is made when it is first used. As long as a process has no tag, its operators need not look
    for records with tags.
    """
    return OutputTag("bad-messages", BadMessage)


def __getattr__(name: str) -> OutputTag[BadMessage]:
    if name == "BAD_MESSAGES":
        return bad_messages_tag()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_on_error(what: str, on_error: object) -> None:
    """Check the argument `on_error` of a format.

    Arguments:
        what: the kind of the format, for the error message.
        on_error: the argument.

    Raises:
        GraphError: if it has no known value.
    """
    if on_error not in ON_ERROR:
        raise GraphError(f'on_error of {what} is "fail", "skip" or "side_output", not {on_error!r}')


def side_output_tags(on_error: str) -> tuple[OutputTag[BadMessage], ...]:
    """Return the tags of the side outputs of a source whose format has this `on_error`."""
    return (bad_messages_tag(),) if on_error == "side_output" else ()


class Misfit(NamedTuple):
    """Describes a message that could not be decoded.

    Arguments:
        place: where it was.
        reason: why it could not be decoded.
        message: its bytes.
        shown: the text that errors and logs show; None shows nothing, for example if the reader no
            longer has the message.
    """

    place: str
    reason: str
    message: bytes
    shown: str | None


def shown_bytes(message: bytes) -> str:
    """Return a short text that shows a message."""
    if len(message) <= _SHOWN:
        return repr(message)
    return f"{message[:_SHOWN]!r} … ({len(message)} bytes)"


class BadMessages:
    """Handles the bad messages of the splits that one reader reads.

    Arguments:
        format: the name of the class of the format, for the error of a bad message.
        on_error: "fail", "skip" or "side_output".
        skipped: counts the messages that are skipped.
        unit: what a message is called, such as "line".
    """

    def __init__(self, format: str, on_error: str, skipped: Counter, unit: str = "message") -> None:
        self._format = format
        self._on_error = on_error
        #: Whether reading goes on behind a bad message.
        self.goes_on = on_error != "fail"
        #: Whether the bytes of bad messages are needed.
        self.needs_bytes = on_error == "side_output"
        self._skipped = skipped
        self._unit = unit
        self._in_split = 0
        self._side_output: list[SideOutput] = []

    def add(self, misfit: Misfit) -> None:
        """Handle a bad message.

        Raises:
            JobError: if bad messages fail the job.
        """
        text = f"{misfit.place}: {misfit.reason}"
        if self._on_error == "side_output":
            bad = BadMessage(misfit.message, misfit.reason, misfit.place)
            self._side_output.append((bad_messages_tag(), bad))
            return
        if self._on_error == "fail":
            raise JobError(
                f"{text}. {self._format}(on_error='skip') skips and counts such {self._unit}s, "
                f"and on_error='side_output' emits them to a side output",
                record=misfit.shown,
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        if not self._in_split:
            shown = "" if misfit.shown is None else f": {misfit.shown}"
            logger.warning(
                "a %s is skipped, as later bad %ss are: %s%s", self._unit, self._unit, text, shown
            )
        self._skipped.inc()
        self._in_split += 1

    def take_side_output(self) -> list[SideOutput]:
        """Remove and return the bad messages for the side output, with its tag."""
        taken, self._side_output = self._side_output, []
        return taken

    def end_split(self, name: str) -> None:
        """Log the number of messages that were skipped in a split, if there was more than one."""
        if self._in_split > 1:
            logger.warning("%d bad %ss were skipped in %s", self._in_split, self._unit, name)
        self._in_split = 0
