"""The requests of an operator, as its task sees them.

An operator that emits records later than it has received their inputs, such as `AsyncWaitOperator`,
has requests in flight. They are like a longer input channel: elements without records wait behind
them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from penstock.runtime.network.elements import EndOfInput, LoopElement, TimeElement
from penstock.runtime.serialization.record_batch import RecordBatch


@dataclass(frozen=True)
class Held:
    """An element of an input channel that waits for the requests before it."""

    channel: Hashable
    element: TimeElement | LoopElement | EndOfInput


class OperatorRequests(Protocol):
    """The requests of an operator, which must be the first one of its chain."""

    @property
    def room(self) -> int:
        """Return the number of records that the operator takes now."""

    @property
    def ready(self) -> bool:
        """Return whether `next_output` has something to do."""

    @property
    def holds(self) -> bool:
        """Return whether an element that comes now must wait for requests before it."""

    def hold(self, channel: Hashable, element: TimeElement | LoopElement | EndOfInput) -> None:
        """Let an element of a channel wait for the requests before it."""

    def next_output(self) -> RecordBatch | Held:
        """Return the next results, or a held element whose turn it is."""

    def log_results(self, log: Callable[[list[int], bytes], None]) -> None:
        """Call `log` with the places of requests that leave, and their results."""

    def begin_repetition(self) -> None:
        """Begin no calls: the results come from a log."""

    def repeat_results(self, places: list[int], results: bytes) -> RecordBatch:
        """Let the requests at some places leave, and return their logged results."""

    def end_repetition(self, now: int) -> None:
        """Begin calls for the requests whose results were not in the log.

        Arguments:
            now: the time of day, in milliseconds since the epoch. That of the last repeated step is
                before the failure, so it would be too early for the time limits of the calls.
        """

    def expect_barrier(self, number: int) -> None:
        """Take records without a limit until the barrier of a snapshot has arrived."""

    def snapshot_over(self, number: int) -> None:
        """Note that the barrier of a snapshot has arrived, or will not come."""
