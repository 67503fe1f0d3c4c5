"""Slices and batches of Arrow batches: they are larger than those of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa

from penstock.runtime.network.output_channel import ARROW_BATCH_SIZE, RemoteOutputChannel
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.batch_sizing import COLUMNS_SECONDS, SLICE_SECONDS
from penstock.runtime.task.slice_runner import SliceRunner
from penstock.runtime.task.task_settings import TaskSettings
from tests.runtime.network.channels import CODEC, FakeSender

ROW_SECONDS = 2e-7


class Chain:
    """Takes `ROW_SECONDS` for each row."""

    root = None
    second_input: frozenset[int] = frozenset()
    operators: tuple[Any, ...] = ()
    sinks: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.now = 0.0

    def process(self, root: Any, part: RecordBatch, count: int) -> None:
        self.now += count * ROW_SECONDS


class Gate:
    def follow(self, sizer: Any) -> None:
        pass


def settled_size(make: Callable[[int], RecordBatch]) -> int:
    """Return the size of slices of a source that reads as many records as the task wants."""
    chain = Chain()
    settings = TaskSettings(lambda: 0.0, timer=lambda: chain.now, target_seconds=1.0)
    runner = SliceRunner(cast(Any, chain), cast(Any, Gate()), [], settings)
    for _ in range(60):
        runner.start(make(runner.sizer.slice), None)
        assert runner.batch is None
    return runner.sizer.slice


def test_slices_of_columns_are_longer_also_if_a_source_reads_them() -> None:
    rows = settled_size(lambda size: RecordBatch([0] * size))
    columns = settled_size(lambda size: ArrowBatch(pa.record_batch({"n": pa.nulls(size)})))
    assert abs(rows * ROW_SECONDS - SLICE_SECONDS) < 0.1 * SLICE_SECONDS
    assert abs(columns * ROW_SECONDS - COLUMNS_SECONDS) < 0.1 * COLUMNS_SECONDS


def test_an_arrow_batch_for_another_process_may_have_more_bytes_than_one_of_rows() -> None:
    sender = FakeSender()
    sender.desired_records = 1 << 20
    output = RemoteOutputChannel(sender, CODEC.encode_record_batch, 1 << 20, 8000)
    table = pa.record_batch({"n": pa.array(range(10_000))})
    for _ in range(2):
        output.append_arrow(ArrowBatch(table))
        output.seal()
        assert output.push()
    assert 800 <= output.limit <= 1000
    assert output.arrow_limit() == ARROW_BATCH_SIZE * output.limit
    sizes = [len(rows) for rows in sender.sent]
    assert sum(sizes) == 20_000
    assert ARROW_BATCH_SIZE // 2 * 1000 < max(sizes[1:]) <= 1.5 * ARROW_BATCH_SIZE * 1000
