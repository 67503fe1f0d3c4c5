"""A connector with a fault fails a test of the suite; the same connector without it passes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Batch, OutputTag, PollingSource, Split, SplitPoller, TransactionalSink
from penstock.dataflow.sink import Sink, WriterContext
from penstock.dataflow.source import SplitEnumerator
from penstock.testing.connectors import (
    Nonconformity,
    SinkConformance,
    SourceConformance,
    nonconformity,
)

# ---- sources

RECORDS = [[f"{part}-{number}" for number in range(7)] for part in "abc"]


class Lists(PollingSource):
    """Three splits with seven records each."""

    def splits(self) -> list[Any]:
        return [Split(str(index), index) for index in range(3)]

    def create_poller(self, split: Split) -> SplitPoller:
        return ListPoller(RECORDS[split.payload])


class ListPoller(SplitPoller):
    def __init__(self, records: list[Any]) -> None:
        self.records, self.next = records, 0

    def seek(self, position: Any) -> None:
        self.next = position or 0

    def poll(self, max_records: int) -> list[Any] | None:
        found = self.records[self.next : self.next + max_records]
        self.next += len(found)
        return found or None

    def position(self) -> Any:
        return self.next


class Polled(Lists):
    """Has a poller with a fault."""

    poller: type[ListPoller]

    def create_poller(self, split: Split) -> SplitPoller:
        return self.poller(RECORDS[split.payload])


class PositionTooFar(Polled):
    class poller(ListPoller):
        def position(self) -> Any:
            return self.next + 1


class PositionTooNear(Polled):
    class poller(ListPoller):
        def position(self) -> Any:
            return max(0, self.next - 1)


class PositionIsChanged(Polled):
    class poller(ListPoller):
        def __init__(self, records: list[Any]) -> None:
            super().__init__(records)
            self.shared = {"next": 0}

        def seek(self, position: Any) -> None:
            super().seek(position and position["next"])

        def position(self) -> Any:
            self.shared["next"] = self.next
            return self.shared


class RestoredPositionIsChanged(Polled):
    class poller(ListPoller):
        def __init__(self, records: list[Any]) -> None:
            super().__init__(records)
            self.place = {"next": 0}

        def seek(self, position: Any) -> None:
            self.place = position or self.place
            super().seek(self.place["next"])

        def position(self) -> Any:
            self.place["next"] = self.next
            return dict(self.place)


class PositionIsNotPlain(Polled):
    class poller(ListPoller):
        def seek(self, position: Any) -> None:
            super().seek(position and position[0])

        def position(self) -> Any:
            return (self.next,)


class SeekIsIgnored(Polled):
    class poller(ListPoller):
        def seek(self, position: Any) -> None:
            self.next = 0


class TooManyRecords(Polled):
    class poller(ListPoller):
        def poll(self, max_records: int) -> list[Any] | None:
            return super().poll(max_records + 1)


class AnotherOrderEachTime(Polled):
    class poller(ListPoller):
        def __init__(self, records: list[Any]) -> None:
            super().__init__(random.sample(records, len(records)))


class LastReadIsLost(Polled):
    class poller(ListPoller):
        def poll(self, max_records: int) -> list[Any] | None:
            found = super().poll(max_records)
            return None if self.next >= len(self.records) else found


class CursorOfAllReaders(Polled):
    class poller(ListPoller):
        cursors: dict[str, int] = {}  # noqa: RUF012

        @property
        def next(self) -> int:
            return self.cursors.get(self.records[0], 0)

        @next.setter
        def next(self, value: int) -> None:
            self.cursors[self.records[0]] = value


class FileInACycle:
    def __init__(self) -> None:
        self.files, self.cycle = os.pipe(), self

    def __del__(self) -> None:
        for file in self.files:
            os.close(file)


class LeavesAFileToTheCollector(Polled):
    class poller(ListPoller):
        def __init__(self, records: list[Any]) -> None:
            super().__init__(records)
            self.file = FileInACycle()


class CannotCloseTwice(Polled):
    class poller(ListPoller):
        def close(self) -> None:
            raise RuntimeError("closed")


class WatermarkWithoutTheFlag(Polled):
    class poller(ListPoller):
        def watermark(self) -> int:
            return 5


class SideOutputWithoutATag(Polled):
    class poller(ListPoller):
        def take_side_output(self) -> Any:
            return [(OutputTag("bad"), "a record")]


class SideOutputOfSomeReads(Polled):
    """Has a record at the side output only if a read ends behind the second record."""

    side_output_tags = (OutputTag("bad"),)

    class poller(ListPoller):
        def take_side_output(self) -> Any:
            return [(OutputTag("bad"), self.next)] if self.next == 2 else []


class CannotBeSent(Lists):
    def __init__(self) -> None:
        self.open = (number for number in range(3))


class ForgetsSplits(Lists):
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        enumerator = super().create_enumerator(parallelism)
        restore = enumerator.restore

        def forget(state: Any) -> None:
            restore({**state, "left": []})

        enumerator.restore = forget  # type: ignore[method-assign]
        return enumerator


class AssignsAgain(Lists):
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        enumerator = super().create_enumerator(parallelism)
        enumerator.restore = lambda state: enumerator.start()  # type: ignore[method-assign]
        return enumerator


class SplitsOfAParallelism(Lists):
    """Gives split i to subtask i only, so a subtask that is gone leaves its split unread."""

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        enumerator = super().create_enumerator(parallelism)
        left = [Split(str(index), index) for index in range(3)]

        def next_split(subtask: int) -> Split | None:
            own = [split for split in left if split.payload == subtask]
            return left.pop(left.index(own[0])) if own else None

        enumerator.next_split = next_split  # type: ignore[method-assign]
        return enumerator


SOURCES: list[Any] = [
    PositionTooFar,
    PositionTooNear,
    PositionIsChanged,
    RestoredPositionIsChanged,
    PositionIsNotPlain,
    SeekIsIgnored,
    TooManyRecords,
    AnotherOrderEachTime,
    LastReadIsLost,
    CursorOfAllReaders,
    LeavesAFileToTheCollector,
    CannotCloseTwice,
    WatermarkWithoutTheFlag,
    SideOutputWithoutATag,
    SideOutputOfSomeReads,
    CannotBeSent,
    ForgetsSplits,
    AssignsAgain,
    SplitsOfAParallelism,
]


def source_tests(create: Callable[[], Any]) -> SourceConformance:
    class Tests(SourceConformance):
        def create_source(self) -> Any:
            return create()

        def expected(self) -> list[Any]:
            return [record for part in RECORDS for record in part]

    return Tests()


def failure(tests: SourceConformance | SinkConformance) -> Exception | None:
    """Run the tests, and return the error of the first one that fails."""
    for name in dir(tests):
        if name.startswith("test_"):
            try:
                getattr(tests, name)()
            except Exception as error:
                return error
    return None


def test_a_source_without_a_fault_passes():
    assert failure(source_tests(Lists)) is None


@pytest.mark.parametrize("broken", SOURCES)
def test_a_broken_source_fails(broken: Any, monkeypatch):
    monkeypatch.setattr(nonconformity, "_END_SECONDS", 0)
    error = failure(source_tests(broken))
    assert error is not None
    # Errors of the source itself are raised as they are.
    own = broken in (CannotCloseTwice, WatermarkWithoutTheFlag)
    assert isinstance(error, Nonconformity) is not own, error


# ---- sinks


class Store:
    """What lies outside of the job: staged and published rows, and the keys of commits."""

    def __init__(self) -> None:
        self.staged: dict[Any, tuple[Batch, list[Any]]] = {}
        self.rows: list[Any] = []
        self.commits: set[Any] = set()


STORES: dict[str, Store] = {}


class Stored(TransactionalSink):
    """A correct sink, whose parts the mutants replace."""

    def __init__(self, name: str) -> None:
        self.name = name
        STORES.setdefault(name, Store())

    @property
    def store(self) -> Store:
        return STORES[self.name]

    def key(self, batch: Batch) -> Any:
        return batch.key

    def flush(self, records: list[Any], batch: Batch) -> Any:
        self.store.staged[self.key(batch)] = batch, list(records)

    def commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            if self.key(batch) not in self.store.commits:
                self.store.commits.add(self.key(batch))
                self.store.rows += self.store.staged.pop(self.key(batch))[1]

    def discard(self, lineage: str, uid: str, before_attempt: int) -> int:
        old = [
            key
            for key, (batch, _) in self.store.staged.items()
            if (batch.lineage, batch.uid) == (lineage, uid) and batch.attempt < before_attempt
        ]
        for key in old:
            del self.store.staged[key]
        return len(old)


class SmallBatches(Stored):
    """Is correct, too: it also writes between barriers."""

    max_records = 1


class CommitsAgain(Stored):
    def commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.store.rows += self.store.staged[self.key(batch)][1]


class VisibleAtOnce(Stored):
    def flush(self, records: list[Any], batch: Batch) -> Any:
        self.store.rows += records

    def commit(self, batches: list[Batch]) -> None:
        pass


class StagedInTheWorker(Stored):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.held: dict[str, list[Any]] = {}

    def flush(self, records: list[Any], batch: Batch) -> Any:
        self.held[batch.key] = records

    def commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.store.rows += self.held.pop(batch.key, [])


class DiscardsTooMuch(Stored):
    def discard(self, lineage: str, uid: str, before_attempt: int) -> int:
        return super().discard(lineage, uid, before_attempt + 1)


class DiscardsOfOthers(Stored):
    def discard(self, lineage: str, uid: str, before_attempt: int) -> int:
        for key, (batch, _) in list(self.store.staged.items()):
            if batch.attempt < before_attempt:
                del self.store.staged[key]
        return 0


class KeyWithoutAttempt(Stored):
    def key(self, batch: Batch) -> Any:
        return batch.lineage, batch.uid, batch.subtask, batch.number


class KeyWithoutSubtask(Stored):
    def key(self, batch: Batch) -> Any:
        return batch.lineage, batch.uid, batch.attempt, batch.number


class KeyWithoutSink(Stored):
    def key(self, batch: Batch) -> Any:
        return batch.attempt, batch.subtask, batch.number


class RemembersTheLastCommitOnly(Stored):
    def commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.key not in self.store.commits:
                self.store.commits = {batch.key}
                self.store.rows += self.store.staged[batch.key][1]


class PayloadIsNotPlain(Stored):
    def flush(self, records: list[Any], batch: Batch) -> Any:
        super().flush(records, batch)
        return {1, 2}


class ChangesRecords(Stored):
    def flush(self, records: list[Any], batch: Batch) -> Any:
        super().flush(records, batch)

    def create_writer(self, context: WriterContext) -> Any:
        writer = super().create_writer(context)
        write = writer.write

        def change(batch: list[Any]) -> None:
            write(batch)
            batch.clear()

        writer.write = change  # type: ignore[method-assign]
        return writer


class LeavesAFileToTheCollectorAsASink(Stored):
    def create_writer(self, context: WriterContext) -> Any:
        writer: Any = super().create_writer(context)
        writer.file = FileInACycle()
        return writer


class PublishesWhenItCloses(Stored):
    def create_writer(self, context: WriterContext) -> Any:
        writer: Any = super().create_writer(context)

        def close() -> None:
            self.store.rows += writer._records
            writer._records = []

        writer.close = close
        return writer


SINKS: list[Any] = [
    CommitsAgain,
    VisibleAtOnce,
    StagedInTheWorker,
    DiscardsTooMuch,
    DiscardsOfOthers,
    KeyWithoutAttempt,
    KeyWithoutSubtask,
    KeyWithoutSink,
    RemembersTheLastCommitOnly,
    PayloadIsNotPlain,
    ChangesRecords,
    LeavesAFileToTheCollectorAsASink,
    PublishesWhenItCloses,
]


def sink_tests(create: Callable[[str], Sink]) -> SinkConformance:
    class Tests(SinkConformance):
        def create_sink(self, place: Path) -> Sink:
            return create(str(place))

        def read_output(self, place: Path) -> list[Any]:
            return STORES[str(place)].rows

    return Tests()


@pytest.mark.parametrize("sink", [Stored, SmallBatches])
def test_a_sink_without_a_fault_passes(sink: Any):
    assert failure(sink_tests(sink)) is None


@pytest.mark.parametrize("broken", SINKS)
def test_a_broken_sink_fails(broken: Any, monkeypatch):
    monkeypatch.setattr(nonconformity, "_END_SECONDS", 0)
    assert failure(sink_tests(broken)) is not None
