"""A durable log of records, in files: what a `WebhookSource` has accepted.

The log is a folder of *segments*. A segment is a file of frames, and its name is the number of its
first record. A frame has the length and the checksum of its record. `append` returns when its
record is on disk; records that arrive at the same time share one sync.

A place in the log is a pair: the number of the first record of a segment, and an offset in its
file. Only one process at a time may have the log open, which a lock on the folder ensures. When a
process dies while it writes, the last frame may be incomplete. It was not confirmed to anybody, and
is cut off.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.dataflow.errors import JobError, Recoverability
from penstock.snapshot.storage.filesystem.durable_files import make_folders, sync_path

logger = logging.getLogger("penstock.connectors")

_HEAD = struct.Struct(">II")
_SUFFIX = ".log"
#: The most that one sync waits for, so that a reader gets records while many arrive.
_MOST_AT_ONCE = 1_000


class LogFullError(Exception):
    """Raised when a record does not fit into the log."""


class LogClosedError(Exception):
    """Raised when the log is closed while a record waits."""


class LogInUseError(Exception):
    """Raised when another process has the log open."""


@dataclass
class _Pending:
    """A record that is not durable yet."""

    data: bytes
    done: bool = False
    error: BaseException | None = None


class WebhookLog:
    """A log that one process has open, to append and to read.

    Arguments:
        folder: the folder of the log. It is created if it does not exist.
        segment_bytes: the size at which a new segment begins.
        max_bytes: the size of all segments at which no more records are accepted.

    Raises:
        LogInUseError: if another process has the log open.
    """

    def __init__(self, folder: Path, segment_bytes: int, max_bytes: int) -> None:
        self._folder, self._segment_bytes, self._max_bytes = folder, segment_bytes, max_bytes
        make_folders(folder)
        self._lock_file = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise LogInUseError(f"another process has the log {folder} open") from None
        #: A condition that is notified when records are durable, and when the log is closed.
        self.changed = threading.Condition()
        self.closed = False
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._starts = sorted(
            int(path.stem) for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal()
        )
        self._sizes = {start: self._path(start).stat().st_size for start in self._starts}
        self._count = self._recover()
        #: The end of the durable part: a segment and an offset.
        self._end = (self._starts[-1], self._sizes[self._starts[-1]])
        self._file: IO[bytes] = self._path(self._starts[-1]).open("ab")
        self._writer = threading.Thread(target=self._write_all, name="webhook log", daemon=True)
        self._writer.start()

    # ---- append

    def append(self, data: bytes) -> None:
        """Append a record, and wait until it is durable.

        Raises:
            LogFullError: if the log is full.
            LogClosedError: if the log was closed meanwhile. It may have the record, or not.
            OSError: if the record could not be written.
        """
        pending = _Pending(data)
        with self.changed:
            if self.closed:
                raise LogClosedError
            if self.size + len(data) > self._max_bytes:
                raise LogFullError
            self._pending.append(pending)
            self._pending_bytes += len(data)
            self.changed.notify_all()
            self.changed.wait_for(lambda: pending.done or self.closed)
        if pending.error is not None:
            raise pending.error
        if not pending.done:
            raise LogClosedError

    @property
    def size(self) -> int:
        """The size of all segments and of the records that wait, in bytes."""
        return sum(self._sizes.values()) + self._pending_bytes

    def _write_all(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._pending or self.closed)
                if self.closed:
                    return
                count = min(len(self._pending), _MOST_AT_ONCE)
                group = [self._pending[index] for index in range(count)]
            error: BaseException | None = None
            try:
                self._write([pending.data for pending in group])
            except BaseException as found:
                error = found
            with self.changed:
                for pending in group:
                    self._pending_bytes -= len(self._pending.popleft().data)
                    pending.done, pending.error = True, error
                if error is not None:
                    # Some of the records may be on disk. The next `WebhookLog` checks the file.
                    self.closed = True
                self.changed.notify_all()

    def _write(self, records: list[bytes]) -> None:
        start, offset = self._end
        if offset >= self._segment_bytes:
            self._file.close()
            start, offset = self._count, 0
            self._create(start)
            self._file = self._path(start).open("ab")
        frames = b"".join(_HEAD.pack(len(data), zlib.crc32(data)) + data for data in records)
        self._file.write(frames)
        self._file.flush()
        os.fsync(self._file.fileno())
        with self.changed:
            self._count += len(records)
            if start != self._starts[-1]:
                self._starts.append(start)
            self._sizes[start] = offset + len(frames)
            self._end = (start, offset + len(frames))

    # ---- read

    @property
    def end(self) -> tuple[int, int]:
        """The place behind all durable records."""
        return self._end

    @property
    def start(self) -> tuple[int, int]:
        """The place of the oldest record."""
        with self.changed:
            return self._starts[0], 0

    def read(self, place: tuple[int, int], max_records: int) -> tuple[list[bytes], tuple[int, int]]:
        """Return the durable records behind a place, and the place behind them.

        Raises:
            JobError: if the place is not in the log any more, or the log is damaged.
        """
        records: list[bytes] = []
        while len(records) < max_records:
            with self.changed:
                self.check(place)
                end, starts = self._end, list(self._starts)
            if place == end:
                break
            start, offset = place
            limit = end[1] if start == end[0] else self._sizes[start]
            with self._path(start).open("rb") as file:
                file.seek(offset)
                while offset < limit and len(records) < max_records:
                    data = _read_frame(file)
                    if data is None:
                        raise self._damaged(start, offset)
                    records.append(data)
                    offset += _HEAD.size + len(data)
            place = (start, offset)
            if offset >= limit and start != end[0]:
                place = (starts[starts.index(start) + 1], 0)
        return records, place

    def check(self, place: tuple[int, int]) -> None:
        """Raise a `JobError` if a place is not in the log any more."""
        if place[0] not in self._sizes or place > self._end:
            raise self._gone(place)

    def read_all(self) -> Iterator[bytes]:
        """Yield all records, from the oldest."""
        place = self.start
        while True:
            records, place = self.read(place, _MOST_AT_ONCE)
            if not records:
                return
            yield from records

    def remove_before(self, place: tuple[int, int], older_than: float) -> int:
        """Remove segments that end before a place and were last written before a time.

        Arguments:
            place: the place; the segment that has it is kept.
            older_than: a time, in seconds since the epoch.

        Returns:
            The number of removed segments.
        """
        removed = 0
        with self.changed:
            while len(self._starts) > 1 and self._starts[1] <= place[0]:
                path = self._path(self._starts[0])
                if path.stat().st_mtime >= older_than:
                    break
                path.unlink()
                del self._sizes[self._starts.pop(0)]
                removed += 1
        return removed

    def close(self) -> None:
        """Close the log. Records that wait are not confirmed."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self._writer.join()
        self._file.close()
        self._lock_file.close()

    # ---- files

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:020d}{_SUFFIX}"

    def _create(self, start: int) -> None:
        self._path(start).touch()
        sync_path(self._folder)

    def _recover(self) -> int:
        """Cut off an incomplete frame at the end of the log, and return the number of records."""
        if not self._starts:
            self._create(0)
            self._starts, self._sizes = [0], {0: 0}
            return 0
        start = self._starts[-1]
        path, offset, count = self._path(start), 0, start
        with path.open("rb+") as file:
            while (data := _read_frame(file)) is not None:
                offset += _HEAD.size + len(data)
                count += 1
            if offset < self._sizes[start]:
                self._keep_rest(file, start, offset)
                file.truncate(offset)
                os.fsync(file.fileno())
        self._sizes[start] = offset
        return count

    def _keep_rest(self, file: IO[bytes], start: int, offset: int) -> None:
        """Keep the end that is cut off in another file, in case the disk is damaged."""
        file.seek(offset)
        rest = self._folder / f"{start:020d}-{offset}.cut"
        rest.write_bytes(file.read())
        logger.warning(
            "the webhook log %s ended within a record, after a crash: %d bytes that were not "
            "confirmed to a client are cut off, and kept in %s",
            self._folder,
            self._sizes[start] - offset,
            rest,
        )

    def _gone(self, place: tuple[int, int]) -> JobError:
        return JobError(
            f"the log {self._folder} does not have the place {place[0]}/{place[1]} of the "
            f"snapshot: it goes from {self._starts[0]}/0 to {self._end[0]}/{self._end[1]}. Resume "
            f"from a newer snapshot, or bring the files back",
            recoverability=Recoverability.NON_RECOVERABLE,
        )

    def _damaged(self, start: int, offset: int) -> JobError:
        return JobError(
            f"the file {self._path(start)} is damaged at byte {offset}: bring a copy of it back",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def _read_frame(file: IO[bytes]) -> bytes | None:
    """Return the next record of a file, or None if there is no whole one."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack(head)
    data = file.read(length)
    return data if len(data) == length and zlib.crc32(data) == checksum else None
