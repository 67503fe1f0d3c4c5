"""Define the interface of sources: splits, enumerators and readers.

This is the interface of Flink's FLIP-27.
A source is divided into *splits*, such as files, ranges or partitions. The enumerator runs in the
JobManager. It assigns a split when a task requests one, so a slow task gets fewer splits. A reader
runs in a task and reads one split at a time. A snapshot contains the splits that are not assigned
yet. For each reader, it contains the assigned splits, with the position after the last batch that
was *emitted*.

`penstock.connectors` contains the sources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple

from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.errors import JobError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.output_tag import OutputTag, SideOutput
from penstock.dataflow.record_codec import RecordCodec
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.dataflow.type_variables import PlainValue, T_co, UserValue


@dataclass(frozen=True)
class Split:
    """A part of a source that one reader reads from start to end.

    Arguments:
        id: the id of the split, which is unique within the source and the same in every run.
        payload: a value that describes the split to the reader. Allowed types are str, int, float,
            bool, None, bytes, and lists and dicts of these.

    Examples:
        >>> Split("words.txt", {"begin": 0}).id
        'words.txt'
    """

    id: str
    payload: PlainValue = None


class Read(NamedTuple):
    """The result of one call of `SourceReader.read`.

    Arguments:
        records: the records, at most `max_records`. The list may be empty.
        position: the position after these records. After a failure, `SourceReader.open` gets it.
            Allowed types are str, int, float, bool, None, bytes, and lists and dicts of these.
        finished: whether these records are the last of the split.
        wait_seconds: the time after which the engine calls `read` again, in seconds. It is used
            for rate limits; 0 means at once. With `math.inf`, the engine waits for
            `SourceReader.use_wake`.
        side_output: pairs of a tag and a record for the side output with this tag. The tags are
            among `Source.side_output_tags`. The position is behind these records, too.
    """

    records: list[UserValue]
    position: PlainValue
    finished: bool = False
    wait_seconds: float = 0.0
    side_output: Sequence[SideOutput] = ()


class TimedRead(Read):
    """The result of a read of a source that knows the event times of its records.

    A watermark strategy without a timestamp assigner uses them.

    Arguments:
        read: the records, and where the next ones begin.
        timestamps: the event time of each record, in milliseconds since the epoch.
        watermark: the watermark of the split behind these records, in milliseconds since the epoch:
            no later record of the split should have this event time or an earlier one. None does
            not change it. Only a source with `emits_watermarks` may return one.
    """

    #: The event time of each record, in milliseconds since the epoch.
    timestamps: list[int]
    #: The watermark of the split behind these records, or None.
    watermark: int | None

    def __new__(cls, read: Read, timestamps: list[int], watermark: int | None = None) -> TimedRead:
        """Return a read with event times."""
        if len(timestamps) != len(read.records):
            raise JobError(
                f"a source returned {len(read.records)} records with {len(timestamps)} timestamps: "
                f"each record needs one"
            )
        made = super().__new__(cls, *read)
        made.timestamps, made.watermark = timestamps, watermark
        return made

    @classmethod
    def untimed(cls, read: Read, watermark: int) -> TimedRead:
        """Return a read of records without event times, with a watermark behind them."""
        return cls(read, [NO_TIMESTAMP] * len(read.records), watermark)


class ColumnarRead(Read):
    """The result of a read whose records are the rows of a `pyarrow.RecordBatch`.

    The stream then has Arrow batches. The batch has at most as many rows as records were asked for.
    """

    #: The rows.
    records: UserValue


@dataclass(frozen=True)
class ReaderContext:
    """Describes the subtask in which a reader runs.

    Arguments:
        uid: the uid of the source's operator.
        subtask: the index of the subtask.
        parallelism: the number of subtasks.
        metrics: the metrics of the source in this subtask.
        on_lost_position: what the job's settings say about positions whose records are gone. If it
            is None, they say nothing, and the source decides.
    """

    uid: str
    subtask: int
    parallelism: int
    metrics: MetricGroup = field(default_factory=MetricGroup, compare=False)
    on_lost_position: LostPosition | None = None

    def goes_on_at_earliest(self, choice: str) -> bool:
        """Return whether a source goes on at the first record if its position is lost.

        Arguments:
            choice: the choice of the source: "fail" or "earliest". The job's setting overrides it.
        """
        return (self.on_lost_position or LostPosition(choice)) is LostPosition.EARLIEST


@dataclass(frozen=True)
class Preparation:
    """Describes the run for which a source is prepared. `Source.prepare` receives it.

    Arguments:
        folder: a folder for this source only, inside the job's folder. It may not exist yet. Its
            files are kept as long as the job's folder. If the job keeps no snapshots, this is a
            temporary folder.
        resuming: whether the user requested to resume from a snapshot.
        attached: whether this process keeps running until the job ends.
        state: the state of the source's enumerator in the snapshot from which the run resumes. The
            snapshot may belong to another job. It is None if there is no such snapshot or state.
    """

    folder: Path
    resuming: bool
    attached: bool
    state: PlainValue = None


class SourceReader(ABC):
    """Reads the records of splits, one split at a time. (Flink: `SourceReader`.)

    Attributes:
        blocking: whether `read` may block, for example on a socket. A blocking reader runs in a
            separate thread, so that it does not delay barriers or the end of the job. If it has
            some records and must wait for the next one, its `read` returns these records at once.
            A reader that is not blocking runs in the task's loop, and its `read` must return
            promptly.
    """

    blocking: bool = False

    def use_codec(self, codec: RecordCodec) -> None:
        """Get the codec of the job's records. Called before `open`."""
        del codec

    def use_wake(self, wake: Callable[[], None]) -> None:
        """Get a function that makes the engine call `read` again. Called before `open`.

        A reader can receive records in a thread of its own, and keep them until they are read. Its
        `read` returns at once, and `wait_seconds=math.inf` if there are no records. Its thread
        calls `wake` when there are some. So it need not be blocking, and an idle split costs
        nothing. Any thread may call `wake` at any time.
        """
        del wake

    @abstractmethod
    def open(self, split: Split, position: PlainValue) -> None:
        """Begin to read a split at a position. None means the start of the split."""

    @abstractmethod
    def read(self, max_records: int) -> Read:
        """Read at most `max_records` records of the split that was opened last."""

    def snapshot_completed(self, position: PlainValue) -> None:
        """Handle the notice that a snapshot with this position of the open split is complete.

        From now on, no failure makes the job read from an earlier position. So a source can
        acknowledge records before the position, for example messages of a broker. A notice may be
        missing, since a process may die before it arrives. The next notice includes it. The method
        must return quickly. Another thread may run `read` at the same time.
        (Flink: `SourceReader.notifyCheckpointComplete`.)
        """
        del position

    def close(self) -> None:
        """Release the resources of the reader.

        Another thread may call this method while `read` is blocked.
        """


