"""Write and read in-flight logs: the records on a channel that belong to a snapshot.

In an aligned snapshot, only back-edges have records in flight. In an unaligned snapshot, every edge
may have them. A log is a sequence of frames, as `docs/reference/snapshot-format.md` describes them.
The segments that a back-edge spills to disk have the same format, so a log can link them instead of
copying them. This module does not interpret the payload of a batch; the codec does.

Every file of a log is written or linked once and never changed. When `write_log` returns a handle,
the log's files and their names in their folder are durable. Publishing the snapshot makes the name
of that folder durable, too. The memory that a function needs does not depend on the length of the
log. It is enough for one file of `SEGMENT_BYTES`, or for one batch if the batch is larger.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.handles import FileRecord, LogHandle, SnapshotBytes
from penstock.snapshot.storage.filesystem.disk import FileSystem

# The kinds of frames. They are written to disk, so never change these values.
BATCH, BARRIER, END, WATERMARK, STATUS, PROBE = 0, 1, 2, 3, 4, 5
FRAME_HEADER = struct.Struct(">IB")  # length of the payload in bytes, kind

#: The size at which a file of a log is closed, in bytes. `read_log` reads each file as a whole.
SEGMENT_BYTES = 4 << 20


@dataclass(frozen=True)
class Segment:
    """A complete file of frames, which never changes again.

    Arguments:
        path: the path of the file.
        size: the size of the file, in bytes.
        checksum: the BLAKE2b-128 checksum of the file's content in hex, as in `FileRecord`.
    """

    path: Path
    size: int
    checksum: str


@dataclass(frozen=True)
class Range:
    """A range of whole frames in a segment: the bytes `start <= offset < end`."""

    segment: Segment
    start: int
    end: int


@dataclass(frozen=True)
class LogMarker:
    """A watermark or a status of a channel, between the batches of a log.

    Arguments:
        kind: `WATERMARK` or `STATUS`.
        payload: the time in milliseconds as a big-endian integer of 64 bits, or one byte that is 1
            if the channel is idle.
    """

    kind: int
    payload: bytes


#: A part of a log: the payload of one batch, a marker, or frames of a segment.
LogPart = bytes | LogMarker | Range


def frame(kind: int, payload: bytes | memoryview) -> bytes:
    """Return a frame of this kind: its header, followed by the payload."""
    return FRAME_HEADER.pack(len(payload), kind) + payload


def frames(data: bytes | memoryview, path: object = None) -> Iterator[tuple[int, memoryview]]:
    """Yield the frames in `data` as (kind, payload); the payloads are views of `data`.

    Raises:
        StoreError: if the data is truncated or contains an unknown kind of frame. The error names
            `path`.
    """
    view = memoryview(data)
    at = 0
    while at < len(view):
        begin = at + FRAME_HEADER.size
        if begin > len(view):
            raise _damaged(f"it ends within the header of the frame at byte {at}", path)
        length, kind = FRAME_HEADER.unpack_from(view, at)
        if kind not in (BATCH, BARRIER, END, WATERMARK, STATUS, PROBE):
            raise _damaged(f"the frame at byte {at} is of kind {kind}, which there is not", path)
        if begin + length > len(view):
            problem = f"the frame at byte {at} has {length} bytes, and only {len(view) - begin}"
            raise _damaged(f"{problem} are there", path)
        yield kind, view[begin : begin + length]
        at = begin + length


def _frame_of(part: bytes | LogMarker) -> bytes:
    if isinstance(part, LogMarker):
        return frame(part.kind, part.payload)
    return frame(BATCH, part)


def _damaged(problem: str, path: object) -> StoreError:
    return StoreError(
        f"the log of records in flight is damaged: {problem}; resume from another snapshot",
        path,
        recoverability=Recoverability.NON_RECOVERABLE,
    )


def write_log(
    parts: Sequence[LogPart],
    *,
    producer: str,
    input: int,
    source: int,
    partitioning: str,
    records: int,
    folder: Path,
    inline_threshold: int,
    files: FileSystem | None = None,
) -> Generator[Callable[[], None], object, tuple[LogHandle, SnapshotBytes]]:
    """Write a log durably, and return its handle.

    This is a generator: it yields callables that block, and the caller runs them in another thread
    than the event loop's. A small log without segments is put into the handle. Otherwise batches
    are written to files, and segments are linked, or copied if the file system has no links. Do not
    call this for an empty log.

    Arguments:
        parts: the parts of the log, in order. Segments must exist until the generator ends.
        producer: the uid of the producer.
        input: the index of the consumer's input.
        source: the subtask of the producer.
        partitioning: the name of the edge's partitioning.
        records: the number of records in all batches.
        folder: the folder for the log's files, which is created only if files are needed. Its
            parent, the snapshot's folder, must exist.
        inline_threshold: the size of the largest log that is put into the handle, in bytes of
            frames.
        files: the file system; the local disk by default.

    Returns:
        The handle of the log, and its size. The size distinguishes new bytes (in the handle and in
        new files) from bytes that are shared with an earlier snapshot.

    Raises:
        StoreError: if a file of the log cannot be written or linked.
    """
    size = sum(
        part.end - part.start if isinstance(part, Range) else len(_frame_of(part)) for part in parts
    )
    handle = partial(LogHandle, producer, input, source, partitioning, records, size)
    batches = [part for part in parts if not isinstance(part, Range)]
    if len(batches) == len(parts) and size <= inline_threshold:
        inline = b"".join(map(_frame_of, batches))
        return handle(inline=inline), SnapshotBytes(new=size)
    writer = _Writer(folder, FileSystem() if files is None else files)
    yield partial(writer.write, parts)
    log = handle(pieces=tuple(writer.pieces), files=tuple(writer.records))
    return log, SnapshotBytes(writer.new, writer.linked)


class _Writer:
    """Writes the files of one log for `write_log`."""

    def __init__(self, folder: Path, files: FileSystem) -> None:
        self.pieces: list[tuple[int, int, int]] = []
        self.records: list[FileRecord] = []
        self.new = self.linked = 0
        self._folder, self._files = folder, files
        self._indices: dict[Path, int] = {}

    def write(self, parts: Sequence[LogPart]) -> None:
        """Write all batches and link all segments.

        This blocks, so do not call it on the event loop.

        Raises:
            StoreError: if a file cannot be written or linked, or a segment has a wrong size.
        """
        waiting: list[bytes] = []
        size = 0
        try:
            self._files.make_folder(self._folder)
            for part in parts:
                if isinstance(part, Range):
                    self._flush(waiting)
                    size = 0
                    self._link(part)
                    continue
                waiting.append(_frame_of(part))
                size += len(waiting[-1])
                if size >= SEGMENT_BYTES:
                    self._flush(waiting)
                    size = 0
            self._flush(waiting)
            self._files.sync(self._folder)
        except OSError as error:
            raise StoreError(
                f"cannot write the records in flight: {error}", self._folder
            ) from error

    def _next(self) -> Path:
        return self._folder / f"{len(self.records):06d}"

    def _add(self, path: Path, size: int, checksum: str) -> int:
        self.records.append(FileRecord(f"{self._folder.name}/{path.name}", size, checksum))
        return len(self.records) - 1

    def _flush(self, waiting: list[bytes]) -> None:
        if not waiting:
            return
        path, data = self._next(), b"".join(waiting)
        waiting.clear()
        self._files.write(path, data)
        self._files.sync(path)
        checksum = hashlib.blake2b(data, digest_size=16).hexdigest()
        self.pieces.append((self._add(path, len(data), checksum), 0, len(data)))
        self.new += len(data)

    def _link(self, part: Range) -> None:
        segment = part.segment
        index = self._indices.get(segment.path)
        if index is None:
            path = self._next()
            # The spill queue has one hard link to the segment. If there is another link, the log of
            # an earlier snapshot contains the segment, too.
            shared = self._files.links(segment.path) > 1
            if self._files.link_or_copy(segment.path, path) and shared:
                self.linked += segment.size
            else:
                self.new += segment.size
            self._files.sync(path)
            size = self._files.size(path)
            if size != segment.size:
                raise StoreError(
                    f"a segment of a loop's queue has {size} bytes instead of {segment.size}: "
                    "something else than Penstock has changed it",
                    segment.path,
                )
            index = self._indices[segment.path] = self._add(path, size, segment.checksum)
        self.pieces.append((index, part.start, part.end))


def read_log(
    handle: LogHandle, snapshot: Path, files: FileSystem | None = None
) -> Iterator[memoryview]:
    """Yield the payloads of a log's batches, in order.

    Each file is read when it is needed. This function does not check the sizes and checksums of
    files; `Store.verify` does.

    Arguments:
        handle: the handle of the log.
        snapshot: the snapshot's folder. The names of files in the handle are relative to it.
        files: the file system; the local disk by default.

    Raises:
        StoreError: if a file is missing, cannot be read, or is damaged. The error names the file.
    """
    for kind, payload in read_elements(handle, snapshot, files):
        if kind == BATCH:
            yield payload


def read_elements(
    handle: LogHandle, snapshot: Path, files: FileSystem | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Yield the kinds and payloads of a log's batches and markers, in order.

    Arguments:
        handle: the handle of the log.
        snapshot: the snapshot's folder; see `read_log`.
        files: the file system; the local disk by default.

    Raises:
        StoreError: if a file is missing, cannot be read, or is damaged. The error names the file.
    """
    for data, path in _pieces(handle, snapshot, FileSystem() if files is None else files):
        for kind, payload in frames(data, path):
            # The segments of a spilled queue also contain barriers and probes. They are skipped.
            if kind in (BATCH, WATERMARK, STATUS):
                yield kind, payload


def _pieces(
    handle: LogHandle, snapshot: Path, files: FileSystem
) -> Iterator[tuple[bytes | memoryview, Path]]:
    if handle.inline is not None:
        yield handle.inline, snapshot
        return
    for index, start, end in handle.pieces:
        path = snapshot / handle.files[index].name
        try:
            data = files.read(path)
        except OSError as error:
            message = f"cannot read the records in flight ({error}); use another snapshot"
            raise StoreError(message, path) from error
        if end > len(data):
            raise _damaged(f"it has {len(data)} bytes, and is needed up to byte {end}", path)
        yield memoryview(data)[start:end], path
