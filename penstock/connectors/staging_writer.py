"""Write the output of one subtask to staged files, at least one for each snapshot with output.

A writer seals its files at the barrier of a snapshot. Later records go to new files. A staged file
is durable, and has a checksum, before the task acknowledges the snapshot. Its committable has its
name, so the file is a part of the snapshot until it is published.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import reprlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import SinkWriter, WriterContext
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path

_BUFFER_BYTES = 1 << 18
#: The largest number of files that a writer has open, each with a buffer.
_MOST_OPEN = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: The form of the names of staged files.
STAGED_NAME = re.compile(r"[0-9a-f]{10}-[0-9]{4,}-[0-9]{5,}-[0-9]{8,}")

#: A function that takes a batch, and returns the bytes to append to the file. It may have two more
#: methods: `finish` returns the bytes at the end of the file, and `encode_columns` encodes an Arrow
#: batch.
FileEncoder = Callable[[list[Any]], bytes]


@dataclass(frozen=True)
class FileLayout:
    """Decides which records of a snapshot are in one file.

    Arguments:
        partition_by: a function that returns the folder of a record, such as `day=2026-11-26`; None
            if the files have no folders.
        max_bytes: the size at which a file is complete before the barrier, in bytes; None if there
            is no limit.
    """

    partition_by: Callable[[Any], str] | None = None
    max_bytes: int | None = None


_ONE_FILE = FileLayout()


class StagingWriter(SinkWriter):
    """Writes the records of one subtask to staged files.

    Arguments:
        staging: the folder of the staged files.
        create_folder: creates this folder if it does not exist. It is called before each file.
        create_encoder: returns the encoder of a new file.
        context: the place of the writer in the job.
        layout: decides which records are in one file.
    """

    def __init__(
        self,
        staging: Path,
        create_folder: Callable[[], object],
        create_encoder: Callable[[], FileEncoder],
        context: WriterContext,
        layout: FileLayout = _ONE_FILE,
    ) -> None:
        self.context = context
        self._staging, self._create_folder = staging, create_folder
        self._create_encoder = create_encoder
        self._layout = layout
        self._tag = sink_tag(context.lineage, context.uid)
        self._files = 0
        #: The file of each folder that takes records, the one that was written to last at the end.
        self._open: dict[str, _StagedFile] = {}
        #: The complete files of the current snapshot, with their folders.
        self._full: list[tuple[str, _StagedFile]] = []
        #: The files of earlier snapshots that are not sealed yet.
        self._unsealed: set[_StagedFile] = set()
        if layout.partition_by is None and hasattr(create_encoder(), "encode_columns"):
            self.write_columns = self._write_columns

    def payload(
        self, staged: dict[str, Any], snapshot: int, folder: str, index: int
    ) -> dict[str, Any]:
        """Return the payload of the committable of a sealed file.

        Arguments:
            staged: the name of the file, as `staged`, with its `size` and `checksum`.
            snapshot: the number of the snapshot.
            folder: the folder of its records; "" if there are no folders.
            index: the index of the file among those of the snapshot and subtask.
        """
        del snapshot, folder, index
        return staged

    def write(self, batch: list[Any]) -> None:
        """Append a batch to the staged files of its records."""
        if self._layout.partition_by is None:
            if batch:
                self._append("", batch)
            return
        folders: dict[str, list[Any]] = {}
        for record in batch:
            folders.setdefault(self._layout.partition_by(record), []).append(record)
        for folder, records in folders.items():
            if not isinstance(folder, str) or not is_visible(folder):
                raise JobError(
                    f"partition_by returned {folder!r}: it must return the folder of the record, "
                    f"such as 'day=2026-11-26'; no part is empty, or begins with _ or .",
                    record=reprlib.repr(records[0]),
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            self._append(folder, records)

    def _write_columns(self, batch: Any) -> None:
        staged = self._file_of("")
        staged.append(staged.encode_columns(batch))
        self._roll("", staged)

    def _append(self, folder: str, records: list[Any]) -> None:
        staged = self._file_of(folder)
        staged.append(staged.encode(records))
        self._roll(folder, staged)

    def _file_of(self, folder: str) -> _StagedFile:
        """Return the open file of a folder."""
        staged = self._open.pop(folder, None)
        if staged is None:
            with naming(self._staging):
                self._create_folder()
                staged = _StagedFile(self._free_name(), self._create_encoder())
        self._open[folder] = staged
        return staged

    def _roll(self, folder: str, staged: _StagedFile) -> None:
        """Complete the file that was written if it is large, or the oldest if many are open."""
        limit = self._layout.max_bytes
        if limit is not None and staged.size >= limit:
            self._complete(folder)
        elif len(self._open) > _MOST_OPEN:
            self._complete(next(iter(self._open)))

    def _complete(self, folder: str) -> None:
        staged = self._open.pop(folder)
        self._full.append((folder, staged))
        staged.complete()

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """End the staged files; return a function that makes them durable, or None without one."""
        files = [*self._full, *self._open.items()]
        self._full, self._open = [], {}
        if not files:
            return None
        self._unsealed.update(staged for _, staged in files)

        def seal() -> list[Any]:
            payloads = []
            for index, (folder, staged) in enumerate(files):
                self._unsealed.discard(staged)
                payloads.append(self.payload(staged.seal(), snapshot, folder, index))
            return payloads

        return seal

    def close(self) -> None:
        """Discard the files that are not sealed."""
        full = [staged for _, staged in self._full]
        for staged in (*full, *self._open.values(), *self._unsealed):
            staged.discard()
        self._full, self._open = [], {}
        self._unsealed.clear()

    def _free_name(self) -> Path:
        """Return a path for a new staged file, with a prefix that only this writer uses."""
        ctx = self.context
        while True:
            name = f"{self._tag}-{ctx.attempt:04d}-{ctx.subtask:05d}-{self._files:08d}"
            self._files += 1
            # A job that is started again may number its attempts from the beginning. So a staged
            # file of the earlier run may have this name, and may still wait for its commit.
            if not (self._staging / name).exists():
                return self._staging / name


class _StagedFile:
    """Writes one staged file, and computes its checksum."""

    def __init__(self, path: Path, encoder: FileEncoder) -> None:
        self._path = path
        #: A function that returns the bytes of a batch of records.
        self.encode = encoder
        #: A function that returns the bytes of an Arrow batch; None if the format has none.
        self.encode_columns: Any = getattr(encoder, "encode_columns", None)
        self._finish: Callable[[], bytes] | None = getattr(encoder, "finish", None)
        self._digest = new_digest()
        #: The number of bytes that were written.
        self.size = 0
        self._file = path.open("xb", buffering=_BUFFER_BYTES)

    def append(self, data: bytes) -> None:
        """Write bytes that the encoder has returned."""
        self._digest.update(data)
        self.size += len(data)
        with naming(self._path):
            self._file.write(data)

    def complete(self) -> None:
        """Write the end of the file, and close it without syncing it to disk."""
        with naming(self._path), self._file:
            self._write_end()

    def seal(self) -> dict[str, Any]:
        """Make the file durable, and return its name, size and checksum."""
        with naming(self._path):
            if self._file.closed:
                # A newer attempt may have removed it; then the output is never committed.
                with contextlib.suppress(FileNotFoundError):
                    sync_path(self._path)
            else:
                with self._file:
                    self._write_end()
                    sync_file(self._file)
            sync_path(self._path.parent)
        checksum = self._digest.hexdigest()
        return {"staged": self._path.name, "size": self.size, "checksum": checksum}

    def _write_end(self) -> None:
        if self._finish is not None:
            self.append(self._finish())

    def discard(self) -> None:
        """Close the file, and remove it."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def is_visible(name: str) -> bool:
    """Return whether a text names a file or folder below another, which readers do not skip."""
    parts = name.split("/")
    return all(part and part[0] not in "_." for part in parts) and not _CONTROL.search(name)


