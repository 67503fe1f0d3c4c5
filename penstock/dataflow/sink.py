"""Define the interface of sinks: writers stage output, and a committer publishes it.

Sinks use a two-phase commit. A writer stages its records until barrier *n*. This part of the output
is made durable before the task acknowledges the snapshot. When snapshot *n* is complete, the
committer publishes this output. A committable stays in every later manifest until its commit is
confirmed, and is committed again after a failure. So committing must be idempotent. (Flink:
`TwoPhaseCommittingSink`.)

`penstock.connectors` contains the sinks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.type_variables import PlainValue, T_contra, UserValue


@dataclass(frozen=True)
class Committable:
    """Describes staged output that is to be published. (Flink: `Committer.CommitRequest`.)

    Arguments:
        lineage: the id of the lineage of the snapshot. A fork has a new lineage.
        uid: the uid of the sink's operator.
        subtask: the index of the writer's subtask.
        snapshot: the number of the snapshot whose barrier ended this part of the output.
        attempt: the number of the execution attempt that staged the output.
        payload: a value from which the committer finds the output. Allowed types are str, int,
            float, bool, None, bytes, and lists and dicts of these.
    """

    lineage: str
    uid: str
    subtask: int
    snapshot: int
    attempt: int
    payload: PlainValue

    @property
    def identity(self) -> tuple[str, str, int, int, int]:
        """The values of all fields except the payload. Together they are unique."""
        return (self.lineage, self.uid, self.subtask, self.snapshot, self.attempt)


@dataclass(frozen=True)
class WriterContext:
    """Describes the subtask in which a writer runs.

    Arguments:
        uid: the uid of the sink's operator.
        name: the name of the operator.
        subtask: the index of the subtask.
        parallelism: the number of subtasks, which is the number of writers.
        attempt: the number of the execution attempt, which increases with each restart.
        lineage: the id of the lineage of this run's snapshots.
        metrics: the metrics of the sink in this subtask.
        staging: a folder of the job, for output that is staged in files; None in tests of a writer
            alone. It may not exist yet. Its files are kept as long as the job's folder.
    """

    uid: str
    name: str
    subtask: int
    parallelism: int
    attempt: int
    lineage: str
    metrics: MetricGroup = field(default_factory=MetricGroup, compare=False)
    staging: Path | None = None


@dataclass(frozen=True)
class CommitterContext:
    """Describes the run whose output a committer publishes.

    Arguments:
        name: the name of the sink's operator, for messages.
        lineage: the id of the lineage of this run's snapshots.
        restored: the number of the snapshot of this lineage from which the process has started; 0
            if it has started from none, or from a snapshot of another lineage.
        age_seconds: the time since the restored snapshot was taken, also if it is of another
            lineage; 0 if there is none.
        confirmed: the newest snapshot whose output is known to be published, keyed by the lineage
            and the uid of the sink.
        staging: the folders with files that writers have staged: the one of this run, and for a
            fork also the one of its parent.
        marker: the number of the snapshot up to which the target has the output, if the user has
            said so because the target has lost its marker; None otherwise.
    """

    name: str
    lineage: str
    restored: int = 0
    age_seconds: float = 0.0
    confirmed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    staging: Sequence[Path] = ()
    marker: int | None = None


class SinkWriter(ABC):
    """Writes the records of one subtask. (Flink: `SinkWriter`.)"""

    #: A function that writes one record, or None. If it is set, the engine calls it for each record
    #: instead of calling `write` for each batch.
    per_record: Callable[[UserValue], object] | None = None
    #: A function that writes a `pyarrow.RecordBatch`, or None. Without it, a writer receives the
    #: rows of an Arrow batch as dicts.
    write_columns: Callable[[UserValue], None] | None = None

    @abstractmethod
    def write(self, batch: list[UserValue]) -> None:
        """Write a batch of records. The writer must not change the list or its records.

        A batch usually has as many records as the task processes in a millisecond, and may have
        only one. If a call of this method takes longer than a millisecond, because it sends a
        request to another system, the engine gathers records for the next call. It gathers more as
        long as that does not double the duration of a call. Gathered records are written before a
        barrier, and none waits longer than the last call took.
        """

    def use_codec(self, codec: RecordCodec) -> None:
        """Get the codec of the job's records. Called before `open`."""
        del codec

    def open(self) -> None:
        """Prepare the writer. Called before the first batch, when state is restored already."""

    def prepare(self, snapshot: int) -> Callable[[], list[PlainValue]] | None:
        """End the current part of the output at the barrier of a snapshot.

        Records that are written later belong to the next snapshot. This method must return quickly.
        The engine keeps the committables of an aborted snapshot, and commits them with the
        committables of the next snapshot.

        Returns:
            None if nothing is staged. Otherwise a function that makes the staged part durable, and
            returns the payloads of its committables. The engine calls this function in a thread
            outside of the event loop. If the function raises an error, the job restarts from its
            last snapshot and produces the output again.
        """
        del snapshot
        return None

    def flush(self) -> None:
        """Make buffered output visible. The engine calls this method when the task is idle."""

    def close(self) -> None:
        """Release all resources, and discard the output that is not staged completely.

        This is the output for which `prepare` was not called, and the output of which the engine
        has not called the function that `prepare` returned.
        """


