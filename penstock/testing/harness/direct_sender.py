"""Deliver the elements that a task of a harness sends to a task in another slot."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runtime.network.elements import Element, EncodedBatch
from penstock.runtime.network.input_channel import InputChannel

__all__ = ["DirectSender"]


class DirectSender:
    """A `Sender` that puts each element into the input channel at once.

    Arguments:
        channel: the input channel.
        credits: the number of batches that may be in the channel.
    """

    def __init__(self, channel: InputChannel, credits: int) -> None:
        self._channel = channel
        self.credits = credits
        channel.attach_sender(self._return_credit)

    @property
    def desired_records(self) -> int:
        """Return the number of records that the receiver wants in a batch."""
        return self._channel.desired_records

    @property
    def takes_partial(self) -> bool:
        """Return whether the channel has no batches."""
        return self._channel.room >= self._channel.capacity

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Do nothing: the sender asks the channel itself."""

    def send_batch(self, payload: bytes, count: int) -> None:
        """Put an encoded batch of `count` records into the channel."""
        self.credits -= 1
        self._channel.put(EncodedBatch(payload, count))

    def send_marker(self, element: Element) -> None:
        """Put a marker, such as a barrier, into the channel."""
        self._channel.put(element)

    def _return_credit(self) -> None:
        self.credits += 1
