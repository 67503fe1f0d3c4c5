"""Channels from end to end: outputs and partitioners, connections, channels, the input gate.

And what stands at the ends of a task: the feed of a source, and the checkpoint_writer. All of it is
synchronous, except connections, which run over streams in memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from penstock.dataflow.errors import JobError, ProtocolError, StoreError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.source import Read, SourceReader, Split
from penstock.runtime.control.framing import Frames
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.network.input_channel import FIRST_RECORDS, InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import (
    LocalOutputChannel,
    OutputChannel,
    RemoteOutputChannel,
)
from penstock.runtime.network.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    HashPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from penstock.runtime.network.remote_channel import (
    ReceivingHalf,
    SendingHalf,
    decode_header,
    encode_header,
    run_half,
)
from penstock.runtime.operators.source_input import SequentialSourceInput
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.task.batch_sizing import BatchSizer
from penstock.runtime.task.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.task_snapshot import Acknowledgement, TaskSnapshot
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths

CODEC = Codec(TypeRegistry())


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gated:
    """A gate with channels by number, and how often it woke its task."""

    def __init__(self, channels: int = 2, capacity: int = 2) -> None:
        self.clock = Clock()
        self.woken = 0
        self.gate = InputGate(self._wake, self.clock)
        self.channels = [self.gate.add(ChannelId(0, i, 0), capacity) for i in range(channels)]

    def _wake(self) -> None:
        self.woken += 1

    def drain(self) -> list[tuple[int, Any]]:
        taken = []
        while (item := self.gate.take()) is not None:
            channel, element = item
            taken.append((channel.id.source, shown(element)))
        return taken


def shown(element: Element) -> Any:
    if isinstance(element, RecordBatch):
        return element.rows()
    if isinstance(element, EncodedBatch):
        return CODEC.decode_batch(element.payload)
    return element.number if isinstance(element, Barrier) else "end"


# ---- channel and gate


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
    assert (len(channel), output.waiting, channel.room) == (2, 1, 0)
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


# ---- output channels


class FakeSender:
    def __init__(self, credits: int = 100) -> None:
        self.credits = credits
        self.desired_records = 1 << 30
        self.sent: list[Any] = []

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """It never changes."""

    def send_batch(self, payload: bytes, count: int) -> None:
        self.credits -= 1
        records = CODEC.decode_batch(payload)
        assert len(records) == count
        self.sent.append(records)

    def send_marker(self, element: Element) -> None:
        self.sent.append(shown(element))


def test_sealing_makes_batches_of_at_most_the_limit() -> None:
    gated = Gated(1, capacity=10)
    output = LocalOutputChannel(gated.channels[0], 3)
    output.buffer.extend(range(8))
    output.seal_full()
    assert (output.waiting, output.buffer) == (2, [6, 7])
    output.seal()
    assert (output.waiting, output.buffer) == (3, [])
    output.push()
    assert [what for _, what in gated.drain()] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_batch_may_be_half_as_large_again_and_is_then_not_copied() -> None:
    gated = Gated(1, capacity=10)
    output = LocalOutputChannel(gated.channels[0], 10)
    output.buffer.extend(range(9))
    output.seal_full()
    assert output.waiting == 0
    output.buffer.extend(range(9, 15))
    whole = output.buffer
    output.seal_full()
    output.buffer.extend(range(26))
    output.seal_full()
    assert (output.waiting, len(output.buffer)) == (3, 6)
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


# ---- partitioners


def outputs(count: int) -> list[OutputChannel]:
    return [LocalOutputChannel(channel, 1000) for channel in Gated(count).channels]


def buffers(own: list[OutputChannel]) -> list[list[Any]]:
    return [output.buffer for output in own]


def test_forward_and_global_send_all_to_one() -> None:
    own = outputs(1)
    ForwardPartitioner(own).route([1, 2])
    assert buffers(own) == [[1, 2]]
    own = outputs(3)
    GlobalPartitioner(own).route([1, 2])
    assert buffers(own) == [[1, 2], [], []]


def test_broadcast_sends_all_to_each() -> None:
    own = outputs(3)
    BroadcastPartitioner(own, CODEC.copy_mutable).route([1, 2])
    assert buffers(own) == [[1, 2]] * 3


def test_broadcast_isolates_a_consumer_in_the_same_process_from_the_others() -> None:
    sender = FakeSender()
    remote = RemoteOutputChannel(sender, CODEC.encode_record_batch, 10, 1 << 20)
    (local,) = outputs(1)
    BroadcastPartitioner([local, remote], CODEC.copy_mutable).route([[1]])
    local.buffer[0].append("changed by the consumer here")
    remote.seal()
    remote.push()
    assert sender.sent == [[[1]]]


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [2, 5], [3, 1, 3]])
def test_rebalance_goes_round_over_batches_of_any_size(sizes: list[int]) -> None:
    own = outputs(3)
    partitioner = RebalancePartitioner(own, start=1)
    records = iter(range(7))
    for size in sizes:
        partitioner.route([next(records) for _ in range(size)])
    assert buffers(own) == [[2, 5], [0, 3, 6], [1, 4]]


def test_shuffle_sends_each_record_once_and_about_evenly() -> None:
    own = outputs(4)
    ShufflePartitioner(own, random.Random(5)).route(list(range(4000)))
    assert sorted(record for buffer in buffers(own) for record in buffer) == list(range(4000))
    assert all(900 < len(buffer) < 1100 for buffer in buffers(own))
    assert all(buffer == sorted(buffer) for buffer in buffers(own))


def test_hash_sends_equal_keys_to_one_place_whatever_their_type() -> None:
    own = outputs(4)
    partitioner = HashPartitioner(own, lambda record: record[0], 128, 4)
    records = [(key, i) for i, key in enumerate([1, "a", 1.0, True, "b", "a", 2, (1, "x")])]
    partitioner.route(records)
    partitioner.route([(1, "later")])
    places = {record: i for i, buffer in enumerate(buffers(own)) for record in buffer}
    assert len({places[1, 0], places[1, 2], places[1, 3], places[1, "later"]}) == 1
    assert places["a", 1] == places["a", 5]
    assert sum(map(len, buffers(own))) == 9


def test_hash_keeps_the_order_of_each_key() -> None:
    own = outputs(3)
    partitioner = HashPartitioner(own, lambda record: record[0], 128, 3)
    partitioner.route([(key, i) for i in range(50) for key in "abcdef"])
    arrived: list[str] = []
    for buffer in buffers(own):
        by_key: dict[str, list[int]] = {}
        for key, i in buffer:
            by_key.setdefault(key, []).append(i)
        assert all(order == list(range(50)) for order in by_key.values())
        arrived += by_key
    assert sorted(arrived) == list("abcdef")


@pytest.mark.parametrize("key", [[1], {"a": 1}, object(), float("nan")])
def test_hash_refuses_a_key_that_cannot_be_routed(key: Any) -> None:
    partitioner = HashPartitioner(outputs(2), lambda record: record, 128, 2)
    for records in ([key], ["fine", key]):
        with pytest.raises(JobError, match="key"):
            partitioner.route(records)


def test_custom_sends_where_the_partitioner_says() -> None:
    own = outputs(3)
    CustomPartitioner(own, lambda r: r[0], lambda key, count: key % count).route(
        [(4, "a"), (2, "b")]
    )
    assert buffers(own) == [[], [(4, "a")], [(2, "b")]]


@pytest.mark.parametrize("index", [-1, 3, 100])
def test_custom_refuses_a_place_that_there_is_not(index: int) -> None:
    partitioner = CustomPartitioner(outputs(3), lambda r: r, lambda key, count: index)
    with pytest.raises(JobError, match=f"returned {index}"):
        partitioner.route([1])


# ---- connections


async def connected(
    nursery: trio.Nursery, credits: int = 2
) -> tuple[SendingHalf, Gated, list[str], list[str]]:
    here, there = trio.testing.memory_stream_pair()
    gated = Gated(1, capacity=credits)
    woken: list[str] = []
    lost: list[str] = []
    sending = SendingHalf(Frames(here), credits, lambda: woken.append("credit"))
    receiving = ReceivingHalf(Frames(there), gated.channels[0])
    nursery.start_soon(run_half, sending, lost.append)
    nursery.start_soon(run_half, receiving, lost.append)
    return sending, gated, woken, lost


def test_a_sender_that_dies_within_a_frame_has_broken_its_connection() -> None:
    async def main() -> None:
        here, there = trio.testing.memory_stream_pair()
        lost: list[str] = []
        half = ReceivingHalf(Frames(there), Gated(1).channels[0])
        await here.send_all(b"\x00\x00\x00\x09half")
        await here.aclose()
        await run_half(half, lost.append)
        assert lost == ["a data connection broke: the connection ended within a frame"]

    trio.run(main)


def test_a_connection_carries_batches_and_markers_in_order() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, _, _ = await connected(nursery)
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 10, 1 << 20)
            output.buffer.extend([("a", 1), ("b", 2)])
            output.mark(Barrier(3, SnapshotKind.SAVEPOINT))
            output.buffer.append(("c", 3))
            output.mark(EndOfInput())
            output.mark(Barrier(4, SnapshotKind.FINAL))
            assert output.push()
            await trio.testing.wait_all_tasks_blocked()
            taken = []
            while (item := gated.gate.take()) is not None:
                taken.append(item[1])
            assert [shown(e) for e in taken] == [[("a", 1), ("b", 2)], 3, [("c", 3)], "end", 4]
            assert taken[1] == Barrier(3, SnapshotKind.SAVEPOINT)
            assert taken[4] == Barrier(4, SnapshotKind.FINAL)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_credits_come_back_over_a_connection_when_batches_are_taken() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, woken, _ = await connected(nursery)
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 1, 1 << 20)
            output.buffer.extend([1, 2, 3])
            output.seal()
            assert not output.push()
            await trio.testing.wait_all_tasks_blocked()
            assert (sending.credits, woken) == (0, [])
            gated.channels[0].limit_batches(17)
            assert [what for _, what in gated.drain()] == [[1], [2]]
            await trio.testing.wait_all_tasks_blocked()
            assert (sending.credits, sending.desired_records) == (2, 17)
            assert woken
            assert output.push()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_slow_task_has_fewer_batches_under_way() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, woken, _ = await connected(nursery, credits=4)
            (channel,) = gated.channels
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 1, 1 << 20)
            output.buffer.extend(range(6))
            output.seal()
            output.push()
            await trio.testing.wait_all_tasks_blocked()
            channel.limit_in_flight(FIRST_RECORDS, 1)
            for left in (3, 2, 1):
                gated.gate.take()
                await trio.testing.wait_all_tasks_blocked()
                assert (len(channel), sending.credits) == (left, 0)
            gated.gate.take()
            await trio.testing.wait_all_tasks_blocked()
            assert (len(channel), sending.credits, len(woken)) == (0, 1, 1)
            output.push()
            await trio.testing.wait_all_tasks_blocked()
            channel.limit_in_flight(FIRST_RECORDS, 4)
            gated.gate.take()
            await trio.testing.wait_all_tasks_blocked()
            assert sending.credits == 4
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_task_that_becomes_slow_is_followed_before_the_next_batch() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            sending, gated, _, _ = await connected(nursery, credits=4)
            (channel,) = gated.channels
            output = RemoteOutputChannel(sending, CODEC.encode_record_batch, 100, 1 << 20)
            assert output.limit == FIRST_RECORDS
            sizer = BatchSizer()
            sizer.took(1, 2e-3)
            gated.gate.follow(sizer)
            await trio.testing.wait_all_tasks_blocked()
            assert (output.limit, sending.credits, channel.desired_records) == (1, 4, 1)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_loss_of_a_connection_is_told_and_a_cancel_is_not() -> None:
    async def main() -> list[str]:
        async with trio.open_nursery() as nursery:
            sending, _, _, lost = await connected(nursery)
            await trio.testing.wait_all_tasks_blocked()
            await sending._frames.aclose()
        return lost

    assert len(trio.run(main)) == 2

    async def cancelled() -> list[str]:
        async with trio.open_nursery() as nursery:
            _, _, _, lost = await connected(nursery)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return lost

    assert trio.run(cancelled) == []


def test_the_header_of_a_connection_round_trips_and_rubbish_is_refused() -> None:
    id = ChannelId(3, 1, 2)
    assert decode_header(encode_header(7, id)) == (7, id)
    for rubbish in (b"", b"\x01", b"\xff" * 20):
        with pytest.raises(ProtocolError, match=r"[hH]eader"):
            decode_header(rubbish)


# ---- the feed of a source


class Reader(SourceReader):
    """Reads the numbers of a split, two at most."""

    def __init__(self, blocking: bool = False, wait_seconds: float = 0.0) -> None:
        self.blocking = blocking
        self.wait_seconds = wait_seconds
        self.opened: list[tuple[str, Any]] = []
        self.next = 0

    def open(self, split: Split, position: Any) -> None:
        self.opened.append((split.id, position))
        self.split, self.next = split, position or 0

    def read(self, max_records: int) -> Read:
        end = min(self.next + min(2, max_records), self.split.payload)
        records, self.next = list(range(self.next, end)), end
        return Read(records, end, end == self.split.payload, self.wait_seconds)


class Fed:
    def __init__(self, reader: Reader) -> None:
        self.clock, self.asked, self.woken = Clock(), 0, 0
        self.feed = SequentialSourceInput(reader, self.clock, self._ask, self._wake)

    def _ask(self) -> None:
        self.asked += 1

    def _wake(self) -> None:
        self.woken += 1


def test_a_feed_asks_for_a_split_and_one_ahead_but_once() -> None:
    fed = Fed(Reader())
    assert fed.feed.read(10) is None
    assert fed.feed.read(10) is None
    assert fed.asked == 1
    fed.feed.assign(Split("a", 3), None)
    assert fed.feed.read(10) == [0, 1]
    assert fed.asked == 2
    fed.feed.assign(Split("b", 1), None)
    assert fed.feed.read(10) == [2]
    assert fed.feed.read(10) == [0]
    fed.feed.no_more()
    assert fed.feed.ended
    assert fed.asked == 3


def test_a_snapshot_of_a_feed_has_the_position_after_the_last_emitted_batch() -> None:
    fed = Fed(Reader())
    fed.feed.assign(Split("a", 5), None)
    fed.feed.assign(Split("b", 2), None)
    fed.feed.read(10)
    assert fed.feed.snapshot() == [["a", 5, 2], ["b", 2, None]]
    reader = Reader()
    again = Fed(reader)
    again.feed.restore(fed.feed.snapshot())
    again.feed.no_more()
    rest = []
    while not again.feed.ended:
        rest.append(again.feed.read(10))
    assert rest == [[2, 3], [4], [0, 1]]
    assert reader.opened == [("a", 2), ("b", None)]


def test_a_feed_waits_until_its_reader_has_something_again() -> None:
    fed = Fed(Reader(wait_seconds=1.0))
    fed.feed.assign(Split("a", 5), None)
    assert fed.feed.read(10) == [0, 1]
    assert fed.feed.wake_at == 1.0
    assert fed.feed.read(10) is None
    fed.clock.now = 1.0
    assert fed.feed.read(10) == [2, 3]
    assert fed.feed.wake_at == 2.0


def test_what_a_thread_has_read_ahead_does_not_count_as_emitted() -> None:
    async def main() -> None:
        fed = Fed(Reader(blocking=True))
        signal = trio.Event()

        def wake() -> None:
            nonlocal signal
            signal.set()

        fed.feed = SequentialSourceInput(fed.feed._current._reader, fed.clock, fed._ask, wake)

        async def offload(function: Callable[[], Read]) -> Read:
            await trio.lowlevel.checkpoint()
            return function()

        async def wait(condition: Callable[[], bool], until: float | None) -> None:
            nonlocal signal
            while not condition():
                await signal.wait()
                signal = trio.Event()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fed.feed.pump, offload, wait)
            await trio.testing.wait_all_tasks_blocked()
            fed.feed.assign(Split("a", 3), None)
            # The pump looked before there was a split; beginning one must wake it.
            assert fed.feed.read(10) is None
            await trio.testing.wait_all_tasks_blocked()
            assert fed.feed.snapshot() == [["a", 3, None]]
            assert fed.feed.read(10) == [0, 1]
            await trio.testing.wait_all_tasks_blocked()
            assert fed.feed.snapshot() == [["a", 3, 2]]
            assert fed.feed.read(10) == [2]
            assert fed.feed.snapshot() == []
            nursery.cancel_scope.cancel()

    trio.run(main)


# ---- the checkpoint writer


class Reports:
    def __init__(self) -> None:
        self.acknowledged: list[Acknowledgement] = []
        self.declined: list[tuple[int, str]] = []

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self.acknowledged.append(acknowledgement)

    def decline(self, number: int, reason: str) -> None:
        self.declined.append((number, reason))


async def inline(function: Callable[[], Any]) -> Any:
    return function()


async def no_pause() -> None:
    return None


def finish(work: Awaitable[None]) -> None:
    with pytest.raises(StopIteration):
        work.__await__().__next__()


class Persisted:
    def __init__(self) -> None:
        self.reports = Reports()
        self.checkpoint_writer = CheckpointWriter(
            subtask=1,
            lineage="l",
            attempt=2,
            backends={},
            responder=self.reports,
            paths=JobPaths(Path("/nowhere")),
            clock=Clock(),
        )

    def cut(self, number: int, staged: Callable[[], list[Any]] | None = None, **more: Any) -> None:
        cut = TaskSnapshot(number, SnapshotKind.CHECKPOINT, "source", **more)
        if staged is not None:
            cut.staged["sink"] = staged
        self.checkpoint_writer.add(cut)

    def work(self) -> None:
        while self.checkpoint_writer.has_work():
            finish(self.checkpoint_writer.work(inline, no_pause))

    def committables(self) -> list[list[Any]]:
        return [[c.payload for c in a.committables] for a in self.reports.acknowledged]


class BrokenCapture:
    def __init__(self, *, over: bool = True) -> None:
        self.over = over

    def abort(self) -> None:
        return None

    def write(self, target: Path) -> Any:
        raise StoreError("the disk is full", target)
        yield


def test_cuts_are_acknowledged_in_order_with_their_small_values() -> None:
    p = Persisted()
    p.cut(1, small={"source": [["a", None, 3]]}, blocked_seconds=[0.5, 0.0])
    p.cut(2, small={"source": []})
    assert p.checkpoint_writer.pending
    p.work()
    assert [a.number for a in p.reports.acknowledged] == [1, 2]
    assert p.reports.acknowledged[0].blocked_seconds == [0.5, 0.0]
    (handle,) = p.reports.acknowledged[0].handles
    assert (handle.uid, handle.subtask, handle.small) == ("source", 1, [["a", None, 3]])


def test_staged_output_is_in_every_acknowledgement_until_a_snapshot_is_complete() -> None:
    p = Persisted()
    p.cut(1, lambda: ["one"])
    p.cut(2, lambda: ["two"])
    p.work()
    p.checkpoint_writer.complete(1)
    p.cut(3, lambda: ["three"])
    p.work()
    assert p.committables() == [["one"], ["one", "two"], ["two", "three"]]


def test_what_an_aborted_snapshot_staged_belongs_to_the_next() -> None:
    p = Persisted()
    p.cut(1, lambda: ["one"])
    p.checkpoint_writer.abort(1)
    p.work()
    assert not p.reports.acknowledged
    p.cut(2, lambda: ["two"])
    p.work()
    assert p.committables() == [["one", "two"]]


def test_what_a_declined_snapshot_staged_belongs_to_the_next() -> None:
    p = Persisted()
    p.cut(1, lambda: ["one"], captures={"op": BrokenCapture()})
    p.work()
    ((number, reason),) = p.reports.declined
    assert number == 1
    assert "the disk is full" in reason
    p.cut(2, lambda: ["two"])
    p.work()
    assert p.committables() == [["one", "two"]]


def test_state_that_can_never_be_written_again_fails_the_task() -> None:
    p = Persisted()
    p.cut(1, captures={"op": BrokenCapture(over=False)})
    with pytest.raises(StoreError, match="the disk is full"):
        finish(p.checkpoint_writer.work(inline, no_pause))
    assert not p.reports.declined


def test_output_that_cannot_be_staged_fails_the_task_since_it_is_lost() -> None:
    def fail() -> list[Any]:
        raise OSError("no space left")

    p = Persisted()
    p.cut(1, fail)
    with pytest.raises(JobError, match="no space left"):
        finish(p.checkpoint_writer.work(inline, no_pause))
    assert not p.reports.acknowledged


def test_committables_carry_where_they_come_from() -> None:
    p = Persisted()
    p.cut(7, lambda: ["x"])
    p.work()
    ((committable,),) = [a.committables for a in p.reports.acknowledged]
    assert committable.identity == ("l", "sink", 1, 7, 2)


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
                    if not own[index].waiting:
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
        while any(output.waiting for output in own) or gated.gate.ready:
            for output in own:
                output.push()
            for source, records in gated.drain():
                received[source] += records
        assert received == sent, seed
        assert Counter(map(len, received)).total() == 3
