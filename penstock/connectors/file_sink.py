"""Write files exactly once, with a two-phase commit.

A writer writes its records to a file in `folder/_staging`. At a snapshot, the writer seals this
file. Later records go to a new file. When the snapshot is complete, the committer publishes the
file: it creates a hard link with the final name.

The system call `link` either creates the name or fails. So readers of the folder never see a part
of a file. If the final name exists and the file has the recorded checksum, the file was published
before a crash. The committer creates the link, syncs the folder, and only then removes the staged
name. So the data has a durable name at any time. `file_formats.py` contains the formats.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from penstock.connectors.file_formats import FileFormat, TextLines
from penstock.connectors.folders import local_path
from penstock.connectors.staged_files import (
    STAGING,
    make_staging,
    require_own_staging,
    staged_path,
    target_path,
)
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path

_BUFFER_BYTES = 1 << 18


class StagedFormat(Protocol):
    """The format of the files of a sink. Each file has an encoder of its own.

    An encoder may have two more methods: `finish` returns the bytes at the end of the file, and
    `encode_columns` encodes an Arrow batch.
    """

    @property
    def extension(self) -> str:
        """Return the end of the names of the files, such as `.txt`."""

    def create_encoder(self) -> Callable[[list[Any]], bytes]:
        """Return a function that takes a batch, and returns the bytes to append to the file."""


class StagedFileSink(Sink[Any]):
    """Stages one file for each subtask and snapshot, and publishes it into a folder.

    Arguments:
        folder: the folder of the published files. It is created with the first record if it does
            not exist.
        format: the format of the files.
    """

    exactly_once = True

    def __init__(self, folder: str | os.PathLike[str], format: StagedFormat) -> None:
        self.folder = local_path(folder)
        self.format: StagedFormat = format

    @property
    def location(self) -> object:
        """The folder."""
        return self.folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages the files of one subtask."""
        return _FileWriter(self.folder, self.format, context)

    def create_committer(self) -> FileCommitter:
        """Return the committer that publishes the staged files."""
        return FileCommitter(self.folder, flat=True)

    def earlier_output(self) -> str | None:
        """Return the number of published files in the folder as text; None if there are none."""
        count = sum(1 for _ in self.folder.glob("part-*"))
        return f"{count} file{'s' * (count > 1)} in {self.folder}" if count else None

    def validate(self) -> None:
        """Check that files can be created in the folder.

        Raises:
            GraphError: if the folder does not exist and cannot be created, or if the user has no
                permission to write to it, or if its folder of staged files is a symbolic link.
        """
        try:
            require_own_staging(self.folder)
        except JobError as error:
            raise GraphError(error.message) from None
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if not existing.is_dir():
            raise GraphError(f"the folder {self.folder} cannot be created: {existing} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise GraphError(f"the folder {self.folder} cannot be written: no access to {existing}")


class FileSink(StagedFileSink):
    r"""Writes one file for each subtask and snapshot into a folder, exactly once.

    A file is named `part-<snapshot>-<subtask>-<attempt>-<uid>-<tag>.<extension>`, so the names sort
    by snapshot. The tag is a hash of the snapshot's lineage and the sink's uid. So several sinks
    and jobs can share a folder. A subtask that has no records for a snapshot writes no file.

    Readers of the folder must ignore names that begin with `_`, as Spark and `FileSource` do. The
    folder's file system must have hard links. All workers and the JobManager must see the folder
    under the same path.

    Arguments:
        folder: the folder of the published files. It is created with the first record if it does
            not exist.
        format: the format of the files: `TextLines()`, `JsonLines()` or `CsvRows(...)`.

    Raises:
        GraphError: if `format` is not a `FileFormat`, or `folder` is not a usable path.

    Examples:
        >>> _ = env.from_collection([{"user": "ann"}]).sink_to(FileSink("users", JsonLines()))
        >>> _ = env.execute("users")
        >>> [part.read_text() for part in Path("users").glob("part-*")]
        ['{"user": "ann"}\n']
    """

    def __init__(self, folder: str | os.PathLike[str], format: FileFormat | None = None) -> None:
        format = TextLines() if format is None else format
        if not isinstance(format, FileFormat):
            raise GraphError(
                f"the format of a file sink is TextLines(), JsonLines() or CsvRows(), "
                f"not {format!r}; for Parquet files, there is ParquetSink"
            )
        super().__init__(folder, format)


class _FileWriter(SinkWriter):
    """Writes the records of one subtask to staged files."""

    def __init__(self, folder: Path, format: StagedFormat, context: WriterContext) -> None:
        self._folder = folder
        self._staging = folder / STAGING
        self._format = format
        self._context = context
        self._tag = sink_tag(context.lineage, context.uid)
        self._files = 0
        self._staged: _StagedFile | None = None
        #: The files of earlier snapshots that are not sealed yet.
        self._unsealed: set[_StagedFile] = set()
        if hasattr(format.create_encoder(), "encode_columns"):
            self.write_columns = self._write_columns

    def write(self, batch: list[Any]) -> None:
        if batch:
            staged = self._open_file()
            staged.append(staged.encode(batch))

    def _write_columns(self, batch: Any) -> None:
        staged = self._open_file()
        staged.append(staged.encode_columns(batch))

    def _open_file(self) -> _StagedFile:
        """Return the staged file of the current snapshot."""
        staged = self._staged
        if staged is None:
            with naming(self._staging):
                make_staging(self._folder)
                staged = self._staged = _StagedFile(self._free_name(), self._format)
        return staged

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        staged, self._staged = self._staged, None
        if staged is None:
            return None
        ctx = self._context
        uid = re.sub(r"[^A-Za-z0-9]+", "_", ctx.uid)[:40]
        name = f"part-{snapshot:010d}-{ctx.subtask:05d}-{ctx.attempt:04d}-{uid}-{self._tag}"
        target = name + self._format.extension
        self._unsealed.add(staged)

        def seal() -> list[Any]:
            self._unsealed.discard(staged)
            # The folder is recorded for error messages and for people who inspect the manifest. The
            # committer uses the folder of its own sink.
            return [{**staged.seal(), "target": target, "folder": str(self._folder)}]

        return seal

    def close(self) -> None:
        for staged in (self._staged, *self._unsealed):
            if staged is not None:
                staged.discard()
        self._staged = None
        self._unsealed.clear()

    def _free_name(self) -> Path:
        """Return a path for a new staged file, with a prefix that only this writer uses."""
        ctx = self._context
        while True:
            name = f"{self._tag}-{ctx.attempt:04d}-{ctx.subtask:05d}-{self._files:08d}"
            self._files += 1
            # A job that is started again may number its attempts from the beginning. So a staged
            # file of the earlier run may have this name, and may still wait for its commit.
            if not (self._staging / name).exists():
                return self._staging / name


class _StagedFile:
    """Writes one staged file, and computes its checksum."""

    def __init__(self, path: Path, format: StagedFormat) -> None:
        self._path = path
        #: A function that returns the bytes of a batch of records.
        self.encode = encoder = format.create_encoder()
        #: A function that returns the bytes of an Arrow batch; None if the format has none.
        self.encode_columns: Any = getattr(encoder, "encode_columns", None)
        self._finish: Callable[[], bytes] | None = getattr(encoder, "finish", None)
        self._digest = new_digest()
        self._size = 0
        self._file = path.open("xb", buffering=_BUFFER_BYTES)

    def append(self, data: bytes) -> None:
        """Write bytes that the encoder has returned."""
        self._digest.update(data)
        self._size += len(data)
        with naming(self._path):
            self._file.write(data)

    def seal(self) -> dict[str, Any]:
        """Make the file durable, and return its name, size and checksum."""
        with naming(self._path), self._file:
            if self._finish is not None:
                self.append(self._finish())
            sync_file(self._file)
            sync_path(self._path.parent)
        checksum = self._digest.hexdigest()
        return {"staged": self._path.name, "size": self._size, "checksum": checksum}

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class FileCommitter(Committer):
    """Publishes the staged files of a file sink.

    Arguments:
        folder: the folder of the sink.
        flat: whether all files are published in the folder itself, and none in a folder below.
    """

    def __init__(self, folder: Path, *, flat: bool = False) -> None:
        self._folder, self._flat = folder, flat
        #: Whether the staged files are those of an earlier process. Then a disk may have damaged
        #: them since, so their content is read. That would take too long at each snapshot.
        self._restored = True

    def commit(self, committables: list[Committable]) -> None:
        """Publish every staged file under its final name, and remove the staged names.

        Raises:
            JobError: if a staged file is missing or was changed, if another file has the final
                name, or if the hard link cannot be created.
        """
        self.publish(committables)
        # Remove the staged names last. Until `publish` has synced the folder, a crash could lose
        # the final names.
        self.abandon(committables)

    def publish(self, committables: list[Committable]) -> None:
        """Publish every staged file under its final name, durably, and keep the staged names.

        Raises:
            JobError: if a staged file is missing or was changed, if another file has the final
                name, or if the hard link cannot be created.
        """
        # Check all names first, so that no file is published if one of the names is refused.
        files = [(c, self.staged(c), self.target(c)) for c in committables]
        for committable, staged, target in files:
            _publish(committable, staged, target, verify=self._restored)
        for folder in {target.parent for _, _, target in files}:
            sync_path(folder)

    def abandon(self, committables: list[Committable]) -> None:
        """Remove the staged files of these committables, as far as they exist."""
        for staged in [self.staged(committable) for committable in committables]:
            staged.unlink(missing_ok=True)

    def staged(self, committable: Committable) -> Path:
        """Return the path of the staged file of a committable; see `staged_path`."""
        return staged_path(self._folder, committable)

    def target(self, committable: Committable) -> Path:
        """Return the path under which a committable is published; see `target_path`."""
        return target_path(self._folder, committable, flat=self._flat)

    def clean(self, lineage: str, uid: str, before_attempt: int, keep: Collection[str] = ()) -> int:
        """Remove the staged files of earlier attempts to which no snapshot refers.

        Arguments:
            lineage: the id of the lineage of the run's snapshots.
            uid: the uid of the sink. Files of other sinks are not removed.
            before_attempt: the number of an attempt. Only files of earlier attempts are removed.
            keep: the names of staged files to which a manifest refers, as in `payload["staged"]`.

        Returns:
            The number of removed files.
        """
        # The engine calls this method when it has published the output of an earlier process.
        self._restored = False
        require_own_staging(self._folder)
        removed = 0
        tag = sink_tag(lineage, uid)
        for path in sorted((self._folder / STAGING).glob(f"{tag}-*")):
            attempt = path.name.split("-")[1]
            if attempt.isdecimal() and int(attempt) < before_attempt and path.name not in keep:
                path.unlink(missing_ok=True)
                removed += 1
        return removed


def _publish(committable: Committable, staged: Path, target: Path, *, verify: bool) -> None:
    """Create a hard link to a staged file under its final name.

    If the file was already published, check the content of the published file instead.

    Arguments:
        committable: the committable of the file.
        staged: the path of the staged file.
        target: the path under which it is published.
        verify: whether to compare the content of the staged file with its checksum.

    Raises:
        JobError: if the staged file is missing or was changed, if another file has the final name,
            or if the hard link cannot be created.
    """
    payload = committable.payload
    try:
        size = staged.stat().st_size
        if size != payload["size"]:
            raise JobError(
                f"the staged file {staged} has {size} bytes instead of {payload['size']}: "
                f"it was changed, so it cannot be published as {target}",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        if verify and not _has_content(staged, payload):
            raise JobError(
                f"the staged file {staged} has another checksum than recorded: it was changed, so "
                f"it cannot be published as {target}",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        target.hardlink_to(staged)
    except FileExistsError:
        if not _has_content(target, payload):
            raise JobError(
                f"{target} is there already with other content, so snapshot "
                f"{committable.snapshot} cannot publish it: move it away and start the job again",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from None
    except FileNotFoundError:
        if not target.exists():
            raise JobError(
                f"output of snapshot {committable.snapshot} is lost: {staged} was removed "
                f"before it could be published as {target}{_elsewhere(payload, target)}. "
                f"Start from an earlier snapshot or afresh",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from None
        if not _has_content(target, payload):
            raise JobError(
                f"{target} was changed after it was published",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from None
    except OSError as error:
        raise JobError(
            f"{staged} cannot be published as {target}: {error.strerror or error}. The folder's "
            f"file system must allow hard links"
        ) from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise a `JobError` that names the path if the `with` block raises an `OSError`.

    The `OSError` of a full disk, for example, does not name the file.
    """
    try:
        yield
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror or error}") from error


def _elsewhere(payload: dict[str, Any], target: Path) -> str:
    """Return a hint that names the sink's folder at the time of staging.

    The result is an empty text if the sink still has the same folder.
    """
    folder = payload.get("folder", str(target.parent))
    return "" if folder == str(target.parent) else f" (the sink wrote to {folder} then)"


def _has_content(path: Path, payload: dict[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != payload["size"]:
        return False
    with path.open("rb") as file:
        return bool(hashlib.file_digest(file, new_digest).hexdigest() == payload["checksum"])


def new_digest() -> hashlib.blake2b:
    """Return a new hash object for the checksum of a staged file."""
    return hashlib.blake2b(digest_size=16)


def sink_tag(lineage: str, uid: str) -> str:
    """Return a hash of a lineage and a sink's uid, as a part of file names."""
    return hashlib.blake2b(
        f"{lineage}\0{uid}".encode(errors="surrogatepass"), digest_size=5
    ).hexdigest()
