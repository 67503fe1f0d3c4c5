"""The base classes of own connectors, in jobs in this process."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import (
    Batch,
    BatchSink,
    JobError,
    KeyedProcessFunction,
    PollingSource,
    Split,
    SplitPoller,
    StreamExecutionEnvironment,
    TransactionalSink,
)
from penstock.dataflow.sink import Committable, WriterContext
from penstock.dataflow.source import ReaderContext
from penstock.testing import Barrier, CollectingSink, Fail, TestSource


class Counter(PollingSource):
    """Reads the numbers below ten of each split; each is an event time, and a watermark."""

    emits_watermarks = True

    def __init__(self, blocking: bool = True, bounded: bool = True) -> None:
        self.blocking, self.bounded = blocking, bounded

    def splits(self) -> list[Any]:
        return ["a", Split("b", 100)]

    def create_poller(self, split: Split) -> SplitPoller:
        return CountingPoller(split.payload or 0, self.bounded)


class CountingPoller(SplitPoller):
    def __init__(self, first: int, bounded: bool) -> None:
        self.first, self.bounded, self.empty = first, bounded, True

    def seek(self, position: Any) -> None:
        self.next = position or 0

    def poll(self, max_records: int) -> list[Any] | None:
        self.empty = not self.empty
        if self.empty:
            return []  # each second time there is nothing
        if self.next == 10:
            return None
        self.next += 1
        return [self.first + self.next - 1]

    def position(self) -> Any:
        return self.next

    def timestamp(self, record: Any) -> int:
        return int(record)

    def watermark(self) -> int | None:
        return self.first + self.next - 2


class Times(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark() < value


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment().set_parallelism(parallelism).set_in_process()
    env.enable_checkpointing(5)
    return env


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_polled_source_has_event_times_and_watermarks(blocking: bool, bounded: bool):
    source = Counter(blocking, bounded)
    source.poll_seconds = 0.001
    stream = environment().from_source(source).key_by(lambda value: value).process(Times())
    found = sorted(stream.execute_and_collect())
    assert found == [(value, value, True) for value in [*range(10), *range(100, 110)]]


def test_new_splits_are_found_and_known_ones_are_not_read_again(tmp_path: Path):
    class Found(Counter):
        discovery_seconds = 0.0

        def splits(self) -> list[Any]:
            return [path.name for path in tmp_path.iterdir()]

    (tmp_path / "a").touch()
    enumerator = Found().create_enumerator(1)
    enumerator.start()
    assert enumerator.next_split(0) == Split("a")
    assert enumerator.next_split(0) is None and not enumerator.exhausted
    (tmp_path / "b").touch()
    state = enumerator.snapshot()
    restored = Found().create_enumerator(2)
    restored.restore(state)
    assert restored.next_split(1) == Split("b")
    assert restored.next_split(1) is None


def test_a_poller_that_returns_no_list_is_refused():
    class Wrong(Counter):
        def create_poller(self, split: Split) -> SplitPoller:
            poller = CountingPoller(0, True)
            poller.poll = lambda max_records: (1, 2)  # type: ignore
            return poller

    reader = Wrong().create_reader(ReaderContext("uid", 0, 1))
    reader.open(Split("a"), None)
    with pytest.raises(JobError, match="poll returned a tuple"):
        reader.read(10)


CONTEXT = WriterContext("uid", "Sink", 0, 1, 64, "abc")
WRITTEN: list[tuple[str, list[Any]]] = []


class Remember(BatchSink):
    max_records = 4

    def open(self, context: WriterContext) -> None:
        WRITTEN.append(("open", [context.subtask]))

    def flush(self, records: list[Any], batch: Batch) -> Any:
        WRITTEN.append((batch.key, records))

    def close(self) -> None:
        WRITTEN.append(("close", []))


def test_a_batch_is_written_at_the_barrier_or_when_it_is_large():
    WRITTEN.clear()
    writer = Remember().create_writer(CONTEXT)
    writer.open()
    assert writer.prepare(1) is None
    writer.write([1, 2])
    writer.write([3, 4, 5])
    assert [records for _, records in WRITTEN] == [[0], [1, 2, 3, 4, 5]]
    writer.write([6])
    finish = writer.prepare(2)
    writer.write([7])
    assert finish is not None and finish() == []
    writer.close()
    assert WRITTEN[2:] == [(f"{Batch.prefix('abc', 'uid')}64-0-1", [6]), ("close", [])]


class Staged(TransactionalSink):
    max_records = 2
    rows: list[Any] = []  # noqa: RUF012
    threads: set[Any] = set()  # noqa: RUF012

    def flush(self, records: list[Any], batch: Batch) -> Any:
        self.threads.add(threading.get_ident())
        return records

    def commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.rows += [(batch.number, batch.payload)]


def test_what_flush_returns_reaches_the_commit():
    Staged.rows.clear()
    env = StreamExecutionEnvironment().set_parallelism(1).set_in_process()
    script = ["a", "b", Barrier, "c", Fail, "d"]
    env.from_source(TestSource(script)).sink_to(Staged())
    env.execute()
    assert [record for _, payload in Staged.rows for record in payload] == ["a", "b", "c", "d"]


def test_a_polled_source_is_read_once_although_the_job_fails(tmp_path: Path):
    failed = tmp_path / "failed"

    def fail_once(value: int) -> int:
        if value == 105 and not failed.exists():
            failed.touch()
            raise ValueError("once")
        return value

    env, sink = environment(), CollectingSink()
    source = Counter()
    source.poll_seconds = 0.001
    env.from_source(source).map(fail_once).sink_to(sink)
    assert len(env.execute().restarts) == 1
    assert sorted(sink) == [*range(10), *range(100, 110)]


@pytest.mark.parametrize("uid", ["rows", "a/b", "../x", "ä:*?", "x" * 300, "\ud800", ""])
def test_the_key_of_a_batch_is_a_name_of_a_file_and_no_other_batch_has_it(uid: str, tmp_path: Path):
    places = [("0" * 16, uid), ("1" * 16, uid), ("0" * 16, uid + "_"), ("0" * 16, "Rows")]
    batches = [
        Batch(lineage, name, subtask, attempt, number)
        for lineage, name in places
        for subtask in (0, 1, 11)
        for attempt in (1, 11)
        for number in (0, 1, 11)
    ]
    keys = [batch.key for batch in batches]
    assert len({key.lower() for key in keys}) == len(keys)
    for key, batch in zip(keys, batches, strict=True):
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,120}", key)
        assert key.startswith(Batch.prefix(batch.lineage, batch.uid))
        (tmp_path / key).touch(exist_ok=False)


def test_a_batch_of_an_older_snapshot_is_committed_under_its_older_key():
    class Keys(TransactionalSink):
        keys: ClassVar[list[str]] = []

        def flush(self, records: list[Any], batch: Batch) -> Any:
            return batch.key

        def commit(self, batches: list[Batch]) -> None:
            self.keys += [batch.key for batch in batches]

    old = {"number": 3, "payload": None}
    Keys().create_committer().commit([Committable("aa", "rows/1", 2, 9, 64, old)])
    assert Keys.keys.pop() == "aa/rows/1/64/2/3"
    writer = Keys().create_writer(WriterContext("rows/1", "rows", 2, 3, 64, "aa"))
    writer.write(["x"])
    finish = writer.prepare(9)
    assert finish is not None
    [new] = finish()
    Keys().create_committer().commit([Committable("aa", "rows/1", 2, 9, 64, new)])
    assert Keys.keys == [new["payload"]] and "/" not in new["payload"]
