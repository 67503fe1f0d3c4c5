"""Each partitioner sends every record to the right channels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.dataflow.errors import JobError
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
    PositionedPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from penstock.runtime.serialization.record_batch import RecordBatch
from tests.runtime.network.channels import CODEC, FakeSender, Gated


def outputs(count: int) -> list[OutputChannel]:
    return [LocalOutputChannel(channel, 1000) for channel in Gated(count).channels]


def buffers(own: list[OutputChannel]) -> list[list[Any]]:
    return [output.buffer for output in own]


def test_forward_and_global_send_all_to_one() -> None:
    own = outputs(1)
    ForwardPartitioner(own).route(RecordBatch([1, 2]))
    assert buffers(own) == [[1, 2]]
    own = outputs(3)
    GlobalPartitioner(own).route(RecordBatch([1, 2]))
    assert buffers(own) == [[1, 2], [], []]


def test_broadcast_sends_all_to_each() -> None:
    own = outputs(3)
    BroadcastPartitioner(own, CODEC.copy_mutable).route(RecordBatch([1, 2]))
    assert buffers(own) == [[1, 2]] * 3


def test_broadcast_isolates_a_consumer_in_the_same_process_from_the_others() -> None:
    sender = FakeSender()
    remote = RemoteOutputChannel(sender, CODEC.encode_record_batch, 10, 1 << 20)
    (local,) = outputs(1)
    BroadcastPartitioner([local, remote], CODEC.copy_mutable).route(RecordBatch([[1]]))
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
        partitioner.route(RecordBatch([next(records) for _ in range(size)]))
    assert buffers(own) == [[2, 5], [0, 3, 6], [1, 4]]


def test_shuffle_sends_each_record_once_and_about_evenly() -> None:
    own = outputs(4)
    ShufflePartitioner(own, random.Random(5)).route(RecordBatch(list(range(4000))))
    assert sorted(record for buffer in buffers(own) for record in buffer) == list(range(4000))
    assert all(900 < len(buffer) < 1100 for buffer in buffers(own))
    assert all(buffer == sorted(buffer) for buffer in buffers(own))


@pytest.mark.parametrize("before", [0, 1, 7, 100])
@pytest.mark.parametrize(
    "create",
    [RebalancePartitioner, lambda own: ShufflePartitioner(own, random.Random())],
    ids=["rebalance", "shuffle"],
)
def test_a_restored_position_sends_records_to_the_same_outputs_again(
    create: Callable[[list[OutputChannel]], PositionedPartitioner], before: int
) -> None:
    first, second = outputs(3), outputs(3)
    partitioner, restored = create(first), create(second)
    partitioner.route(RecordBatch(list(range(before))))
    position = CODEC.decode_value(CODEC.encode_value(partitioner.position))
    for buffer in buffers(first):
        buffer.clear()
    restored.restore_position(position)
    partitioner.route(RecordBatch(list(range(100))))
    for start in range(0, 100, 20):  # in other batches
        restored.route(RecordBatch(list(range(start, start + 20))))
    assert buffers(first) == buffers(second)
    assert partitioner.position == restored.position


def test_hash_sends_equal_keys_to_one_place_whatever_their_type() -> None:
    own = outputs(4)
    partitioner = HashPartitioner(own, lambda record: record[0], 128, 4)
    records = [(key, i) for i, key in enumerate([1, "a", 1.0, True, "b", "a", 2, (1, "x")])]
    partitioner.route(RecordBatch(records))
    partitioner.route(RecordBatch([(1, "later")]))
    places = {record: i for i, buffer in enumerate(buffers(own)) for record in buffer}
    assert len({places[1, 0], places[1, 2], places[1, 3], places[1, "later"]}) == 1
    assert places["a", 1] == places["a", 5]
    assert sum(map(len, buffers(own))) == 9


def test_hash_keeps_the_order_of_each_key() -> None:
    own = outputs(3)
    partitioner = HashPartitioner(own, lambda record: record[0], 128, 3)
    partitioner.route(RecordBatch([(key, i) for i in range(50) for key in "abcdef"]))
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
            partitioner.route(RecordBatch(records))


def test_custom_sends_where_the_partitioner_says() -> None:
    own = outputs(3)
    CustomPartitioner(own, lambda r: r[0], lambda key, count: key % count).route(
        RecordBatch([(4, "a"), (2, "b")])
    )
    assert buffers(own) == [[], [(4, "a")], [(2, "b")]]


@pytest.mark.parametrize("index", [-1, 3, 100])
def test_custom_refuses_a_place_that_there_is_not(index: int) -> None:
    partitioner = CustomPartitioner(outputs(3), lambda r: r, lambda key, count: index)
    with pytest.raises(JobError, match=f"returned {index}"):
        partitioner.route(RecordBatch([1]))
