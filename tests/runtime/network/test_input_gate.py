"""Input channels and the gate that takes from them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.network.elements import Barrier, Element, EndOfInput
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import (
    LocalOutputChannel,
)
from penstock.runtime.serialization.record_batch import RecordBatch
from tests.runtime.network.channels import Gated, shown


def test_a_channel_gives_what_it_got_in_order() -> None:
    gated = Gated(1, capacity=3)
    elements: list[Element] = [
        RecordBatch([1]),
        Barrier(1),
        RecordBatch([2]),
        EndOfInput(),
        Barrier(2),
    ]
    for element in elements:
        gated.channels[0].put(element)
    assert gated.drain() == [(0, [1]), (0, 1), (0, [2]), (0, "end"), (0, 2)]
    assert gated.gate.take() is None


def test_channels_take_turns() -> None:
    gated = Gated(2, capacity=3)
    for channel in gated.channels:
        for number in range(3):
            channel.put(RecordBatch([number]))
    assert [source for source, _ in gated.drain()] == [0, 1, 0, 1, 0, 1]


def test_a_blocked_channel_delivers_nothing_and_keeps_its_order() -> None:
    gated = Gated()
    first, second = gated.channels
    first.put(RecordBatch(["before"]))
    first.block()
    assert not gated.gate.ready
    first.put(RecordBatch(["after"]))
    first.put(Barrier(2))
    second.put(RecordBatch(["other"]))
    assert gated.drain() == [(1, ["other"])]
    with pytest.raises(ProtocolError, match="blocked: True"):
        first.take()
    first.unblock()
    assert gated.drain() == [(0, ["before"]), (0, ["after"]), (0, 2)]


def test_a_blocked_channel_pushes_back() -> None:
    gated = Gated(1, capacity=2)
    (channel,) = gated.channels
    output = LocalOutputChannel(channel, 1)
    channel.block()
    output.buffer.extend([1, 2, 3])
    output.seal()
    assert not output.push()
    assert (len(channel), len(output.sealed), channel.room) == (2, 1, 0)
    channel.unblock()
    assert gated.gate.take() is not None
    assert output.push()
    assert [what for _, what in gated.drain()] == [[2], [3]]


def test_blocking_and_unblocking_twice_changes_nothing() -> None:
    gated = Gated(1)
    (channel,) = gated.channels
    channel.put(RecordBatch([1]))
    channel.block()
    channel.block()
    channel.unblock()
    channel.unblock()
    assert gated.drain() == [(0, [1])]


def test_the_task_is_woken_when_there_is_something_and_not_for_each_element() -> None:
    gated = Gated(1)
    (channel,) = gated.channels
    channel.put(RecordBatch([1]))
    channel.put(RecordBatch([2]))
    assert gated.woken == 1
    gated.drain()
    channel.block()
    channel.put(Barrier(1))
    assert gated.woken == 1
    channel.unblock()
    assert gated.woken == 2


def test_a_batch_needs_a_credit_and_a_marker_does_not() -> None:
    (channel,) = Gated(1, capacity=1).channels
    channel.put(RecordBatch([1]))
    channel.put(Barrier(1))
    with pytest.raises(ProtocolError, match="without a credit"):
        channel.put(RecordBatch([2]))


def test_a_credit_goes_back_when_a_batch_is_taken() -> None:
    gated = Gated(1)
    (channel,) = gated.channels
    credits: list[None] = []
    channel.attach_sender(lambda: credits.append(None))
    channel.put(RecordBatch([1]))
    channel.put(Barrier(1))
    assert not credits
    gated.drain()
    assert len(credits) == 1


def test_after_the_end_of_input_there_are_barriers_and_no_batches() -> None:
    (channel,) = Gated(1).channels
    channel.put(EndOfInput())
    channel.put(Barrier(1))
    with pytest.raises(ProtocolError, match="after the end"):
        channel.put(RecordBatch([1]))
    with pytest.raises(ProtocolError, match="second end"):
        channel.put(EndOfInput())


def test_a_blocked_channel_knows_for_how_long_it_has_been_blocked() -> None:
    gated = Gated(1)
    (channel,) = gated.channels
    gated.clock.now = 2.0
    channel.block()
    gated.clock.now = 5.0
    assert channel.blocked_seconds == 3.0
    channel.unblock()
    assert channel.blocked_seconds == 0.0


def test_random_traffic_is_neither_lost_nor_reordered() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        gated = Gated(3, capacity=2)
        own = [LocalOutputChannel(channel, rng.randint(1, 4)) for channel in gated.channels]
        sent: list[list[int]] = [[] for _ in own]
        received: list[list[int]] = [[] for _ in own]
        counter = 0
        for _ in range(400):
            index = rng.randrange(3)
            channel: InputChannel = gated.channels[index]
            match rng.randrange(6):
                case 0 | 1:
                    if not own[index].sealed:
                        own[index].buffer.append(counter)
                        sent[index].append(counter)
                        counter += 1
                case 2:
                    own[index].seal()
                    own[index].push()
                case 3:
                    channel.block()
                case 4:
                    channel.unblock()
                case _:
                    if (item := gated.gate.take()) is not None:
                        assert not item[0].blocked, seed
                        received[item[0].id.source] += shown(item[1])
        for index, output in enumerate(own):
            gated.channels[index].unblock()
            output.seal()
        while any(len(output.sealed) for output in own) or gated.gate.ready:
            for output in own:
                output.push()
            for source, records in gated.drain():
                received[source] += records
        assert received == sent, seed
        assert Counter(map(len, received)).total() == 3
