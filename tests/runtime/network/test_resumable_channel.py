"""A channel drops the records that a restarted sender sends again, and only these."""

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import (
    Barrier,
    EncodedBatch,
    EndOfInput,
    WatermarkStatus,
)
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.resumable_channel import ResumableChannel

CAPACITY = 4


class Receiver:
    """A task that takes elements from its only channel, whose sender it also is."""

    def __init__(self, restored: int = 0) -> None:
        self.gate = InputGate(lambda: None, lambda: 0.0)
        id = ChannelId(0, 0, 0)
        self.channel = ResumableChannel(id, self.gate, CAPACITY, lambda: 0.0, restored)
        self.gate.add_resumable(self.channel)
        self.credits = 0
        self.caught_up = 0
        self.connect()

    def connect(self) -> None:
        self.channel.attach_sender(self._credit)

    def _credit(self) -> None:
        self.credits += 1

    def _catch_up(self) -> None:
        self.caught_up += 1

    def send(self, *elements: object) -> None:
        """Send a batch for each number, which is its count, and markers as they are."""
        for element in elements:
            batch = isinstance(element, int)
            self.channel.put(EncodedBatch(b"", element) if batch else element)

    def take(self) -> list[object]:
        """Take all elements, with the first and the number of the records of each batch."""
        taken: list[object] = []
        while self.gate.ready:
            found = self.gate.take()
            assert found is not None
            element = found[1]
            batch = isinstance(element, EncodedBatch)
            taken.append((element.begin, element.count) if batch else element)
        return taken

    def restart(self, number: int) -> None:
        self.channel.sender_restarts(number, self._catch_up)
        self.connect()


ACTIVE = WatermarkStatus(idle=False)


def test_records_behind_the_barrier_come_once():
    receiver = Receiver()
    receiver.send(5, Barrier(1), 3)
    receiver.take()
    receiver.send(4)
    receiver.take()
    receiver.channel.snapshot_completed(1)
    receiver.restart(1)
    assert receiver.channel.repeated == 7
    receiver.send(2, 6, 3)  # in batches of other sizes
    assert receiver.take() == [ACTIVE, (5, 1), (0, 3)]
    assert receiver.caught_up == 1


def test_what_was_queued_comes_again():
    receiver = Receiver()
    receiver.send(5)
    receiver.take()
    receiver.send(2, Barrier(1), Watermark(3))
    receiver.restart(0)
    receiver.send(7)
    assert receiver.take() == [ACTIVE, (5, 2)]


def test_a_dropped_batch_returns_its_credit():
    receiver = Receiver()
    for _ in range(2 * CAPACITY):
        receiver.send(1)
        receiver.take()
    receiver.credits = 0
    receiver.restart(0)
    receiver.send(*[1] * (2 * CAPACITY))
    assert receiver.credits == 2 * CAPACITY
    assert receiver.take() == [ACTIVE]


def test_a_channel_from_which_nothing_was_taken_drops_nothing():
    receiver = Receiver()
    receiver.send(3)
    receiver.restart(0)
    receiver.send(3)
    assert receiver.take() == [ACTIVE, (0, 3)]
    assert receiver.caught_up == 0


def test_a_sender_may_restart_again_before_it_has_caught_up():
    receiver = Receiver()
    receiver.send(6)
    receiver.take()
    receiver.restart(0)
    receiver.send(2)
    receiver.restart(0)
    receiver.send(4, 4)
    assert receiver.take() == [ACTIVE, (2, 2)]
    assert receiver.caught_up == 1


def test_watermarks_of_the_restarted_sender_are_not_dropped():
    receiver = Receiver()
    receiver.send(2)
    receiver.take()
    receiver.restart(0)
    receiver.send(Watermark(4), 2)
    assert receiver.take() == [ACTIVE, Watermark(4)]


def test_an_aborted_snapshot_does_not_count():
    receiver = Receiver()
    receiver.send(1, Barrier(1), 2, Barrier(2), 3)
    receiver.take()
    receiver.channel.snapshot_completed(1)
    receiver.channel.snapshot_aborted(2)
    receiver.restart(1)
    assert receiver.channel.repeated == 5
    with pytest.raises(ProtocolError, match="does not know the barrier of snapshot 2"):
        receiver.restart(2)


def test_the_restored_snapshot_counts_until_another_one_is_complete():
    receiver = Receiver(restored=40)
    receiver.send(2, Barrier(7), 3)
    receiver.take()
    receiver.restart(40)
    assert receiver.channel.repeated == 5
    receiver = Receiver(restored=40)
    receiver.send(2, Barrier(7), 3)
    receiver.take()
    receiver.channel.snapshot_completed(7)
    with pytest.raises(ProtocolError, match="does not know"):
        receiver.restart(40)


def test_a_blocked_channel_stays_blocked():
    receiver = Receiver()
    receiver.send(2)
    receiver.take()
    receiver.channel.block()
    receiver.send(1)
    receiver.restart(0)
    receiver.send(2, 1)
    assert not receiver.gate.ready
    receiver.channel.unblock()
    assert receiver.take() == [ACTIVE, (0, 1)]


@pytest.mark.parametrize("marker", [Barrier(3), EndOfInput()])
def test_a_sender_that_sends_too_few_records_again_is_found_out(marker: object):
    receiver = Receiver()
    receiver.send(3)
    receiver.take()
    receiver.restart(0)
    receiver.send(2)
    with pytest.raises(ProtocolError, match="has sent 1 records too few"):
        receiver.send(marker)


def test_a_sender_that_has_ended_cannot_restart():
    receiver = Receiver()
    receiver.send(1, EndOfInput())
    with pytest.raises(ProtocolError, match="restarts after its end of input"):
        receiver.restart(0)
