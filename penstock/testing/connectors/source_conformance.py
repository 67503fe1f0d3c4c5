"""The tests that each source should pass: `SourceConformance`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.dataflow.source import ReaderContext, Source, Split
from penstock.testing.connectors.nonconformity import (
    Nonconformity,
    as_in_manifest,
    in_other_process,
    require_no_open_files,
    require_same,
)
from penstock.testing.connectors.source_run import SourceRun, checked_read, emitted

#: The greatest number of places at which a test takes a snapshot.
_PLACES = 40
_CONTEXT = ReaderContext("source", 0, 1)


class SourceConformance(ABC):
    """Tests of a source, for a test class that inherits them.

        class TestRows(SourceConformance):
            def create_source(self):
                return RowSource("test.db")

            def expected(self):
                return [1, 2, 3]

    A test that fails raises `Nonconformity`, whose message describes the defect. The tests read
    with the source's own enumerator and readers, in this thread, and do not start a job.

    Attributes:
        parallelisms: the numbers of subtasks to test with.
        limit: the number of records to read from a source that never ends; None if it ends. If
            `expected` is defined, too, it has exactly this number of records, and the source has no
            others.
    """

    parallelisms: Sequence[int] = (1, 2, 3)
    limit: int | None = None

    @abstractmethod
    def create_source(self) -> Source:
        """Return a new source, as a program would. It must return the same records each time."""

    def expected(self) -> Sequence[Any] | None:
        """Return all records, in any order; None if they are not known.

        A record of a side output is a pair of its tag and itself.
        """
        return None

    # ---- tests

    def test_each_record_is_read_once_at_any_parallelism(self) -> None:
        """Read everything with different numbers of subtasks and sizes of batches."""
        expected = self._expected()
        for parallelism in self.parallelisms:
            for size in (1, 3, 1_000):
                run = SourceRun(self.create_source(), parallelism, None, size)
                what = f"with {parallelism} subtasks and reads of {size} records"
                self._require(what, run.run(self.limit), expected)

    def test_reading_from_each_position_gives_the_rest_of_the_split(self) -> None:
        """Read each split again from each position, in another process."""
        for split in self._splits():
            for size in (1, 2, 7):
                records, positions = self._read(split, size)
                for done, position in _sample(positions):
                    rest, _ = self._read(split, size, position, len(records) - done)
                    if rest != records[done:]:
                        raise Nonconformity(
                            f"split {split.id!r} has {_shown(records[done:])} behind position "
                            f"{position!r}, and reading from there gave {_shown(rest)}"
                        )

    def test_a_position_does_not_change_when_reading_goes_on(self) -> None:
        """Compare each position with a copy, also the one at which a reader was opened."""
        for split in self._splits():
            _, positions = self._read(split, 1)
            for done, start in [(0, None), *_sample(positions, 4)]:
                self._require_constant_positions(split, start, done)

    def _require_constant_positions(self, split: Split, start: Any, done: int) -> None:
        """Read a split from a position, and compare the positions with copies of before.

        Arguments:
            split: the split.
            start: the position; None for the start of the split.
            done: the number of records before the position.
        """
        source = in_other_process(self.create_source())
        reader = source.create_reader(_CONTEXT)
        kept = [(start, copy.deepcopy(start))]
        reader.open(split, start)
        for _ in range(_PLACES):
            if self._is_enough(done):
                break
            read = checked_read(reader, source, 1)
            done += len(emitted(read))
            kept.append((read.position, copy.deepcopy(read.position)))
            if read.finished:
                break
        reader.close()
        for position, before in kept:
            if position != before:
                raise Nonconformity(
                    f"the position {before!r} has become {position!r} while the reader went on: "
                    f"a snapshot may be written of it at any time, so make a new object each time"
                )

    def test_a_snapshot_between_any_two_reads_can_be_restored_at_any_parallelism(self) -> None:
        """Stop after each read, and continue from a snapshot with other subtasks."""
        expected = self._expected()
        for before in self.parallelisms:
            for place, stops in enumerate(_sample(range(self._steps(before)))):
                run = SourceRun(self.create_source(), before)
                for _ in range(stops):
                    run.step()
                snapshot = run.snapshot()
                run.step()  # is lost with the attempt
                after = self.parallelisms[place % len(self.parallelisms)]
                restored = SourceRun(self.create_source(), after, snapshot, 2)
                found = restored.run(self.limit)
                run.close()
                self._require(
                    f"restored after {stops} reads, with {before} subtasks before and {after} then",
                    found,
                    expected,
                )

    def test_a_restored_run_can_be_restored_again(self) -> None:
        """After each read, take a snapshot and restart from it."""
        snapshot, expected = None, self._expected()
        for number in range(_PLACES):
            parallelism = self.parallelisms[number % len(self.parallelisms)]
            run = SourceRun(self.create_source(), parallelism, snapshot)
            going = run.step()
            snapshot = run.snapshot()
            run.close()
            if not going or self._is_enough(len(snapshot.emitted)):
                break
        run = SourceRun(self.create_source(), 1, snapshot, 100)
        self._require("after many restarts", run.run(self.limit), expected)

    def test_an_old_reader_that_reads_on_changes_nothing(self) -> None:
        """Continue to read in a dead attempt while the next attempt runs."""
        expected = self._expected()
        old = SourceRun(self.create_source(), 2)
        old.step()
        new = SourceRun(self.create_source(), 2, old.snapshot())
        while new.step():
            old.step()
            if self._is_enough(len(new.emitted)):
                break
        old.close()
        self._require("beside readers of an older attempt", new.run(self.limit), expected)

    def test_readers_can_be_closed_at_any_time(self) -> None:
        """Close readers before a split, within it, and twice."""
        for split in self._splits():
            for reads in (None, 0, 1):
                source = in_other_process(self.create_source())
                reader = source.create_reader(_CONTEXT)
                if reads is not None:
                    reader.open(split, None)
                    for _ in range(reads):
                        reader.read(1)
                reader.close()
                reader.close()

    def test_what_is_closed_leaves_no_file_open(self) -> None:
        """Read and close, without the garbage collector, which workers use rarely."""
        require_no_open_files(lambda: SourceRun(self.create_source(), 2).run(self.limit))

    # ---- parts of the tests

    def _expected(self) -> Sequence[Any]:
        expected = self.expected()
        if expected is None:
            return SourceRun(self.create_source(), 1, None, 100).run(self.limit)
        return expected

    def _require(self, what: str, found: Sequence[Any], expected: Sequence[Any]) -> None:
        if self.limit is None or self.expected() is not None:
            require_same(what, found, expected)
            return
        # The positions in the splits differ between runs, but no record may be read twice.
        if len(found) < self.limit:
            raise Nonconformity(f"{what}: the source ended after {len(found)} records")
        seen = list(map(repr, found))
        doubled = sorted({one for one in seen if seen.count(one) > 1})
        if doubled and len(set(map(repr, expected))) == len(expected):
            raise Nonconformity(f"{what}: {doubled[:3]} came twice")

    def _is_enough(self, count: int) -> bool:
        return self.limit is not None and count >= self.limit

    def _splits(self) -> list[Split]:
        """Return all splits of the source. An unbounded source returns those of the start."""
        enumerator = in_other_process(self.create_source()).create_enumerator(1)
        enumerator.start()
        found: list[Split] = []
        while (split := enumerator.next_split(0)) is not None and len(found) < 1_000:
            found.append(split)
        enumerator.close()
        return found

    def _read(
        self, split: Split, size: int, position: Any = None, wanted: int | None = None
    ) -> tuple[list[Any], list[tuple[int, Any]]]:
        """Read a split from a position.

        Returns:
            The records, and a list of pairs: the position after each read, and the number of
            records before that position.
        """
        source = in_other_process(self.create_source())
        reader = source.create_reader(_CONTEXT)
        reader.open(split, position)
        records: list[Any] = []
        positions: list[tuple[int, Any]] = []
        limit = self.limit if wanted is None else wanted
        for _ in range(10_000):
            if self.limit is not None and limit is not None and len(records) >= limit:
                break
            read = checked_read(reader, source, size)
            records += emitted(read)
            if read.finished:
                break
            positions.append((len(records), as_in_manifest("position", read.position)))
        reader.close()
        return (records if self.limit is None else records[:limit]), positions

    def _steps(self, parallelism: int) -> int:
        """Return the number of steps that are needed to read all records."""
        run, steps = SourceRun(self.create_source(), parallelism), 1
        while run.step() and not self._is_enough(len(run.emitted)) and steps < 100_000:
            steps += 1
        run.close()
        return steps


def _sample(places: Sequence[Any], count: int = _PLACES) -> Iterator[Any]:
    """Yield all places if there are few; otherwise about `count` places at equal distances."""
    step = max(1, len(places) // count)
    return iter(places[::step])


def _shown(records: Sequence[Any]) -> str:
    return f"{list(records[:3])!r}{' …' if len(records) > 3 else ''} ({len(records)} records)"
