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

import hashlib
import os
import re
from collections.abc import Collection
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
from penstock.connectors.staging_writer import (
    FileEncoder,
    StagingWriter,
    new_digest,
    remove_staged,
    sink_tag,
)
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.snapshot.storage.filesystem.durable_files import sync_path


class StagedFormat(Protocol):
    """The format of the files of a sink. Each file has an encoder of its own."""

    @property
    def extension(self) -> str:
        """Return the end of the names of the files, such as `.txt`."""

    def create_encoder(self) -> FileEncoder:
        """Return the encoder of a new file."""


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


class _FileWriter(StagingWriter):
    """Writes the records of one subtask to staged files, which have names to be published under."""

    def __init__(self, folder: Path, format: StagedFormat, context: WriterContext) -> None:
        super().__init__(
            folder / STAGING, lambda: make_staging(folder), format.create_encoder, context
        )
        self._folder, self._extension = folder, format.extension

    def payload(
        self, staged: dict[str, Any], snapshot: int, folder: str, index: int
    ) -> dict[str, Any]:
        name = published_name(self.context, snapshot, folder, index)
        # The folder is recorded for error messages and for people who inspect the manifest. The
        # committer uses the folder of its own sink.
        return {**staged, "target": name + self._extension, "folder": str(self._folder)}


def published_name(context: WriterContext, snapshot: int, folder: str, index: int) -> str:
    """Return the name under which a staged file is published, without its extension.

    The arguments are those of `StagingWriter.payload`.
    """
    uid = re.sub(r"[^A-Za-z0-9]+", "_", context.uid)[:40]
    tag = sink_tag(context.lineage, context.uid)
    name = f"part-{snapshot:010d}-{context.subtask:05d}-{context.attempt:04d}-{uid}-{tag}"
    return f"{folder}{'/' if folder else ''}{name}{f'-{index:04d}' if index else ''}"


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
        return remove_staged(self._folder / STAGING, lineage, uid, before_attempt, keep)


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
