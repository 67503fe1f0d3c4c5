"""The tests that each sink should pass: `SinkConformance`."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.sink import Committable, Sink
from penstock.testing.connectors.nonconformity import (
    in_other_process,
    require_no_open_files,
    require_same,
)
from penstock.testing.connectors.sink_run import SinkJob

#: The number of records that each test writes.
_RECORDS = 17
_IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class SinkConformance(ABC):
    """Tests of a sink, for a test class that inherits them.

        class TestRows(SinkConformance):
            def create_sink(self, place):
                return RowSink(place / "test.db")

            def read_output(self, place):
                return rows_of(place / "test.db")

    A sink with a committer must publish each record once, and only after its snapshot. A sink
    without a committer may write a record again after a failure. Writing it again must have no
    effect, so `read_output` must still return each record once. A test that fails raises
    `Nonconformity`, whose message describes the defect.

    Attributes:
        parallelisms: the numbers of subtasks to test with.
        shared: whether two sinks may write to one place.
        whole_snapshots: whether each commit has all output of a snapshot, as the engine promises. A
            `StagedSink` relies on it. Otherwise commits of a part are also tested.
        parent: the folder in which places are made; None for Python's temporary folder. By default
            it is in memory, if there is such a folder.
    """

    parallelisms: Sequence[int] = (1, 3, 2)
    shared: bool = True
    whole_snapshots: bool = False
    parent: str | None = _IN_MEMORY

    @abstractmethod
    def create_sink(self, place: Path) -> Sink:
        """Return a new sink, as a program would.

        Arguments:
            place: an empty folder of this test. A sink that writes elsewhere can use its name,
                which has only letters, digits and `_`, and which no other place has.
        """

    @abstractmethod
    def read_output(self, place: Path) -> Sequence[Any]:
        """Return all records that a reader of the sink's output sees now, in any order."""

    def record(self, number: int) -> Any:
        """Return a record that the sink accepts. Different numbers must give different records."""
        return f"record {number}"

    # ---- tests

    def test_each_record_is_published_once(self) -> None:
        """Write and commit with different numbers of subtasks."""
        for parallelism in self.parallelisms:
            with self._job() as (place, job):
                for _ in job.begin(parallelism).steps():
                    pass
                self._require(f"with {parallelism} subtasks", place, job.records)

    def test_nothing_is_visible_before_its_snapshot_is_complete(self) -> None:
        """Read the output after each step. Sinks without a committer may show records earlier."""
        with self._job() as (place, job):
            if in_other_process(job.sink).create_committer() is None:
                return
            for step in job.begin(2).steps():
                self._require(f"after a {step}", place, job.records[: job.committed])

    def test_kills_between_any_two_steps_lose_and_double_nothing(self) -> None:
        """Kill the job after each step, and the next attempt soon afterwards."""
        steps, kills = self._count_steps(), 0
        for kill in range(steps):
            with self._job() as (place, job):
                at = "the start"
                for attempt, limit in enumerate((kill, kill % 7, None)):
                    parallelism = self.parallelisms[attempt % len(self.parallelisms)]
                    for number, step in enumerate(job.begin(parallelism).steps(), 1):
                        if number == limit:
                            at, kills = step if attempt == 0 else at, kills + 1
                            break
                self._require(f"killed after step {kill}, a {at}", place, job.records)
        assert kills >= steps - 1

    def test_a_commit_can_be_repeated(self) -> None:
        """Commit the same output again: in parts, by other committers, and after later output."""
        with self._job() as (place, job):
            before: list[Committable] = []
            for step in job.begin(2).steps():
                if step == "manifest":
                    before += job.durable.pending
                if step in ("commit", "confirm"):
                    last = [one for one in before if one.snapshot == before[-1].snapshot]
                    first = [one for one in before if one.snapshot == before[0].snapshot]
                    for committables in (last, first, before):
                        self._commit(job, committables)
                    self._require("after repeated commits", place, job.records[: job.committed])
            self._require("after repeated commits", place, job.records)

    def test_an_older_attempt_that_writes_and_commits_late_changes_nothing(self) -> None:
        """Let a worker of a dead attempt continue while the next attempt runs, or be fenced."""
        for kill in range(0, self._count_steps(), 3):
            with self._job() as (place, job):
                old = job.begin(2)
                old_steps = old.steps()
                late: tuple[Committable, ...] = ()
                for _ in range(kill):
                    next(old_steps)
                    late = job.durable.pending or late
                old.replace()
                old_steps = _until_fenced(old_steps)
                for step in job.begin(3).steps():
                    if next(old_steps, None) == "stage" and step == "confirm":
                        self._commit(job, list(late))
                for _ in old_steps:
                    pass
                self._commit(job, list(late))
                what = f"beside an attempt that was replaced after step {kill}"
                self._require(what, place, job.records)

    def test_output_that_waits_for_its_commit_is_never_cleaned(self) -> None:
        """Clean up between the staging and the commit, also for another sink and lineage."""
        with self._job() as (place, job):
            for step in job.begin(2).steps():
                committer = job.create_committer()
                if step in ("stage", "manifest") and committer is not None:
                    committer.clean(job.lineage, job.uid, job.attempts)
                    committer.clean(job.lineage, "another sink", job.attempts + 1)
                    committer.clean("ffffffff", job.uid, job.attempts + 1)
            self._require("with clean-ups between staging and commit", place, job.records)

    def test_two_sinks_and_two_jobs_may_share_a_place(self) -> None:
        """Write with another uid, and with another lineage, to one place at the same time."""
        if not self.shared:
            return
        with self._job() as (place, job):
            others = [self._new_job(place, 100), self._new_job(place, 200)]
            others[0].uid, others[0].lineage = "sink-2", job.lineage
            running = [one.begin(2).steps() for one in (job, *others)]
            while running:
                running = [steps for steps in running if next(steps, None) is not None]
            records = [record for one in (job, *others) for record in one.records]
            self._require("with three sinks in one place", place, records)
            for one in others:
                one.close()

    def test_records_behind_the_last_barrier_are_discarded_when_a_writer_closes(self) -> None:
        """Close writers with and without records, and twice."""
        with self._job() as (place, job):
            for stop in ("open", "write"):
                attempt = job.begin(1)
                for step in attempt.steps():
                    if step == stop:
                        break
            job.close()
            job.close()
            self._require("before the first barrier", place, [])

    def test_what_is_closed_leaves_no_file_open(self) -> None:
        """Run and close jobs, without the garbage collector, which workers use rarely."""

        def run() -> None:
            with self._job() as (_, job):
                for _ in job.begin(2).steps():
                    pass

        require_no_open_files(run)

    # ---- parts of the tests

    @contextmanager
    def _job(self) -> Iterator[tuple[Path, SinkJob]]:
        """Create a job that writes to a new place."""
        with tempfile.TemporaryDirectory(prefix="conformance-", dir=self.parent) as folder:
            # The name is that of no other place, and could be that of a table.
            place = Path(folder) / f"place_{Path(folder).name.rpartition('-')[2]}"
            place.mkdir()
            job = self._new_job(place, 0)
            try:
                yield place, job
            finally:
                job.close()

    def _new_job(self, place: Path, first: int) -> SinkJob:
        sink, staging = self.create_sink(place), place.parent / f"staging-{first}"
        whole = self.whole_snapshots
        return SinkJob(sink, self._records(first), staging, whole_snapshots=whole)

    def _records(self, first: int) -> list[Any]:
        return [self.record(number) for number in range(first, first + _RECORDS)]

    def _count_steps(self) -> int:
        with self._job() as (_, job):
            return sum(1 for _ in job.begin(self.parallelisms[0]).steps())

    def _require(self, what: str, place: Path, records: Sequence[Any]) -> None:
        require_same(what, self.read_output(place), records)

    @staticmethod
    def _commit(job: SinkJob, committables: list[Committable]) -> None:
        committer = job.create_committer()
        if committables and committer is not None:
            committer.commit(committables)


def _until_fenced(steps: Iterator[str]) -> Iterator[str]:
    """Yield the steps of an old attempt, until its successor makes it fail."""
    with suppress(JobError):
        yield from steps
