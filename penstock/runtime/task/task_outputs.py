"""Send the output of a task over all of its output channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.runtime.network.elements import Element
from penstock.runtime.network.output_channel import OutputChannel


class TaskOutputs:
    """Sends a task's output while there are credits, and measures how long output waits.

    Arguments:
        channels: the output channels of all links.
        clock: a function that returns the time in seconds.
        on_waited: a function that is called when all waiting output was sent, with the seconds for
            which it waited.
    """

    def __init__(
        self,
        channels: Sequence[OutputChannel],
        clock: Callable[[], float],
        on_waited: Callable[[float], None],
    ) -> None:
        self.channels = channels
        self._clock = clock
        self._on_waited = on_waited
        self._on_sent: Callable[[], None] | None = None
        self._blocked_since: float | None = None
        self._blocked_seconds = 0.0

    @property
    def blocked(self) -> bool:
        """Return whether some output waits for credits."""
        return self._blocked_since is not None

    @property
    def blocked_seconds(self) -> float:
        """Return the total time for which output has waited for credits, in seconds."""
        since = self._blocked_since
        return self._blocked_seconds + (0.0 if since is None else self._clock() - since)

    @property
    def has_partial(self) -> bool:
        """Return whether output buffers have records that are not in a batch yet."""
        return any(one.pending.records or one.gathered is not None for one in self.channels)

    def push(self) -> bool:
        """Send sealed elements while there are credits. Return False if some must wait."""
        clear = True
        for channel in self.channels:
            if channel.sealed and not channel.push():
                clear = False
        if clear:
            if self._blocked_since is not None:
                waited, self._blocked_since = self._clock() - self._blocked_since, None
                self._blocked_seconds += waited
                if waited > 0:
                    self._on_waited(waited)
            if self._on_sent is not None:
                on_sent, self._on_sent = self._on_sent, None
                on_sent()
        elif self._blocked_since is None:
            self._blocked_since = self._clock()
        return clear

    def send_full(self) -> None:
        """Send full batches."""
        for channel in self.channels:
            if len(channel.pending.records) >= channel.limit:
                channel.seal_full()
        self.push()

    def send_partial(self) -> int:
        """Send partial batches where the receivers take them, and return their number."""
        sent = 0
        for channel in self.channels:
            if (channel.pending.records or channel.gathered is not None) and (
                channel.takes_partial()
            ):
                channel.seal()
                sent += 1
        self.push()
        return sent

    def seal(self) -> None:
        """Make batches of all records in the output buffers."""
        for channel in self.channels:
            if channel.pending.records or channel.gathered is not None:
                channel.seal()

    def broadcast(self, element: Element, on_sent: Callable[[], None] | None = None) -> None:
        """Send a marker on all channels, behind all records that were emitted before.

        Arguments:
            element: the marker.
            on_sent: a function that is called when the marker was sent on all channels.
        """
        for channel in self.channels:
            channel.mark(element)
        if on_sent is not None:
            self._on_sent = on_sent
        self.push()
