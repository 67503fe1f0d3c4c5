"""The interface of sources: splits, an enumerator and readers. (Flink: FLIP-27.)

A source is divided into *splits*: files, ranges, partitions. The enumerator runs in the JobManager
and assigns splits on request, so that a slow task gets fewer. A reader runs in a task and reads one
split at a time. A snapshot holds the splits that are not assigned yet and, for each reader, its
splits with the position after the last *emitted* batch.

The sources themselves are in `penstock.connectors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "ListEnumerator",
    "Preparation",
    "Read",
    "ReaderContext",
    "Source",
    "SourceReader",
    "Split",
    "SplitEnumerator",
]


@dataclass(frozen=True)
class Split:
    """A part of a source that one reader reads from start to end.

    Arguments:
        id: unique within the source and the same on every run.
        payload: describes the split to the reader; str, int, float, bool, None, bytes, and lists
            and dicts of these.
    """

    id: str
    payload: Any = None


class Read(NamedTuple):
    """The result of one call of `SourceReader.read`.

    Arguments:
        records: the records, at most `max_records`; may be empty.
        position: position after these records, which `SourceReader.open` gets after a failure:
            str, int, float, bool, None, bytes, and lists and dicts of these.
        finished: whether the split has ended, so that `records` are its last.
        wait_seconds: time until the next record is due (rate limits); 0 reads again at once.
    """

    records: list[Any]
    position: Any
    finished: bool = False
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class ReaderContext:
    """Describes the subtask that a reader runs in.

    Arguments:
        uid: uid of the source's operator.
        subtask: index of the subtask.
        parallelism: number of subtasks.
    """

    uid: str
    subtask: int
    parallelism: int


@dataclass(frozen=True)
class Preparation:
    """Describes the run that a source is prepared for, in the process of the program.

    Arguments:
        folder: a folder for this source alone, inside the job's folder; it may not exist yet. Its
            contents stay as long as the job's folder. A job that keeps no snapshots has a
            temporary one.
        resuming: whether the run resumes from a snapshot, if there is one.
        attached: whether this process stays until the job ends.
        state: state of the source's enumerator in the snapshot that the run resumes from, which
            may belong to another job; None if there is no such snapshot or state.
    """

    folder: Path
    resuming: bool
    attached: bool
    state: Any = None


class SourceReader(ABC):
    """Reads one split at a time, in a task. (Flink: `SourceReader`.)

    Attributes:
        blocking: whether `read` may wait, for a socket or a slow iterable. A blocking reader runs
            in a thread of its own, so that it does not delay barriers or the end of the job. Its
            `read` returns as soon as it has a record and would have to wait for the next. Other
            readers run in the task's loop, and their `read` must return promptly.
    """

    blocking: bool = False

    @abstractmethod
    def open(self, split: Split, position: Any) -> None:
        """Begin to read a split at this position; None is its start."""

    @abstractmethod
    def read(self, max_records: int) -> Read:
        """Read up to `max_records` records of the split that was opened last."""

    def close(self) -> None:
        """Release resources. May be called from another thread while `read` waits."""


class SplitEnumerator(ABC):
    """Finds the splits of a source and assigns them. (Flink: `SplitEnumerator`.)

    It runs in the JobManager. `start`, `restore`, `next_split` and `exhausted` are called off the
    event loop and may block; meanwhile no snapshot of the job begins. The other methods must
    return quickly.
    """

    def start(self) -> None:
        """Find the splits of a new run; not called if `restore` is."""

    @abstractmethod
    def next_split(self, subtask: int) -> Split | None:
        """Return the next split for this subtask, or None if there is none at present."""

    @property
    def exhausted(self) -> bool:
        """Whether there will be no more splits after `next_split` has returned None."""
        return True

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the state from which `restore` continues with the splits not assigned yet."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Continue from a state that `snapshot` returned."""

    def retain(self, states: Sequence[Any], begun: Sequence[Split]) -> None:
        """Remove data that no retained snapshot needs; called after a snapshot is complete.

        Called off the event loop, while other methods may be called in another thread.

        Arguments:
            states: the enumerator's state in each retained snapshot.
            begun: the splits that in any of them were assigned and not read to their ends.
        """

    def close(self) -> None:
        """Release resources."""


class Source(ABC):
    """Produces the records of a stream. (Flink: `Source`.)

    Attributes:
        rewindable: whether every split can be read again from a position, which exactly-once
            needs. The job of a source that is not rewindable gets a note about it.
        bounded: whether every split ends. A task reads the splits of a bounded source one after
            the other. The splits of an unbounded source are assigned evenly. A task opens all of
            its splits at once, each with a reader of its own, and reads them in turn, so that
            every split is read at any parallelism.
    """

    rewindable: bool = True
    bounded: bool = True

    @abstractmethod
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Return the enumerator of a run with `parallelism` readers."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader for one task, or for one split if the source is unbounded."""

    def validate(self) -> None:
        """Raise `GraphError` for mistakes that can be found before the job starts."""

    def prepare(self, preparation: Preparation) -> None:
        """Do the work that only the program's process can do, before the job is sent.

        May block. Attributes that it sets on the source are sent with it. An exception keeps the
        job from starting.
        """

    def release(self) -> None:
        """Release what `prepare` has acquired, in the program's process.

        Called when the job has ended, or could not be started.
        """


@dataclass
class ListEnumerator(SplitEnumerator):
    """Assigns splits that are known from the start, in order.

    Arguments:
        splits: all splits, in the order in which they are assigned.
    """

    splits: Sequence[Split] = ()
    _next: int = field(default=0, init=False)

    def next_split(self, subtask: int) -> Split | None:
        """Return the next split in order, for any subtask."""
        del subtask
        if self._next >= len(self.splits):
            return None
        self._next += 1
        return self.splits[self._next - 1]

    def snapshot(self) -> Any:
        """Return the splits that are not assigned yet."""
        return [[split.id, split.payload] for split in self.splits[self._next :]]

    def restore(self, state: Any) -> None:
        """Continue with the splits that were not assigned."""
        self.splits = [Split(id, payload) for id, payload in state]
        self._next = 0
