"""The input gate of a task: it takes elements from all channels that are not blocked.

Channels that have elements take turns, one element each, so that none starves. A blocked channel
keeps its elements until it is unblocked.

Back-edges have priority, because records in a loop should leave it before more come in. The
priority is a weight and not strict: `BACK_WEIGHT` elements of back-edges for one of a regular
channel. While a barrier waits in the gate they alternate one by one, so that a loop that is never
idle cannot starve a snapshot. After a restore the logs of the snapshot are replayed first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import Element
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.serialization.record_batch import RecordBatch

__all__ = ["BatchSizing", "InputGate"]

#: With a weight of 8, a source filled its loop faster than the loop emptied, and the logs of
#: snapshots held most of the source's records.
BACK_WEIGHT = 64


class BatchSizing(Protocol):
    """The amount of input that a task wants in flight.

    `batch` is the number of records in a batch for senders that never wait.
    """

    batch: int

    def wanted(self, channels: int) -> tuple[int, int]:
        """Return the records of a batch, and the batches in flight of each of `channels`."""


class InputGate:
    """All input channels of one task.

    Arguments:
        wake: is called when there may be something to take after there was nothing.
        clock: returns seconds, for the channels.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self.channels: dict[ChannelId, InputChannel] = {}
        #: The channels that can be logged, and those that are back-edges.
        self.recorded: dict[ChannelId, RecordedChannel] = {}
        self.back_edges: dict[ChannelId, FeedbackChannel] = {}
        #: The size of the logs that are replayed, in bytes.
        self.replay_bytes = 0
        self._wake = wake
        self._clock = clock
        #: The channels that are no back-edges: their senders wait for room.
        self._bounded: list[InputChannel] = []
        self._waiting_barriers = 0
        #: Unblocked channels that have an element, each at most once.
        self._ready: deque[InputChannel] = deque()
        self._ready_back: deque[InputChannel] = deque()
        #: The number of elements that back-edges have had since the last regular one.
        self._turns = 0
        self._replay: Iterator[tuple[InputChannel | None, RecordBatch]] | None = None

    # ---- channels

    def add(self, id: ChannelId, capacity: int) -> InputChannel:
        """Create an input channel and add it."""
        channel = self.channels[id] = InputChannel(id, self, capacity, self._clock)
        self._bounded.append(channel)
        return channel

    def add_recorded(self, channel: RecordedChannel) -> None:
        """Add a channel that can be logged and whose listener is this gate."""
        self.channels[channel.id] = self.recorded[channel.id] = channel
        if not channel.is_feedback:
            self._bounded.append(channel)

    def add_back_edge(self, channel: FeedbackChannel) -> None:
        """Add a back-edge whose listener is this gate."""
        self.add_recorded(channel)
        self.back_edges[channel.id] = channel

    # ---- replay

    def replay(
        self, batches: Iterator[tuple[InputChannel | None, RecordBatch]], size: int = 0
    ) -> None:
        """Deliver the logs of a snapshot before all other elements.

        Arguments:
            batches: each batch with its channel; None for records that a source had read.
            size: of the logs, in bytes.
        """
        self._replay, self.replay_bytes = batches, size

    def rest_of_replay(self) -> list[tuple[InputChannel | None, RecordBatch]]:
        """Return the batches that are still to be replayed, and keep them in memory."""
        if self._replay is None:
            return []
        rest = list(self._replay)
        self._replay = iter(rest)
        return rest

    @property
    def replaying(self) -> bool:
        """Return whether logs of a restored snapshot are still being delivered."""
        return self._replay is not None

    # ---- elements

    @property
    def ready(self) -> bool:
        """Return whether there is something to take."""
        return bool(self._ready or self._ready_back or self._replay is not None)

    def take(self) -> tuple[InputChannel | None, Element] | None:
        """Return the next element with its channel; None if there is none.

        The end of a replay is one None, too. The task then handles what it was notified of
        meanwhile, before it takes more. A barrier that has reached the gate must still be in its
        channel when the logs of its snapshot begin.
        """
        if self._replay is not None:
            replayed = next(self._replay, None)
            if replayed is None:
                self._replay = None
            return replayed
        ready = self._ready
        if self._ready_back and (
            not ready or self._turns < (1 if self._waiting_barriers else BACK_WEIGHT)
        ):
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

    def follow(self, sizing: BatchSizing) -> None:
        """Limit what senders have in flight to what the task wants.

        Bounded channels have equal shares. Senders into back-edges never wait, so only the size of
        their batches is limited.
        """
        if self._bounded:
            records, batches = sizing.wanted(len(self._bounded))
            for channel in self._bounded:
                channel.limit_in_flight(records, batches)
        for back_edge in self.back_edges.values():
            back_edge.limit_batches(sizing.batch)

    def wake(self) -> None:
        """Wake the task for something other than an element."""
        self._wake()

    # ---- the listener of the channels

    def on_ready(self, channel: InputChannel) -> None:
        """Give a channel its turn."""
        self._ring(channel).append(channel)
        self._wake()

    def on_blocked(self, channel: InputChannel) -> None:
        """Take a channel's turn away."""
        ring = self._ring(channel)
        if channel in ring:
            ring.remove(channel)

    def on_barrier_queued(self) -> None:
        """Let channels alternate until the barrier is taken."""
        self._waiting_barriers += 1

    def on_barrier_taken(self) -> None:
        """End what `on_barrier_queued` began."""
        self._waiting_barriers -= 1

    def _ring(self, channel: InputChannel) -> deque[InputChannel]:
        return self._ready_back if channel.is_feedback else self._ready
