"""The sending end: sealing batches, and sending them as credits allow."""

from __future__ import annotations

from penstock.runtime.network.channel_log import EdgeIdentity
from penstock.runtime.network.elements import Barrier, EndOfInput
from penstock.runtime.network.output_channel import (
    LocalOutputChannel,
    RemoteOutputChannel,
)
from penstock.runtime.serialization.record_batch import RecordBatch
from tests.runtime.network.channels import CODEC, FakeSender, Gated


def test_sealing_makes_batches_of_at_most_the_limit() -> None:
    gated = Gated(1, capacity=10)
    output = LocalOutputChannel(gated.channels[0], 3)
    output.buffer.extend(range(8))
    output.seal_full()
    assert (len(output.sealed), output.buffer) == (2, [6, 7])
    output.seal()
    assert (len(output.sealed), output.buffer) == (3, [])
    output.push()
    assert [what for _, what in gated.drain()] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_batch_may_be_half_as_large_again_and_is_then_not_copied() -> None:
    gated = Gated(1, capacity=10)
    output = LocalOutputChannel(gated.channels[0], 10)
    output.buffer.extend(range(9))
    output.seal_full()
    assert len(output.sealed) == 0
    output.buffer.extend(range(9, 15))
    whole = output.buffer
    output.seal_full()
    output.buffer.extend(range(26))
    output.seal_full()
    assert (len(output.sealed), len(output.buffer)) == (3, 6)
    output.push()
    taken = gated.gate.take()
    assert taken is not None
    assert isinstance(taken[1], RecordBatch)
    assert taken[1].rows() is whole
    assert whole == list(range(15))
    assert [what for _, what in gated.drain()] == [list(range(10)), list(range(10, 20))]


def test_sealing_keeps_what_is_pending_since_partitioners_hold_it() -> None:
    output = LocalOutputChannel(Gated(1).channels[0], 3)
    pending = output.pending
    for seal in (output.seal, output.seal_full):
        pending.records.append(1)
        seal()
    pending.records.append(2)
    assert output.buffer[-1] == 2


def test_a_marker_comes_behind_all_that_was_emitted_even_without_credits() -> None:
    gated = Gated(1, capacity=1)
    output = LocalOutputChannel(gated.channels[0], 10)
    output.buffer.append(1)
    output.mark(Barrier(1))
    output.buffer.append(2)
    output.mark(EndOfInput())
    output.mark(Barrier(2))
    assert not output.push()
    taken = gated.drain()
    assert output.push()
    assert taken + gated.drain() == [(0, [1]), (0, 1), (0, [2]), (0, "end"), (0, 2)]


def test_a_slow_consumer_gets_small_batches() -> None:
    gated = Gated(1, capacity=10)
    (channel,) = gated.channels
    output = LocalOutputChannel(channel, 100)
    channel.limit_batches(5)
    output.buffer.append(0)
    output.seal()
    output.push()
    assert output.limit == 5


def test_a_remote_output_channel_learns_how_many_records_fit_into_the_wanted_bytes() -> None:
    sender = FakeSender()
    output = RemoteOutputChannel(sender, CODEC.encode_record_batch, 1000, 1000)
    output.buffer.extend(["x" * 98] * 50)
    output.seal()
    assert output.push()
    assert 5 <= output.limit <= 12
    sender.desired_records = 2
    output.buffer.append("y")
    output.seal()
    output.push()
    assert output.limit == 2


def test_a_remote_output_channel_waits_for_credits_and_keeps_the_order() -> None:
    sender = FakeSender(credits=1)
    output = RemoteOutputChannel(sender, CODEC.encode_record_batch, 1, 1 << 20)
    output.buffer.extend([1, 2])
    output.mark(Barrier(9))
    assert not output.push()
    assert sender.sent == [[1]]
    sender.credits += 1
    assert output.push()
    assert sender.sent == [[1], [2], 9]


def test_a_barrier_overtakes_nothing_in_an_aligned_channel() -> None:
    edge = EdgeIdentity("up", "down", 0, "broadcast", "up → down")
    found = []
    for aligned in (True, False):
        gated = Gated(1, capacity=1)
        output = LocalOutputChannel(gated.channels[0], 10)
        output.set_identity(edge, 0, aligned)
        for number in (1, 2):
            output.buffer.append(number)
            output.seal()
        overtaken = [output.overtake(Barrier(1)), output.overtake(Barrier(1))]
        output.push()
        received = gated.drain()
        output.push()
        found.append(([len(one) for one in overtaken], received + gated.drain()))
    assert found == [
        ([0, 0], [(0, [1]), (0, [2]), (0, 1)]),
        ([2, 0], [(0, 1), (0, [1]), (0, [2])]),
    ]
