"""Run a sink as a job does, step by step: write, prepare, stage, publish the manifest, commit."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import (
    Committable,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
)
from penstock.testing.connectors.nonconformity import (
    Nonconformity,
    as_in_manifest,
    in_other_process,
)

#: The number of records before each barrier.
_BETWEEN_BARRIERS = 5
#: The numbers of the lineages of this process. Each job has a lineage of its own, so that a sink
#: with one table of commits for all jobs of a database is not accused of losing records.
_LINEAGES = itertools.count(1)


@dataclass(frozen=True)
class Durable:
    """The content of the newest manifest.

    Arguments:
        position: the number of records before the barrier.
        pending: the output whose commit is not confirmed.
        snapshot: the number of the snapshot.
    """

    position: int = 0
    pending: tuple[Committable, ...] = ()
    snapshot: int = 0


@dataclass
class SinkJob:
    """A job that writes records to a sink, over all its attempts.

    Arguments:
        sink: the sink, as the program has created it.
        records: the records, in the order in which the source emits them.
        staging: the folder of the job for staged output. It may not exist yet.
        uid: the uid of the sink's operator.
        lineage: the id of the lineage, which no other job has.
        whole_snapshots: whether the engine's promise holds that a commit has all output of a
            snapshot. Otherwise a commit may also have a part of it, as if it was interrupted.
    """

    sink: Sink
    records: Sequence[Any]
    staging: Path
    uid: str = "sink-1"
    lineage: str = field(default_factory=lambda: f"0a1b2c3d{next(_LINEAGES):08x}")
    whole_snapshots: bool = False
    durable: Durable = field(default_factory=Durable)
    #: The number of records that are committed.
    committed: int = 0
    attempts: int = 0
    snapshots: int = 0
    writers: list[SinkWriter] = field(default_factory=list)
    #: The output that writers prepared but did not stage, because the attempt was killed.
    prepared: list[Callable[[], list[Any]]] = field(default_factory=list)
    #: The committers that were created.
    committers: list[Committer] = field(default_factory=list)

    def create_committer(self) -> Committer | None:
        """Return the committer of a JobManager that starts from the newest manifest."""
        committer = in_other_process(self.sink).create_committer()
        if committer is not None:
            committer.open(
                CommitterContext(
                    "Sink", self.lineage, self.durable.snapshot, staging=(self.staging,)
                )
            )
            self.committers.append(committer)
        return committer

    def begin(self, parallelism: int) -> Attempt:
        """Return the next attempt, which starts from the newest manifest."""
        self.attempts += 10  # attempts have the numbers of reserved snapshots, with gaps
        return Attempt(self, self.attempts, parallelism)

    def next_snapshot(self) -> int:
        """Return a number that no other snapshot has."""
        self.snapshots += 1
        return self.snapshots

    def publish(self, durable: Durable) -> None:
        """Make a manifest durable."""
        self.durable = durable

    def confirm(self) -> None:
        """Record that the output of the newest manifest is published."""
        self.durable = Durable(self.durable.position, (), self.durable.snapshot)

    def set_committed(self, position: int) -> None:
        """Record the number of records that `commit` has published."""
        self.committed = position

    def own(self, writers: list[SinkWriter]) -> None:
        """Keep the writers of an attempt, to close them at the end."""
        self.writers += writers

    def close(self) -> None:
        """Close the writers of all attempts, including the killed attempts."""
        while self.prepared:
            with suppress(Exception):
                self.prepared.pop()()
        for writer in self.writers:
            writer.close()
        while self.committers:
            self.committers.pop().close()


class Attempt:
    """One attempt, whose steps a generator runs. To kill it, do not request the next step.

    Arguments:
        job: the job.
        number: the number of the attempt.
        parallelism: the number of writers.
    """

    def __init__(self, job: SinkJob, number: int, parallelism: int) -> None:
        self._job, self._number = job, number
        self._committer = job.create_committer()
        self._sinks = [in_other_process(job.sink) for _ in range(parallelism)]
        #: Output that was staged for aborted snapshots.
        self._unacknowledged: list[Committable] = []
        #: Whether a newer attempt runs, so that the JobManager ignores this one.
        self._replaced = False

    def replace(self) -> None:
        """Make this attempt an old one: it continues to write and stage, but publishes nothing."""
        self._replaced = True

    def steps(self) -> Iterator[str]:
        """Run the attempt, and yield the name of each step after it."""
        yield from self._recover()
        writers = self._open()
        yield "open"
        position = self._job.durable.position
        while position < len(self._job.records):
            part = self._job.records[position : position + _BETWEEN_BARRIERS]
            yield from self._write(writers, part)
            position += len(part)
            yield from self._snapshot(writers, position)
        if self._unacknowledged:
            yield from self._snapshot(writers, position, final=True)
        if not self._replaced:
            yield from self._finish()
        for writer in writers:
            writer.close()

    def _recover(self) -> Iterator[str]:
        job = self._job
        if job.durable.pending:
            yield from self._commit(job.durable)
        if self._committer is not None:
            self._committer.clean(job.lineage, job.uid, self._number)
            yield "clean"

    def _open(self) -> list[SinkWriter]:
        job, count = self._job, len(self._sinks)
        place = (count, self._number, job.lineage, MetricGroup(), job.staging)
        writers = [
            sink.create_writer(WriterContext(job.uid, "Sink", index, *place))
            for index, sink in enumerate(self._sinks)
        ]
        job.own(writers)
        for writer in writers:
            writer.open()
        return writers

    def _write(self, writers: list[SinkWriter], records: Sequence[Any]) -> Iterator[str]:
        for index, writer in enumerate(writers):
            own = list(records[index :: len(writers)])
            for batch in (own[:2], own[2:]):
                before = copy.deepcopy(batch)
                if writer.per_record is None:
                    writer.write(batch)
                else:
                    for record in batch:
                        writer.per_record(record)
                if batch != before:
                    raise Nonconformity(f"the writer has changed its records: {before} to {batch}")
            writer.flush()
            yield "write"

    def _snapshot(
        self, writers: list[SinkWriter], position: int, *, final: bool = False
    ) -> Iterator[str]:
        job = self._job
        number = job.next_snapshot()
        finishers: list[Callable[[], list[Any]] | None] = []
        for writer in writers:
            finish = writer.prepare(number)
            finishers.append(finish)
            if finish is not None:
                job.prepared.append(finish)
            yield "prepare"
        for subtask, finish in enumerate(finishers):
            if finish is not None:
                job.prepared.remove(finish)
            payloads = [] if finish is None else finish()
            self._unacknowledged += [
                Committable(
                    job.lineage,
                    job.uid,
                    subtask,
                    number,
                    self._number,
                    as_in_manifest("payload of a committable", payload),
                )
                for payload in payloads
            ]
            yield "stage"
        if self._replaced or (number % 3 == 0 and not final):
            return  # the snapshot is aborted; its output belongs to the next one
        staged, self._unacknowledged = self._unacknowledged, []
        durable = Durable(position, (*job.durable.pending, *staged), number)
        job.publish(durable)
        yield "manifest"
        yield from self._commit(durable)

    def _commit(self, durable: Durable) -> Iterator[str]:
        job, pending = self._job, list(durable.pending)
        if pending and self._committer is None:
            raise Nonconformity("writers return committables, and the sink has no committer")
        if pending and self._committer is not None:
            # The process may die after a part of a commit.
            part = pending[: len(pending) // 2]
            if job.whole_snapshots:
                cut = pending[len(part)].snapshot
                part = [one for one in part if one.snapshot < cut]
            self._committer.commit(part)
            self._committer.commit(pending)
        if self._replaced:
            return
        job.set_committed(durable.position)
        yield "commit"
        job.confirm()
        yield "confirm"

    def _finish(self) -> Iterator[str]:
        if self._committer is not None:
            for _ in range(2):
                self._committer.finish(self._job.lineage, self._job.uid)
                yield "finish"