class SplitEnumerator(ABC):
    """Finds the splits of a source and assigns them. (Flink: `SplitEnumerator`.)

    It runs in the JobManager. `start`, `restore`, `next_split` and `exhausted` may block, because
    the engine calls them in a thread outside of the event loop. No snapshot begins during such a
    call. The other methods must return quickly, except `retain`.
    """

    def start(self) -> None:
        """Find the splits at the start of a new run. A resumed run calls `restore` instead."""

    @abstractmethod
    def next_split(self, subtask: int) -> Split | None:
        """Return the next split for a subtask, or None if no split is available now."""

    @property
    def exhausted(self) -> bool:
        """Whether no more splits will come after `next_split` has returned None."""
        return True

    @abstractmethod
    def snapshot(self) -> PlainValue:
        """Return the state for a snapshot, which describes the splits that are not assigned."""

    @abstractmethod
    def restore(self, state: PlainValue) -> None:
        """Restore the state of the enumerator from a value that `snapshot` returned."""

    def retain(self, states: Sequence[PlainValue], begun: Sequence[Split]) -> None:
        """Remove data that no retained snapshot needs.

        The engine calls this method after a snapshot is complete, in a thread outside of the event
        loop. Other methods may run at the same time.

        Arguments:
            states: the state of the enumerator in each retained snapshot.
            begun: the splits that were assigned, but not read to the end, in a retained snapshot.
        """

    def snapshot_completed(self, positions: Sequence[tuple[Split, PlainValue]]) -> None:
        """Handle the notice that a snapshot is complete.

        From now on, no failure makes the job read from earlier positions. A source can then report
        them to another system, for example for its figures of lag. A notice may be missing, since
        the attempt may end before; the next one includes it. The notices come in the order of
        the snapshots. Jobs without checkpoints have none.

        The engine calls this method in a thread outside of the event loop, after the output of the
        snapshot is published. Other methods may run at the same time. The next attempt of the job
        waits for it, so it must bound its waiting. If it raises an error, the job restarts.
        (Flink: `SplitEnumerator.notifyCheckpointComplete`.)

        Arguments:
            positions: each split that was assigned, but not read to the end, and the position in
                it; None is the start of the split.
        """
        del positions

    def close(self) -> None:
        """Release the resources of the enumerator."""


