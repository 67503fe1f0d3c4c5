"""Run a source as a job does: enumerator, readers, snapshots and restarts, step by step."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.source import (
    ColumnarRead,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    TimedRead,
)
from penstock.testing.connectors.nonconformity import (
    Nonconformity,
    as_in_manifest,
    in_other_process,
)

#: The number of successive reads without records, and the time that they take in seconds, after
#: which a test reports a stuck source. It may wait for other clients of its server.
_PATIENCE, _PATIENCE_SECONDS = 10_000, 30.0
#: The time that a thread of a reader gets to receive records, in seconds.
_PAUSE_SECONDS = 0.002

#: A split that a reader has begun, with its position.
Begun = tuple[Split, Any]


@dataclass(frozen=True)
class SourceSnapshot:
    """The state of a source in a snapshot.

    Arguments:
        enumerator: the state of the enumerator.
        begun: the splits that readers have begun, by subtask.
        emitted: the records that were emitted before.
    """

    enumerator: Any
    begun: list[list[Begun]]
    emitted: list[Any]


@dataclass
class _Subtask:
    """One reader of a bounded source, or one for each split of an unbounded one."""

    context: ReaderContext
    spare: SourceReader
    queue: deque[Begun] = field(default_factory=deque)
    open: deque[tuple[SourceReader, Split, Any]] = field(default_factory=deque)


class SourceRun:
    """One attempt of a job that only reads a source.

    Arguments:
        source: the source, as the program has created it.
        parallelism: the number of subtasks.
        snapshot: the snapshot to start from, or None.
        max_records: the number of records of a read.
    """

    def __init__(
        self,
        source: Source,
        parallelism: int,
        snapshot: SourceSnapshot | None = None,
        max_records: int = 1,
    ) -> None:
        self._max_records = max_records
        self.emitted: list[Any] = [] if snapshot is None else list(snapshot.emitted)
        self._begun: deque[Begun] = deque()
        manager = in_other_process(source)
        self._enumerator = manager.create_enumerator(parallelism)
        if snapshot is None:
            self._enumerator.start()
        else:
            self._enumerator.restore(as_in_manifest("enumerator state", snapshot.enumerator))
        self._workers = [in_other_process(source) for _ in range(parallelism)]
        self._subtasks: list[_Subtask] = []
        for index, worker in enumerate(self._workers):
            context = ReaderContext("source", index, parallelism)
            self._subtasks.append(_Subtask(context, worker.create_reader(context)))
        if snapshot is not None:
            self._restore(snapshot)

    def _restore(self, snapshot: SourceSnapshot) -> None:
        same = len(snapshot.begun) == len(self._subtasks)
        for subtask, begun in enumerate(snapshot.begun):
            for split, position in begun:
                taken = (_plain(split), as_in_manifest("position", position))
                (self._subtasks[subtask].queue if same else self._begun).append(taken)

    def step(self) -> bool:
        """Read once in each subtask. Return False when all splits have been read to their ends."""
        return any([self._step(subtask) for subtask in self._subtasks])  # noqa: C419

    def run(self, limit: int | None = None) -> list[Any]:
        """Read to the end, or until `limit` records were emitted, and return all records.

        Raises:
            Nonconformity: if the source returns no records and does not end.
        """
        idle, before, since = 0, len(self.emitted), time.monotonic()
        while (limit is None or len(self.emitted) < limit) and self.step():
            if len(self.emitted) > before:
                idle, before, since = 0, len(self.emitted), time.monotonic()
            idle += 1
            if idle > _PATIENCE and time.monotonic() - since > _PATIENCE_SECONDS:
                raise Nonconformity(f"after {before} records, the source neither reads nor ends")
        self.close()
        return self.emitted

    def snapshot(self) -> SourceSnapshot:
        """Take a snapshot between two reads, and make it the only one that is retained."""
        begun = [
            [
                *((split, as_in_manifest("position", at)) for _, split, at in subtask.open),
                *subtask.queue,
            ]
            for subtask in self._subtasks
        ]
        if self._begun:
            begun.append(list(self._begun))
        state = as_in_manifest("enumerator state", self._enumerator.snapshot())
        self._enumerator.retain([state], [split for part in begun for split, _ in part])
        return SourceSnapshot(state, begun, list(self.emitted))

    def close(self) -> None:
        """Close all readers and the enumerator."""
        for subtask in self._subtasks:
            for reader in {id(one): one for one, *_ in subtask.open}.values():
                reader.close()
            subtask.spare.close()
        self._enumerator.close()

    def _step(self, subtask: _Subtask) -> bool:
        self._assign(subtask)
        if not subtask.open:
            return False
        reader, split, position = subtask.open.popleft()
        read = checked_read(reader, self._workers[subtask.context.subtask], self._max_records)
        self.emitted += emitted(read)
        if not read.finished:
            subtask.open.append((reader, split, read.position))
        elif reader is not subtask.spare:
            reader.close()
        del position
        return True

    def _assign(self, subtask: _Subtask) -> None:
        """Open the next split of a subtask, if there is one that it may read now."""
        source = self._workers[subtask.context.subtask]
        if source.bounded and subtask.open:
            return
        if not subtask.queue:
            if self._begun:
                subtask.queue.append(self._begun.popleft())
            elif (split := self._enumerator.next_split(subtask.context.subtask)) is not None:
                subtask.queue.append((_plain(split), None))
        if subtask.queue:
            split, position = subtask.queue.popleft()
            reader = subtask.spare
            if not source.bounded:
                reader = source.create_reader(subtask.context)
            reader.open(split, position)
            subtask.open.append((reader, split, position))


def checked_read(reader: SourceReader, source: Source, max_records: int) -> Read:
    """Read with a reader, and check the result.

    Raises:
        Nonconformity: if it returns too many records, or watermarks or side outputs that the source
            does not have.
    """
    read = reader.read(max_records)
    if isinstance(read, ColumnarRead):  # its rows, as functions over rows see them
        read = read._replace(records=read.records.to_pylist())
    if len(read.records) > max_records:
        raise Nonconformity(f"a read of at most {max_records} records returned {len(read.records)}")
    if isinstance(read, TimedRead) and read.watermark is not None and not source.emits_watermarks:
        raise Nonconformity("a read has a watermark, and the source has emits_watermarks = False")
    for tag, _ in read.side_output:
        if tag not in source.side_output_tags:
            raise Nonconformity(
                f"a read has a record for {tag!r}, which is not in side_output_tags of the source"
            )
    if read.wait_seconds == math.inf:
        time.sleep(_PAUSE_SECONDS)  # The reader has a thread, which may be receiving records.
    return read


def emitted(read: Read) -> list[Any]:
    """Return the records of a read, and behind them the pairs for side outputs."""
    return [*read.records, *read.side_output]


def _plain(split: Split) -> Split:
    if type(split.id) is not str:
        raise Nonconformity(f"the id of a split must be a str: {split.id!r}")
    return Split(split.id, as_in_manifest("payload of a split", split.payload))
