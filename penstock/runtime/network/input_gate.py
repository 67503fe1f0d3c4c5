"""The input gate of a task, which takes elements from all channels that are not blocked.

Channels that have elements take turns, and the gate takes one element in each turn. So each channel
makes progress. A blocked channel keeps its elements until it is unblocked.

Back-edges have priority, because records should leave a loop before more records enter it. If
back-edges and regular channels have elements, the gate takes `BACK_WEIGHT` elements of back-edges
for each element of a regular channel. While a barrier waits in the gate, it takes elements of
back-edges and regular channels alternately. Otherwise a busy loop could delay a snapshot without
limit. After a restore, the gate first replays the logs of the snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import Element, TimeElement
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.network.resumable_channel import ResumableChannel
from penstock.runtime.serialization.record_batch import RecordBatch

#: The number of elements of back-edges that the gate takes for each element of a regular channel.
#: With a weight of 8, sources filled their loops faster than the loops emptied. The logs then held
#: most of the source's records.
BACK_WEIGHT = 64


class BatchSizing(Protocol):
    """The amount of input that a task wants in flight.

    `batch` is the number of records in a batch for senders into back-edges, which never wait.
    """

    batch: int

    def wanted(self, channels: int) -> tuple[int, int]:
        """Return the number of records in a batch, and of batches in flight per channel.

        Arguments:
            channels: the number of channels that share the input in flight.
        """


class InputGate:
    """All input channels of one task.

    Arguments:
        wake: a function that wakes the task. It is called when an empty gate may have an element
            again.
        clock: a function that returns the time in seconds; used to measure how long channels are
            blocked.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self.channels: dict[ChannelId, InputChannel] = {}
        #: The channels that can be logged, keyed by their ids. They include the feedback channels.
        self.recorded: dict[ChannelId, RecordedChannel] = {}
        #: The feedback channels, keyed by their ids.
        self.back_edges: dict[ChannelId, FeedbackChannel] = {}
        #: The channels whose senders can restart alone, keyed by their ids.
        self.resumable: dict[ChannelId, ResumableChannel] = {}
        #: The total size of the logs that are replayed, in bytes.
        self.replay_bytes = 0
        self._wake = wake
        self._clock = clock
        #: The channels that are not feedback channels. Their senders wait for credits.
        self._bounded: list[InputChannel] = []
        self._waiting_barriers = 0
        #: The regular channels that are not blocked and have an element, each at most once.
        self._ready: deque[InputChannel] = deque()
        #: The feedback channels that are not blocked and have an element, each at most once.
        self._ready_back: deque[InputChannel] = deque()
        #: The number of back-edge elements taken since the last element of a regular channel.
        self._turns = 0
        self._replay: Iterator[tuple[InputChannel | None, RecordBatch | TimeElement]] | None = None

    # ---- methods that add channels

    def add(self, id: ChannelId, capacity: int) -> InputChannel:
        """Create an input channel, add it to the gate, and return it."""
        channel = self.channels[id] = InputChannel(id, self, capacity, self._clock)
        self._bounded.append(channel)
        return channel

    def add_resumable(self, channel: ResumableChannel) -> None:
        """Add a channel whose sender can restart alone. This gate must be its listener."""
        self.channels[channel.id] = self.resumable[channel.id] = channel
        self._bounded.append(channel)

    def add_recorded(self, channel: RecordedChannel) -> None:
        """Add a channel that can be logged. This gate must be its listener."""
        self.channels[channel.id] = self.recorded[channel.id] = channel
        if not channel.is_feedback:
            self._bounded.append(channel)

    def add_back_edge(self, channel: FeedbackChannel) -> None:
        """Add a feedback channel. This gate must be its listener."""
        self.add_recorded(channel)
        self.back_edges[channel.id] = channel

    # ---- methods for the replay

    def replay(
        self,
        batches: Iterator[tuple[InputChannel | None, RecordBatch | TimeElement]],
        size: int = 0,
    ) -> None:
        """Deliver the logs of a snapshot before all other elements.

        Arguments:
            batches: each batch with its channel. The channel is None for records that the source of
                this task had read.
            size: the total size of the logs, in bytes.
        """
        self._replay, self.replay_bytes = batches, size

    def rest_of_replay(self) -> list[tuple[InputChannel | None, RecordBatch | TimeElement]]:
        """Return the batches that are not replayed yet, each with its channel.

        The gate keeps them in memory from then on, because their iterator is used up.
        """
        if self._replay is None:
            return []
        rest = list(self._replay)
        self._replay = iter(rest)
        return rest

    @property
    def replaying(self) -> bool:
        """Return whether logs of a restored snapshot are still being delivered."""
        return self._replay is not None

    # ---- methods that take elements

    @property
    def ready(self) -> bool:
        """Return whether a channel has an element to take, or logs are being replayed."""
        return bool(self._ready or self._ready_back or self._replay is not None)

    def take(self) -> tuple[InputChannel | None, Element] | None:
        """Remove and return the next element with its channel, or None if there is none.

        The gate also returns None once at the end of a replay. The task then handles its pending
        notifications before it takes more elements. This order is necessary because a barrier must
        still be in its channel when the logs of its snapshot begin.
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
        """Limit the batches that senders have in flight, as `sizing` requires.

        All bounded channels get equal shares. Senders into back-edges never wait, so the gate
        limits only the size of their batches.
        """
        if self._bounded:
            records, batches = sizing.wanted(len(self._bounded))
            for channel in self._bounded:
                channel.limit_in_flight(records, batches)
        for back_edge in self.back_edges.values():
            back_edge.limit_batches(sizing.batch)

    def wake(self) -> None:
        """Wake the task for a reason other than a new element."""
        self._wake()

    # ---- methods of `ChannelListener`

    def on_ready(self, channel: InputChannel) -> None:
        """Add a channel to the channels that take turns, and wake the task."""
        self._ring(channel).append(channel)
        self._wake()

    def on_blocked(self, channel: InputChannel) -> None:
        """Remove a channel from the channels that take turns."""
        ring = self._ring(channel)
        if channel in ring:
            ring.remove(channel)

    def on_emptied(self, channel: InputChannel) -> None:
        """Remove a channel from the channels that take turns."""
        self.on_blocked(channel)

    def on_barrier_queued(self) -> None:
        """Take from back-edges and regular channels in turns until the barrier is taken."""
        self._waiting_barriers += 1

    def on_barrier_taken(self) -> None:
        """Give back-edges priority again if no other barrier waits in the gate."""
        self._waiting_barriers -= 1

    def _ring(self, channel: InputChannel) -> deque[InputChannel]:
        return self._ready_back if channel.is_feedback else self._ready
