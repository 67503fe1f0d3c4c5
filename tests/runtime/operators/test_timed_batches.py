"""Records keep their event times in every operator and partitioner, with inlined code and without.

The naive second implementation pairs each record with its time, and processes one record at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.runtime.codegen import set_enabled
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.output_channel import LocalOutputChannel, OutputChannel
from penstock.runtime.network.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    HashPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
    StreamPartitioner,
)
from penstock.runtime.operators.columnar_fusion import fused
from penstock.runtime.serialization.record_batch import RecordBatch
from tests.runtime.network.channels import CODEC, Gated
from tests.runtime.operators.test_operators import operator

KINDS: list[tuple[OperatorSpec, Callable[..., Any], Callable[[Any], list[Any]]]] = [
    (specs.MAP, lambda r: (r[1], r[0]), lambda r: [(r[1], r[0])]),
    (specs.FILTER, lambda r: r[1] % 2, lambda r: [r] if r[1] % 2 else []),
    (
        specs.FLAT_MAP,
        lambda r: [(r[0], i) for i in range(r[1] % 4)],
        lambda r: [(r[0], i) for i in range(r[1] % 4)],
    ),
    (specs.FLAT_MAP, lambda r: (x for x in [r, r]), lambda r: [r, r]),
]


@pytest.fixture(params=[True, False], ids=["inlined", "plain"])
def codegen(request: Any) -> Iterator[bool]:
    set_enabled(request.param)
    yield request.param
    set_enabled(True)


def batches(seed: int) -> Iterator[RecordBatch]:
    """Batches by row and by column, with and without event times."""
    rng = random.Random(seed)
    for _ in range(20):
        rows = [(rng.choice("abc"), rng.randrange(50)) for _ in range(rng.randrange(1, 9))]
        times = None if rng.random() < 0.3 else [rng.randrange(-9, 99) for _ in rows]
        if rng.random() < 0.5:
            yield RecordBatch.of_columns([list(c) for c in zip(*rows, strict=True)], times)
        else:
            yield RecordBatch(rows, None, times)


def pairs(batch: RecordBatch) -> list[tuple[Any, int]]:
    return list(zip(batch.rows(), batch.times(), strict=True))


@pytest.mark.usefixtures("codegen")
@pytest.mark.parametrize(("kind", "function", "naive"), KINDS)
def test_an_operator_gives_what_it_emits_the_time_of_the_record(
    kind: OperatorSpec, function: Any, naive: Callable[[Any], list[Any]]
) -> None:
    running = operator(kind, function)
    for batch in batches(3):
        expected = [(made, time) for record, time in pairs(batch) for made in naive(record)]
        out = running.process(batch)
        assert pairs(out) == expected
        assert (out.timestamps is None) == (batch.timestamps is None)


@pytest.mark.usefixtures("codegen")
@pytest.mark.parametrize("kind", [specs.KEYED_REDUCE, specs.KEYED_COUNT])
def test_a_keyed_operator_keeps_the_times(kind: OperatorSpec) -> None:
    timed = operator(kind, lambda a, b: (a[0], a[1] + b[1]))
    plain = operator(kind, lambda a, b: (a[0], a[1] + b[1]))
    for batch in batches(4):
        out = timed.process(batch)
        assert out.rows() == plain.process(RecordBatch(batch.rows())).rows()
        assert out.timestamps == batch.timestamps


def queued(outputs: list[OutputChannel]) -> list[list[tuple[Any, int]]]:
    found = []
    for output in outputs:
        output.seal()
        found.append(
            [pair for b in output.sealed if isinstance(b, RecordBatch) for pair in pairs(b)]
        )
    return found


def channels(count: int) -> list[OutputChannel]:
    made: list[InputChannel] = Gated(count).channels
    return [LocalOutputChannel(channel, 1000) for channel in made]


PARTITIONERS: list[Callable[[list[OutputChannel]], StreamPartitioner]] = [
    lambda own: ForwardPartitioner(own[:1]),
    GlobalPartitioner,
    lambda own: BroadcastPartitioner(own, CODEC.copy_mutable),
    RebalancePartitioner,
    lambda own: ShufflePartitioner(own, random.Random(5)),
    lambda own: HashPartitioner(own, lambda r: r[0], 128, 3),
    lambda own: CustomPartitioner(own, lambda r: r[1], lambda key, count: key % count),
]


@pytest.mark.usefixtures("codegen")
@pytest.mark.parametrize("make", PARTITIONERS)
def test_a_partitioner_sends_each_record_with_its_time(
    make: Callable[[list[OutputChannel]], StreamPartitioner],
) -> None:
    timed, plain = channels(3), channels(3)
    one, other = make(timed), make(plain)
    everything: set[tuple[Any, int]] = set()
    for batch in batches(5):
        one.route(batch)
        other.route(RecordBatch(batch.rows()))
        everything |= set(pairs(batch))
    ours, theirs = queued(timed), queued(plain)
    assert [[record for record, _ in o] for o in ours] == [[r for r, _ in t] for t in theirs]
    assert all(time == NO_TIMESTAMP for share in theirs for _, time in share)
    assert {pair for share in ours for pair in share} == everything


def test_a_fused_loop_routes_what_its_two_parts_route() -> None:
    one_outputs, two_outputs = channels(2), channels(2)
    one = fused(
        operator(specs.MAP, lambda r: (r[0], 1, r[1])),
        HashPartitioner(one_outputs, lambda r: r[0], 128, 2),
    )
    assert one is not None
    two = operator(specs.MAP, lambda r: (r[0], 1, r[1]))
    partitioner = HashPartitioner(two_outputs, lambda r: r[0], 128, 2)
    for batch in batches(6):
        one.process(batch)
        partitioner.route(two.process(batch))
    assert queued(one_outputs) == queued(two_outputs)


def test_the_codec_returns_the_times_and_reads_batches_without_them() -> None:
    for batch in batches(7):
        again = CODEC.decode_record_batch(CODEC.encode_record_batch(batch))
        assert pairs(again) == pairs(batch)
        assert (again.timestamps is None) == (batch.timestamps is None)
        assert CODEC.decode_batch(CODEC.encode_record_batch(batch)) == batch.rows()
