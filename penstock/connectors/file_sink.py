"""Write files exactly once, in two phases.

A writer stages into `folder/_staging`, one file per snapshot. A snapshot seals the file, and the
committer publishes it by a hard link under its final name. `link` either creates the name or
fails, so a file appears whole or not at all. If the name exists with the recorded content, the
file was published before a crash. The order is link, sync the folder, unlink: so the data has a
durable name at any moment. `file_formats.py` has the formats.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from penstock.connectors.file_formats import FileFormat, TextLines
from penstock.connectors.folders import local_path
from penstock.connectors.staged_files import STAGING, staged_path, target_path
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.snapshot.storage.filesystem.durable_files import make_folders, sync_file, sync_path

__all__ = ["STAGING", "FileCommitter", "FileSink", "naming", "new_digest", "sink_tag"]

_BUFFER_BYTES = 1 << 18


class FileSink(Sink):
    """Write files into a folder, one per subtask and snapshot, exactly once.

    Names sort by snapshot: `part-<snapshot>-<subtask>-<attempt>-<uid>-<tag>.<extension>`, where
    the tag stands for lineage and uid, so that several sinks and jobs can share a folder. A
    snapshot without records makes no file. Readers should skip names beginning with `_`, as
    Spark and `FileSource` do. The folder's file system must have hard links, and all workers and
    the JobManager must see it under the same path.

    Arguments:
        folder: folder of the published files. It is created if it is missing.
        format: format of the files: `TextLines()`, `JsonLines()` or `CsvRows(...)`.

    Raises:
        GraphError: if an argument is of the wrong kind.
    """

    exactly_once = True

    def __init__(self, folder: str | os.PathLike[str], format: FileFormat | None = None) -> None:
        format = TextLines() if format is None else format
        if not isinstance(format, FileFormat):
            raise GraphError(
                f"the format of a file sink is TextLines(), JsonLines() or CsvRows(), "
                f"not {format!r}"
            )
        self.folder = local_path(folder)
        self.format = format

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages files."""
        return _FileWriter(self.folder, self.format, context)

    def create_committer(self) -> FileCommitter:
        """Return the committer that publishes files."""
        return FileCommitter(self.folder)

    def validate(self) -> None:
        """Check that the folder exists or can be created.

        Raises:
            GraphError: if it cannot.
        """
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if not existing.is_dir():
            raise GraphError(f"the folder {self.folder} cannot be created: {existing} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise GraphError(f"the folder {self.folder} cannot be written: no access to {existing}")


class _FileWriter(SinkWriter):
    """Stage the records of one subtask."""

    def __init__(self, folder: Path, format: FileFormat, context: WriterContext) -> None:
        self._folder = folder
        self._staging = folder / STAGING
        self._format = format
        self._context = context
        self._tag = sink_tag(context.lineage, context.uid)
        self._files = 0
        self._staged: _StagedFile | None = None

    def write(self, batch: list[Any]) -> None:
        if not batch:
            return
        if self._staged is None:
            with naming(self._staging):
                make_folders(self._staging)
                self._staged = _StagedFile(self._free_name(), self._format)
        self._staged.write(batch)

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        staged, self._staged = self._staged, None
        if staged is None:
            return None
        ctx = self._context
        uid = re.sub(r"[^A-Za-z0-9]+", "_", ctx.uid)[:40]
        name = f"part-{snapshot:010d}-{ctx.subtask:05d}-{ctx.attempt:04d}-{uid}-{self._tag}"
        target = name + self._format.extension

        def seal() -> list[Any]:
            # The folder is for readers of the manifest. The committer uses its own folder.
            return [{**staged.seal(), "target": target, "folder": str(self._folder)}]

        return seal

    def close(self) -> None:
        if self._staged is not None:
            self._staged.discard()
            self._staged = None

    def _free_name(self) -> Path:
        """Return a new name for a staged file, with a prefix that only this writer uses."""
        ctx = self._context
        while True:
            name = f"{self._tag}-{ctx.attempt:04d}-{ctx.subtask:05d}-{self._files:08d}"
            self._files += 1
            # A job that was stopped and started again may count its attempts from the start. A file
            # of the earlier run may still wait for its commit.
            if not (self._staging / name).exists():
                return self._staging / name


class _StagedFile:
    """Write one staged file, and compute its checksum on the way."""

    def __init__(self, path: Path, format: FileFormat) -> None:
        self._path = path
        self._encode = format.create_encoder()
        self._digest = new_digest()
        self._size = 0
        self._file = path.open("xb", buffering=_BUFFER_BYTES)

    def write(self, batch: list[Any]) -> None:
        data = self._encode(batch)
        self._digest.update(data)
        self._size += len(data)
        with naming(self._path):
            self._file.write(data)

    def seal(self) -> dict[str, Any]:
        """Make the file durable, and return its name, size and checksum."""
        with naming(self._path), self._file:
            sync_file(self._file)
            sync_path(self._path.parent)
        checksum = self._digest.hexdigest()
        return {"staged": self._path.name, "size": self._size, "checksum": checksum}

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class FileCommitter(Committer):
    """Publish staged files.

    Arguments:
        folder: the sink's folder, which holds the staged files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, committables: list[Committable]) -> None:
        """Link every file under its final name, then remove the staged names.

        Raises:
            JobError: if a staged file was lost or damaged, a name is taken by other content, or
                the file system can't link.
        """
        self.publish(committables)
        # Only now: until the folder is synced, only the staged name is durable.
        self.abandon(committables)

    def publish(self, committables: list[Committable]) -> None:
        """Link every file durably under its final name; the staged names stay.

        Raises:
            JobError: as `commit`.
        """
        # Check all names first, so that nothing is published if one is refused.
        files = [(c, self.staged(c), self.target(c)) for c in committables]
        for committable, staged, target in files:
            _publish(committable, staged, target)
        for folder in {target.parent for _, _, target in files}:
            sync_path(folder)

    def abandon(self, committables: list[Committable]) -> None:
        """Remove the staged files that still exist."""
        for staged in [self.staged(committable) for committable in committables]:
            staged.unlink(missing_ok=True)

    def staged(self, committable: Committable) -> Path:
        """Return the path of a committable's staged file; see `staged_path`."""
        return staged_path(self._folder, committable)

    def target(self, committable: Committable) -> Path:
        """Return the path under which a committable is published; see `target_path`."""
        return target_path(self._folder, committable)

    def clean(self, lineage: str, uid: str, before_attempt: int, keep: Collection[str] = ()) -> int:
        """Remove files that older attempts staged and that no snapshot refers to.

        Arguments:
            lineage: the line of snapshots that the staged files belong to.
            uid: uid of the sink; files of other sinks in the folder are not touched.
            before_attempt: staged files of this attempt and later ones stay.
            keep: names of staged files (`payload["staged"]`) that a manifest refers to.

        Returns:
            The number of removed files.
        """
        removed = 0
        tag = sink_tag(lineage, uid)
        for path in sorted((self._folder / STAGING).glob(f"{tag}-*")):
            attempt = path.name.split("-")[1]
            if attempt.isdecimal() and int(attempt) < before_attempt and path.name not in keep:
                path.unlink(missing_ok=True)
                removed += 1
        return removed


def _publish(committable: Committable, staged: Path, target: Path) -> None:
    """Give a staged file its final name, unless this was done before."""
    payload = committable.payload
    try:
        size = staged.stat().st_size
        if size != payload["size"]:
            raise JobError(
                f"the staged file {staged} has {size} bytes instead of {payload['size']}: "
                f"it was changed, so it cannot be published as {target}",
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
    """Add the path to errors of writing: the error of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror or error}") from error


def _elsewhere(payload: dict[str, Any], target: Path) -> str:
    """Return a hint if the sink had another folder when it staged a file."""
    folder = payload.get("folder", str(target.parent))
    return "" if folder == str(target.parent) else f" (the sink wrote to {folder} then)"


def _has_content(path: Path, payload: dict[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != payload["size"]:
        return False
    with path.open("rb") as file:
        return bool(hashlib.file_digest(file, new_digest).hexdigest() == payload["checksum"])


def new_digest() -> hashlib.blake2b:
    """Return the hash object for checksums of staged files."""
    return hashlib.blake2b(digest_size=16)


def sink_tag(lineage: str, uid: str) -> str:
    """Return a short name of a sink, with only characters that file names allow."""
    return hashlib.blake2b(
        f"{lineage}\0{uid}".encode(errors="surrogatepass"), digest_size=5
    ).hexdigest()
