"""The contract of sources: splits, an enumerator and readers.

A source is cut into *splits* (a file, a range, a partition). The enumerator lives beside the
JobManager and hands splits out on demand, so that a slow task takes fewer. A reader lives in a
task and reads one split at a time. A snapshot holds what the enumerator has left and, for each
reader, its splits with the position after the last *emitted* batch. (Flink: FLIP-27.)

This module is the contract only; sources are made in `penstock.connectors`.
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
        payload: what the reader needs to open it; str, int, float, bool, None, bytes, list, dict.
    """

    id: str
    payload: Any = None


class Read(NamedTuple):
    """What one call of `SourceReader.read` gave.

    Arguments:
        records: the records, at most as many as asked for; may be empty.
        position: where reading goes on after them; handed to `SourceReader.open` on recovery.
            str, int, float, bool, None, bytes, and lists and dicts of these.
        finished: the split has ended; `records` are its last.
        wait_seconds: nothing is due for so long (rate limits); 0 means "ask again at once".
    """

    records: list[Any]
    position: Any
    finished: bool = False
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class ReaderContext:
    """Where a reader runs: its operator's uid, its subtask index, and how many there are."""

    uid: str
    subtask: int
    parallelism: int


@dataclass(frozen=True)
class Preparation:
    """For what a source is prepared, in the process of the program.

    Arguments:
        folder: a folder of this source's own, in the job's folder; it may not exist yet. What is
            in it stays as long as the job's folder. A job that keeps no snapshots has one that
            is removed at its end.
        resuming: the run goes on from a snapshot, if there is one.
        attached: this process stays until the job ends.
        state: what the source's enumerator put into the snapshot that the run goes on from, which
            may be one of another job; None if there is no such snapshot, or the source is not in
            it.
    """

    folder: Path
    resuming: bool
    attached: bool
    state: Any = None


class SourceReader(ABC):
    """Reads one split at a time, in a task.

    `blocking` says that `read` may wait (for a socket, a slow iterable). Such a reader is read
    in a thread of its own, so that it never holds up barriers or the end of the job; its `read`
    must return as soon as it has at least one record and would have to wait for the next.
    A reader that is not blocking is read inside the task's loop and must return promptly.
    """

    blocking: bool = False

    @abstractmethod
    def open(self, split: Split, position: Any) -> None:
        """Go to `position` of `split`; None means its start."""

    @abstractmethod
    def read(self, max_records: int) -> Read:
        """Read up to `max_records` records of the split that was opened last."""

    def close(self) -> None:
        """Let go of what is open. May be called from another thread than a blocked `read`."""


class SplitEnumerator(ABC):
    """Knows which splits there are and hands them out; lives beside the JobManager.

    `start`, `restore`, `next_split` and `exhausted` are called off the event loop and may block; so
    long as they do, no snapshot of the job begins. The others may not block for long.
    """

    def start(self) -> None:
        """Find the splits of a fresh run. Not called when `restore` is."""

    @abstractmethod
    def next_split(self, subtask: int) -> Split | None:
        """The next split for this subtask, or None if there is none (now)."""

    @property
    def exhausted(self) -> bool:
        """Whether None from `next_split` means "never again"; else it is asked again later."""
        return True

    @abstractmethod
    def snapshot(self) -> Any:
        """What `restore` needs to hand out exactly the splits not handed out yet."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Continue from what `snapshot` returned."""

    def retain(self, states: Sequence[Any], begun: Sequence[Split]) -> None:
        """A snapshot is complete; what none of the retained ones needs may be removed.

        Called off the event loop, while others may be called in another thread.

        Arguments:
            states: what `snapshot` returned, for each retained snapshot.
            begun: the splits that were handed out and not read to their ends in any of them.
        """

    def close(self) -> None:
        """Let go of what is open."""


class Source(ABC):
    """Where records come from.

    `rewindable` says that every split can be read again from a position, which exactly-once
    needs; a source that is not says so when the job is compiled. `bounded` says that every split
    ends, so that a reader reads its splits one after the other. The splits of an unbounded source
    are assigned evenly. A task opens all of its splits at once, each with a reader of its own, and
    reads them in turn, so that every split is read at any parallelism.
    """

    rewindable: bool = True
    bounded: bool = True

    @abstractmethod
    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Make the enumerator for a run with `parallelism` readers."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Make one reader: for one task, or for one split if the source is unbounded."""

    def validate(self) -> None:
        """Raise a `GraphError` for what can be seen to be wrong before the job starts."""

    def prepare(self, preparation: Preparation) -> None:
        """Do what only the program's process can do, before the job's code is shipped.

        May block. What it sets on the source is shipped with it. Raises what stops the job from
        starting.
        """

    def release(self) -> None:
        """The job has ended, or could not be started; called in the program's process."""


@dataclass
class ListEnumerator(SplitEnumerator):
    """An enumerator over splits that are known from the start.

    Arguments:
        splits: all splits, in the order in which they are handed out.
    """

    splits: Sequence[Split] = ()
    _next: int = field(default=0, init=False)

    def next_split(self, subtask: int) -> Split | None:
        """The next in order, whoever asks."""
        del subtask
        if self._next >= len(self.splits):
            return None
        self._next += 1
        return self.splits[self._next - 1]

    def snapshot(self) -> Any:
        """The splits that are left."""
        return [[split.id, split.payload] for split in self.splits[self._next :]]

    def restore(self, state: Any) -> None:
        """Take the splits that were left."""
        self.splits = [Split(id, payload) for id, payload in state]
        self._next = 0
