"""The input gate of a task: takes from whichever unblocked channel has an element.

Channels that have something take turns, one element each, so that none starves. A blocked
channel keeps what it has; it is not looked at until it is unblocked.

Back-edges go first, since what is in a loop should leave it before more comes in, but by weight
and not strictly: `BACK_WEIGHT` elements of theirs for one of a regular channel. While a barrier
waits here they alternate one by one, so that a loop that never idles cannot starve a snapshot.
After a restore the logs of the snapshot are replayed before anything else is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.dataflow.graph.compile import ChannelId
from penstock.runtime.network.elements import Batch, Element
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.task.batch_sizing import BatchSizer

if TYPE_CHECKING:
    from penstock.runtime.network.feedback_channel import FeedbackChannel
    from penstock.runtime.network.recorded_channel import RecordedChannel

__all__ = ["InputGate"]

#: At 8 a source filled its loop faster than the loop emptied, and logs held most of its records.
BACK_WEIGHT = 64


class InputGate:
    """All input channels of one task.

    Arguments:
        wake: called when there may be something to take after there was nothing.
        clock: seconds, for the channels' statistics.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self.channels: dict[ChannelId, InputChannel] = {}
        #: Those of them that are back-edges, and those that can be logged.
        self.back_edges: dict[ChannelId, FeedbackChannel] = {}
        self.logged: dict[ChannelId, RecordedChannel] = {}
        #: Those that are no back-edges: their senders wait for room.
        self.bounded: list[InputChannel] = []
        #: Barriers that wait in channels.
        self.barriers = 0
        self._wake = wake
        self._clock = clock
        #: Unblocked channels that have an element; each is here at most once.
        self._ready: deque[InputChannel] = deque()
        self._ready_back: deque[InputChannel] = deque()
        self._turns = 0
        self._replay: Iterator[tuple[InputChannel | None, Batch]] | None = None
        #: Size of the logs that are replayed.
        self.replay_bytes = 0

    def add(self, id: ChannelId, capacity: int) -> InputChannel:
        """Make an input channel."""
        channel = self.channels[id] = InputChannel(id, self, capacity, self._clock)
        self.bounded.append(channel)
        return channel

    def add_recorded(self, channel: RecordedChannel) -> None:
        """Take in a channel that was made for this gate, and can be logged."""
        self.channels[channel.id] = self.logged[channel.id] = channel
        if not channel.is_feedback:
            self.bounded.append(channel)

    def add_back_edge(self, channel: FeedbackChannel) -> None:
        """Take in a back-edge that was made for this gate."""
        self.add_recorded(channel)
        self.back_edges[channel.id] = channel

    def replay(self, batches: Iterator[tuple[InputChannel | None, Batch]], size: int = 0) -> None:
        """Give these first: the logs that a snapshot holds, each batch with its channel.

        The channel is None for what a source had in hand. `size` is that of the logs, in bytes.
        """
        self._replay, self.replay_bytes = batches, size

    def rest_of_replay(self) -> list[tuple[InputChannel | None, Batch]]:
        """What is still to be replayed; from now on it waits in memory."""
        if self._replay is None:
            return []
        rest = list(self._replay)
        self._replay = iter(rest)
        return rest

    def take(self) -> tuple[InputChannel | None, Element] | None:
        """The next element and its channel; None if there is nothing now, or a replay has ended.

        A task that has replayed everything has to hear what came meanwhile before it takes more:
        a barrier that has reached the gate must still be there when the logs begin.
        """
        if self._replay is not None:
            replayed = next(self._replay, None)
            if replayed is None:
                self._replay = None
            return replayed
        ready = self._ready
        if self._ready_back and (not ready or self._turns < (1 if self.barriers else BACK_WEIGHT)):
            ready = self._ready_back
            self._turns += 1
        elif ready:
            self._turns = 0
        else:
            return None
        channel = ready.popleft()
        element = channel.take()
        if len(channel):
            ready.append(channel)
        return channel, element

    def follow(self, sizer: BatchSizer) -> None:
        """Have the senders keep what is in flight to what the task gets done.

        Each channel has an equal share. Senders into back-edges never wait, so they only make
        batches of the right size.
        """
        bounded = self.bounded
        if bounded:
            batch, window = sizer.wanted(len(bounded))
            slower = batch < bounded[0].desired_records
            for channel in bounded:
                channel.desired_records, channel.window = batch, window
                if slower and channel.on_slower is not None:
                    channel.on_slower()
        for back_edge in self.back_edges.values():
            back_edge.desired_records = sizer.batch

    def on_ready(self, channel: InputChannel) -> None:
        """A channel has become takeable; called by the channel."""
        self._ring(channel).append(channel)
        self._wake()

    def on_blocked(self, channel: InputChannel) -> None:
        """A channel was blocked; called by the channel."""
        ring = self._ring(channel)
        if channel in ring:
            ring.remove(channel)

    def _ring(self, channel: InputChannel) -> deque[InputChannel]:
        return self._ready_back if channel.is_feedback else self._ready

    @property
    def replaying(self) -> bool:
        """Whether logs of a restored snapshot are still being given."""
        return self._replay is not None

    @property
    def ready(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._ready or self._ready_back or self._replay is not None)

    def wake(self) -> None:
        """Wake the task: something other than an element has come for it."""
        self._wake()