def remove_staged(
    staging: Path, lineage: str, uid: str, before_attempt: int, keep: Collection[str] = ()
) -> int:
    """Remove the staged files of earlier attempts of a sink, and return their number.

    Arguments:
        staging: the folder of the staged files.
        lineage: the id of the lineage of the run's snapshots.
        uid: the uid of the sink. Files of other sinks are not removed.
        before_attempt: the number of an attempt. Only files of earlier attempts are removed.
        keep: the names of staged files to which a manifest refers.
    """
    removed = 0
    for path in sorted(staging.glob(f"{sink_tag(lineage, uid)}-*")):
        attempt = path.name.split("-")[1]
        if attempt.isdecimal() and int(attempt) < before_attempt and path.name not in keep:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise a `JobError` that names the path if the `with` block raises an `OSError`.

    The `OSError` of a full disk, for example, does not name the file.
    """
    try:
        yield
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror or error}") from error


def new_digest() -> hashlib.blake2b:
    """Return a new hash object for the checksum of a staged file."""
    return hashlib.blake2b(digest_size=16)


def sink_tag(lineage: str, uid: str) -> str:
    """Return a hash of a lineage and a sink's uid, as a part of file names."""
    return hashlib.blake2b(
        f"{lineage}\0{uid}".encode(errors="surrogatepass"), digest_size=5
    ).hexdigest()
