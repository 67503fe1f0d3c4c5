"""A FIFO queue on disk for the elements of a back-edge that do not fit into memory.

The elements are stored as frames. Frames are appended to segment files and read back in order. A
segment that has been read is deleted unless a `Hold` needs it. A hold keeps the range of the queue
that belongs to the log of a snapshot. Its segments are linked into the snapshot once they are
closed. A closed segment never changes.

The frames have the format of logs (`penstock.snapshot.storage.in_flight_log`). No function here
awaits: a batch is written to the page cache, which takes a few dozen microseconds.
"""

from __future__ import annotations

import errno
import hashlib
from array import array
from collections import deque
from pathlib import Path
from typing import BinaryIO

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.storage.in_flight_log import (
    FRAME_HEADER,
    SEGMENT_BYTES,
    Range,
    Segment,
    frame,
)


class _File:
    """A segment file, with its size, digest and number of records in each frame."""

    def __init__(self, path: Path, index: int) -> None:
        self.path, self.index = path, index
        self.size = 0
        self.digest = hashlib.blake2b(digest_size=16)
        #: The number of records in each frame, which is 0 for a marker.
        self.counts = array("I")
        self.holds = 0
        self.consumed = False
        self.read_bytes = self.read_frames = 0
        self.writer: BinaryIO | None = path.open("xb", buffering=0)

    def close_writer(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class Mark:
    """A position in the queue: the end of the queue when the mark was created.

    Arguments:
        index: the index of a segment, which may be deleted already or not exist yet.
        offset: the number of bytes in that segment before the position.
        records: the number of records that were appended to the queue before the position.
    """

    def __init__(self, index: int, offset: int, records: int) -> None:
        self.index, self.offset, self.records = index, offset, records


class Hold:
    """A range of the queue that stays on disk until it is released.

    `SpillQueue.hold` creates it. If it has no end yet, `SpillQueue.end_hold` sets the end.
    """

    def __init__(self, spill: SpillQueue) -> None:
        self.files: list[_File] = []
        #: The offsets at which the range begins in the first file and ends in the last, in bytes.
        self.start = self.end = 0
        self.records = 0
        self._spill = spill

    def ranges(self) -> list[Range]:
        """Return the ranges of segments that the hold consists of, in order.

        Raises:
            ProtocolError: if the hold has no end yet.
        """
        return self._spill.ranges(self)

    def release(self) -> None:
        """Release the range. Delete its segments that have been read, if no other hold has them."""
        self._spill.release(self)


class SpillQueue:
    """A FIFO queue of frames on disk.

    Arguments:
        folder: the folder for the segments. The queue creates it when the first frame is appended,
            so it must not exist before.
        segment_bytes: the size at which a segment is closed, in bytes.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._files: deque[_File] = deque()
        self._held: set[_File] = set()
        self._reader: BinaryIO | None = None
        self._open_holds: list[Hold] = []
        self._next = 0
        self._appended = 0
        #: The number of unread frames, the number of their bytes, and the number of their records.
        self.frames = self.bytes = self.records = 0

    def append(self, kind: int, payload: bytes | memoryview, records: int) -> None:
        """Append a frame to the queue.

        Raises:
            OSError: if the frame cannot be written, for example because the disk is full.
        """
        file = self._files[-1] if self._files else None
        if file is None or file.writer is None:
            file = self._begin()
        data = frame(kind, payload)
        assert file.writer is not None
        if file.writer.write(data) != len(data):
            raise OSError(errno.ENOSPC, "a frame was written only in part")
        file.digest.update(data)
        file.size += len(data)
        file.counts.append(records)
        self.frames += 1
        self.bytes += len(data)
        self.records += records
        self._appended += records
        for hold in self._open_holds:
            hold.records += records
        if file.size >= self._segment_bytes:
            file.close_writer()

    def _begin(self) -> _File:
        if self._next == 0:
            self.folder.mkdir(parents=True)
        file = _File(self.folder / f"{self._next:08d}", self._next)
        self._next += 1
        self._files.append(file)
        for hold in self._open_holds:
            hold.files.append(file)
            file.holds += 1
        return file

    def read(self, max_bytes: int) -> list[tuple[int, bytes, int]]:
        """Remove and return the first frames, until their size reaches `max_bytes`.

        Returns:
            The kind, the payload and the number of records of each frame.
        """
        taken: list[tuple[int, bytes, int]] = []
        size = 0
        while self.frames and size < max_bytes:
            file = self._files[0]
            if self._reader is None:
                self._reader = file.path.open("rb", buffering=1 << 18)
            header = self._reader.read(FRAME_HEADER.size)
            length, kind = FRAME_HEADER.unpack(header)
            payload = self._reader.read(length)
            records = file.counts[file.read_frames]
            taken.append((kind, payload, records))
            step = len(header) + length
            file.read_bytes += step
            file.read_frames += 1
            size += step
            self.frames -= 1
            self.bytes -= step
            self.records -= records
            if file.read_bytes == file.size and (file.writer is None or not self.frames):
                self._consumed(file)
        return taken

    def _consumed(self, file: _File) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        file.close_writer()
        file.consumed = True
        self._files.popleft()
        if file.holds:
            self._held.add(file)
        else:
            file.path.unlink()

    def mark(self) -> Mark:
        """Return the position behind the last frame."""
        if not self._files:
            return Mark(self._next, 0, self._appended)
        return Mark(self._files[-1].index, self._files[-1].size, self._appended)

    def hold(self, until: Mark | None = None) -> Hold:
        """Keep the unread frames on disk until the returned hold is released.

        Arguments:
            until: the end of the range. If it is None, the range also contains the frames that are
                appended before `end_hold` is called.
        """
        hold = Hold(self)
        hold.records = self.records
        if self._files:
            hold.start = self._files[0].read_bytes
        for file in self._files:
            # If all frames before `until` have been read, the range is empty, and the segments of
            # these frames may be deleted.
            if until is not None and (file.index, 0) >= (until.index, until.offset):
                break
            hold.files.append(file)
            file.holds += 1
        if until is None:
            self._open_holds.append(hold)
            return hold
        hold.records -= self._appended - until.records
        if hold.files:
            hold.end = until.offset
            hold.files[-1].close_writer()
        return hold

    def end_hold(self, hold: Hold) -> None:
        """End the range of a hold at the last frame, and close the segment of that frame."""
        self._open_holds.remove(hold)
        if hold.files:
            hold.end = hold.files[-1].size
            hold.files[-1].close_writer()

    def ranges(self, hold: Hold) -> list[Range]:
        """Return the ranges of segments that a hold consists of, in order.

        Raises:
            ProtocolError: if the hold has no end yet.
        """
        if hold in self._open_holds:
            raise ProtocolError("the ranges of a hold were asked for before its end")
        found = []
        for place, file in enumerate(hold.files):
            start = hold.start if place == 0 else 0
            end = hold.end if place == len(hold.files) - 1 else file.size
            if end > start:
                segment = Segment(file.path, file.size, file.digest.hexdigest())
                found.append(Range(segment, start, end))
        return found

    def release(self, hold: Hold) -> None:
        """Release a hold. Delete its segments that have been read, if no other hold has them."""
        if hold in self._open_holds:
            self._open_holds.remove(hold)
        files, hold.files = hold.files, []
        for file in files:
            file.holds -= 1
            if file.consumed and not file.holds:
                self._held.discard(file)
                file.path.unlink()

    def close(self) -> None:
        """Close the files. The execution attempt deletes them together with its folder."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        for file in self._files:
            file.close_writer()