class Source(ABC, Generic[T_co]):
    """Produces the records of a stream. (Flink: `Source`.)

    Attributes:
        rewindable: whether every split can be read again from a position. Exactly-once processing
            needs this. If it is False, the client gets a note that a failure may lose records.
        acknowledges: whether a server keeps the records until a snapshot that contains them is
            complete. Such a source is not rewindable, but at least once: after a failure, records
            may come twice, and the client gets a note. The job must take snapshots.
        exclusive: whether only one job can read the source at a time, for example because its
            readers listen on a port. A shadow run of such a job is refused.
        bounded: whether every split has an end.
        emits_watermarks: whether reads may have a watermark. The source then has event time even if
            the program gives it no watermark strategy.
        has_event_times: whether reads may have event times (`TimedRead`). If it is False, a program
            with event-time windows must give records timestamps, or is refused. A subclass of a
            connector whose reads have event times sets it to True.
        requests_snapshots: whether snapshots are taken only when the source requests one. Only a
            job in the process of its program can run such a source, which is for tests.

    Examples:
        >>> source = SequenceSource(1, 3)  # a Source
        >>> list(env.from_source(source).execute_and_collect())
        [1, 2, 3]
    """

    rewindable: bool = True
    acknowledges: bool = False
    exclusive: bool = False
    bounded: bool = True
    emits_watermarks: bool = False
    has_event_times: bool = True
    requests_snapshots: bool = False

    @property
    def location(self) -> object:
        """The folder or file that is read, for reports; None if there is none."""
        return None

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tags of the side outputs to which reads may have records; see `Read.side_output`.

        The program must read each of them with `get_side_output`. If the records of a side output
        are of a class, its tag has the class as `type_info`.
        """
        return ()

    @property
    def reads_in_turns(self) -> bool:
        """Whether a task opens all its splits at once, and reads them in turns.

        The splits are then assigned evenly to all tasks, as far as there are some, before the tasks
        begin to read. Each open split has a reader. So the watermark of a task is that of its
        slowest split.

        Otherwise a task requests a split when it needs one, and reads its splits one after the
        other. This suits files, and is the default for bounded sources. The splits of an unbounded
        source may never end, so it must read them in turns.
        """
        return not self.bounded

    @property
    def ends(self) -> bool:
        """Whether the source ends on its own.

        A source with finite splits may find new splits without end, and then never ends.
        """
        return self.bounded

    @abstractmethod
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return a split enumerator for a run with `parallelism` readers."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader for one subtask, or for one split if splits are read in turns."""

    def validate(self) -> None:
        """Raise a `GraphError` if an argument of the source is wrong.

        The API calls this method when the source is added to a program.
        """

    def prepare(self, preparation: Preparation) -> None:
        """Do the work that only the process of the program can do, before the job starts.

        The method may block. It may set attributes of the source, which are sent to the workers
        with the source. If the method raises an exception, the job does not start.
        """

    def release(self) -> None:
        """Release the resources that `prepare` acquired in the process of the program.

        The engine calls this method when the job has ended, or could not be started.
        """


@dataclass
class ListEnumerator(SplitEnumerator):
    """Assigns the splits of a list, in order.

    Arguments:
        splits: all splits of the source, in the order in which they are assigned.
    """

    splits: Sequence[Split] = ()
    _next: int = field(default=0, init=False)

    def next_split(self, subtask: int) -> Split | None:
        """Return the next split of the list for any subtask, or None if all are assigned."""
        del subtask
        if self._next >= len(self.splits):
            return None
        self._next += 1
        return self.splits[self._next - 1]

    def snapshot(self) -> PlainValue:
        """Return the splits that are not assigned yet."""
        return [[split.id, split.payload] for split in self.splits[self._next :]]

    def restore(self, state: PlainValue) -> None:
        """Restore the splits that were not assigned when the snapshot was taken."""
        self.splits = [Split(id, payload) for id, payload in state]
        self._next = 0