class Committer(ABC):
    """Publishes committables. It runs in the JobManager. (Flink: `Committer`.)"""

    def open(self, context: CommitterContext) -> None:
        """Prepare the committer. Called first, once, and must return quickly."""
        del context

    @abstractmethod
    def commit(self, committables: list[Committable]) -> None:
        """Publish these committables in order, unless they are already published.

        The list has all output of the sink that is not known to be published. So all committables
        of one snapshot are in one list, except those that are published.

        The engine calls this method in a thread outside of the event loop. If the method raises an
        error, the job restarts and commits the same committables again.
        """

    def finish(self, lineage: str, uid: str) -> None:
        """Complete the output after the job has finished and all output is committed.

        The engine does not call this method for a job that the user stopped. The method must be
        idempotent: the engine calls it again if the JobManager dies before the job has ended, or if
        a finished job is resumed. The engine calls it in a thread outside of the event loop.
        """
        del lineage, uid

    def close(self) -> None:
        """Release the connections of the committer. Called last, before the process ends."""

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Remove output that earlier attempts staged, and that no snapshot contains.

        The engine calls this method before each attempt, when all committables of all snapshots
        are published. So a committer can also connect to its target here, before records flow.

        Arguments:
            lineage: the id of the lineage of the run's snapshots.
            uid: the uid of the sink's operator.
            before_attempt: the number of the first attempt whose output is kept.

        Returns:
            The number of removed items.
        """
        del lineage, uid, before_attempt
        return 0


class Sink(ABC, Generic[T_contra]):
    """Receives the records of a stream. (Flink: `Sink`.)

    Attributes:
        exactly_once: whether the sink publishes its output with a two-phase commit.
        needs_all_output: whether the output is useful only together with all earlier output of the
            job. Forks are then refused, because a fork begins a new lineage without that output.
        stages_in_job: whether writers stage output in the folder of the job, in
            `WriterContext.staging`. An object store for snapshots does not hold this output.
        leaves_open: whether output that a killed writer has begun hinders readers of the target
            until `Committer.clean` removes it. Then all subtasks of the sink restart together.
        function: the user's function that the writers call, which may have operator state; None if
            they call none.

    Examples:
        >>> sink = FileSink("letters")  # a Sink
        >>> _ = env.from_collection(["a", "b"]).sink_to(sink)
    """

    exactly_once: bool = False
    needs_all_output: bool = False
    stages_in_job: bool = False
    leaves_open: bool = False
    function: UserValue = None

    @property
    def location(self) -> object:
        """The folder that is written to, for reports; None if there is none."""
        return None

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer for one subtask."""

    def create_committer(self) -> Committer | None:
        """Return the committer, or None if the sink's writers publish their output at once."""
        return None

    def earlier_output(self) -> str | None:
        """Return a text that names the output of earlier runs, or None if there is none.

        It is called if the user wants to resume a job, and there is no snapshot. The job then
        begins from the start, and the text is a part of a warning. A sink that cannot find out
        whether there is output need not override this method.
        """
        return None

    def validate(self) -> None:
        """Raise a `GraphError` if an argument of the sink is wrong.

        The API calls this method when the sink is added to a program.
        """
