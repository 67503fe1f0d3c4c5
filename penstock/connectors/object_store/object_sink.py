"""A sink that publishes objects in a store, as `FileSink` publishes files.

Writers stage files in the job's folder, so that no reader of the store sees output that may be
thrown away, and no bucket fills with it. When a snapshot is complete, the committer puts each file
under its final name, on the condition that there is no object of this name. If there is one, it is
compared: after a crash it is the same. (Decision record 048.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from penstock.connectors.file_formats import FileFormat, TextLines
from penstock.connectors.file_sink import StagedFormat, published_name
from penstock.connectors.object_store.merged_files import Merger, merge_files
from penstock.connectors.object_store.parquet_rows import ParquetRows
from penstock.connectors.staged_sink import make_staging
from penstock.connectors.staging_writer import (
    STAGED_NAME,
    FileLayout,
    StagingWriter,
    is_visible,
    new_digest,
    remove_staged,
)
from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import (
    Committable,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
)
from penstock.object_store import ObjectStore, require_obstore

#: Larger files are put in parts, for which stores have no condition. The name is checked before.
_LARGEST_PUT = 64 << 20
_PART_BYTES = 16 << 20
#: The number of objects that are put at the same time.
_AT_ONCE = 4
_MOST_COUNTED = 1000


class ObjectStoreSink(Sink[Any]):
    r"""Writes objects to S3, Google Cloud Storage, Azure or a compatible store, exactly once.

    Objects are named like the files of `FileSink`:
    `<prefix>/<partition>/part-<snapshot>-<subtask>-<attempt>-<uid>-<tag>.<extension>`. So the names
    sort by snapshot, and several sinks and jobs can share a prefix. They appear as a whole, when
    the snapshot is complete.

    Arguments:
        url: the URL of a prefix in a bucket, or an `ObjectStore`.
        format: the format of the objects: `TextLines()`, `JsonLines()`, `CsvRows(...)` or
            `ParquetRows(...)`.
        partition_by: a function that returns the folder of a record, such as `day=2026-11-26` or
            `year=2026/month=11`; None puts all objects under the prefix itself.
        max_bytes: the size at which an object is complete before the barrier, in bytes.
        compact_bytes: the files of all subtasks that are smaller than this are merged, folder by
            folder, to objects of about this size, in bytes. 0 does not merge.

    Raises:
        GraphError: if obstore is not installed, or an argument is wrong.

    Examples:
        >>> store = ObjectStore("memory://letters")
        >>> sink = ObjectStoreSink(store, JsonLines(), partition_by=lambda word: f"first={word[0]}")
        >>> sink.location
        'memory://letters'
    """

    exactly_once = True
    stages_in_job = True

    def __init__(
        self,
        url: str | ObjectStore,
        format: FileFormat[Any] | ParquetRows | None = None,
        *,
        partition_by: Callable[[Any], str] | None = None,
        max_bytes: int = _LARGEST_PUT,
        compact_bytes: int = 0,
    ) -> None:
        chosen: Any = TextLines() if format is None else format
        if not isinstance(chosen, (FileFormat, ParquetRows)):
            raise GraphError(
                f"the format of an object store sink is TextLines(), JsonLines(), CsvRows() or "
                f"ParquetRows(), not {chosen!r}"
            )
        self.store = ObjectStore.of(url)
        if any(sign in self.store.prefix for sign in "*?["):
            raise GraphError(f"an object store sink writes below one prefix, not {self.store}")
        self.format: StagedFormat = chosen
        self.layout = FileLayout(partition_by, whole_number("max_bytes", max_bytes, 1))
        self.compact_bytes = whole_number("compact_bytes", compact_bytes, 0)

    @property
    def location(self) -> object:
        """The URL."""
        return self.store.url

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages the files of one subtask."""
        return _ObjectWriter(self, context)

    def create_committer(self) -> Committer:
        """Return the committer that puts the staged files into the store."""
        return ObjectCommitter(self.store, Merger.of(self.format))

    def earlier_output(self) -> str | None:
        """Return the number of published objects as text; None if there are none."""
        store = self.store
        with store.naming(f"{store} cannot be listed"):
            listed = require_obstore().list(store.open(), store.prefix or None)
            names = (meta["path"].rpartition("/")[2] for meta in chain.from_iterable(listed))
            count = sum(name.startswith("part-") for name in islice(names, _MOST_COUNTED))
        return f"{count} object{'s' * (count > 1)} in {store}" if count else None

    def validate(self) -> None:
        """Check that the store answers.

        Raises:
            GraphError: if the bucket does not exist, or the store refuses the credentials or does
                not answer.
        """
        try:
            self.earlier_output()
        except JobError as error:
            raise GraphError(error.message) from None


class _ObjectWriter(StagingWriter):
    """Writes the records of one subtask to staged files, which have names to be put under."""

    def __init__(self, sink: ObjectStoreSink, context: WriterContext) -> None:
        if context.staging is None:
            raise JobError("an object store sink needs the staging folder of a job")
        staging = context.staging
        super().__init__(
            staging, lambda: make_staging(staging), sink.format.create_encoder, context, sink.layout
        )
        self._extension, self._compact_bytes = sink.format.extension, sink.compact_bytes

    def payload(
        self, staged: dict[str, Any], snapshot: int, folder: str, index: int
    ) -> dict[str, Any]:
        name = published_name(self.context, snapshot, folder, index)
        # Whether files are merged is decided here. A program with other arguments that resumes the
        # job would otherwise put output that is there already under other names.
        compact = {"compact": self._compact_bytes} if self._compact_bytes else {}
        return {**staged, "target": name + self._extension, **compact}


@dataclass(frozen=True)
class StagedObject:
    """An object to put, and the staged files that it is made of.

    Arguments:
        key: the name of the object in the bucket.
        snapshot: the number of the snapshot.
        staged: the paths of the files, as far as they exist.
        files: the payloads of the files' committables.
    """

    key: str
    snapshot: int
    staged: list[Path]
    files: list[dict[str, Any]]


class ObjectCommitter(Committer):
    """Puts staged files into a store.

    Arguments:
        store: the store, with the prefix of the objects.
        merger: merges files of the sink's format.
    """

    def __init__(self, store: ObjectStore, merger: Merger) -> None:
        self._store, self._merger = store, merger
        self._context = CommitterContext("", "")

    def open(self, context: CommitterContext) -> None:
        """Set the run, which says where staged files are."""
        self._context = context

    def commit(self, committables: list[Committable]) -> None:
        """Put every staged file under its final name, and remove the staged files.

        Raises:
            JobError: if a staged file is missing or was changed, if another object has the final
                name, or if the store cannot be written.
        """
        # Check all names first, so that nothing is published if one of the names is refused.
        objects = list(self._objects(committables))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done in [pool.submit(self.put, one) for one in objects]:
                done.result()
        for path in (path for one in objects for path in one.staged):
            path.unlink(missing_ok=True)

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Remove staged files that no snapshot has."""
        own = self._context.staging[:1]
        return sum(remove_staged(folder, lineage, uid, before_attempt) for folder in own)

    def _objects(self, committables: list[Committable]) -> Iterator[StagedObject]:
        """Yield the objects that are made of staged files: one of each, or of several."""
        groups: dict[tuple[Any, ...], list[Committable]] = {}
        for item in committables:
            payload = self.checked(item)
            compact, folder = payload.get("compact", 0), payload["target"].rpartition("/")[0]
            if payload["size"] >= compact:
                yield self._object(item.payload["target"], [item])
            else:
                key = (item.lineage, item.uid, item.snapshot, compact, folder)
                groups.setdefault(key, []).append(item)
        for (*_, compact, _), items in groups.items():
            part: list[Committable] = []
            size = 0
            # The order is the same in every commit, so that each makes the same objects.
            for item in sorted(items, key=lambda item: item.payload["target"]):
                part.append(item)
                size += item.payload["size"]
                if size >= compact:
                    yield self._object(part[0].payload["target"], part)
                    part, size = [], 0
            if part:
                yield self._object(part[0].payload["target"], part)

    def _object(self, target: str, items: list[Committable]) -> StagedObject:
        key = f"{self._store.prefix}/{target}".lstrip("/")
        paths = [self.staged(item.payload["staged"]) for item in items]
        return StagedObject(key, items[0].snapshot, paths, [item.payload for item in items])

    def staged(self, name: str) -> Path:
        """Return the path of a staged file, also if the file does not exist."""
        paths = [folder / name for folder in self._context.staging]
        return next((path for path in paths if path.is_file() and not path.is_symlink()), paths[0])

    @staticmethod
    def checked(item: Committable) -> dict[str, Any]:
        """Return the payload of a committable, which is not trusted."""
        payload: Any = item.payload
        kinds = {"staged": str, "target": str, "size": int, "checksum": str}
        if (
            not isinstance(payload, dict)
            or not all(isinstance(payload.get(key), kind) for key, kind in kinds.items())
            or not STAGED_NAME.fullmatch(payload["staged"])
            or not is_visible(payload["target"])
            or not payload["target"].rpartition("/")[2].startswith("part-")
        ):
            raise JobError(
                f"snapshot {item.snapshot} holds output that this sink has not staged: "
                f"{str(payload)[:100]!r}. Nothing was published",
                operator=f"sink {item.uid}",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return payload

    def put(self, one: StagedObject) -> None:
        """Put an object under its name, unless it is there already.

        Raises:
            JobError: if a staged file is missing or was changed, if another object has the name, or
                if the store cannot be written.
        """
        store, url = self._store, self._store.path(one.key)
        obstore = require_obstore()
        if not all(path.is_file() for path in one.staged):
            # An earlier process has removed them when all objects were there.
            if self._size(one.key) is None:
                lost = next(path for path in one.staged if not path.is_file())
                raise JobError(
                    f"output of snapshot {one.snapshot} is lost: {lost} was removed before it "
                    f"could be published as {url}. Start from an earlier snapshot or afresh",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            return
        content = self._content(one)
        large = content if isinstance(content, Path) else None
        with store.naming(f"{url} cannot be written"):
            try:
                if large is None:
                    obstore.put(store.open(), one.key, content, mode="create", use_multipart=False)
                    return
                if self._size(one.key) is None:
                    obstore.put(store.open(), one.key, large, chunk_size=_PART_BYTES)
                    return
            except obstore.exceptions.AlreadyExistsError:
                pass
        if self._digest(one.key) != _digest_of(content):
            raise JobError(
                f"{url} is there already with other content, so snapshot {one.snapshot} cannot "
                f"publish it: move it away and start the job again",
                recoverability=Recoverability.NON_RECOVERABLE,
            )

    def _content(self, one: StagedObject) -> bytes | Path:
        """Return the content of an object, or the path of a large one.

        Raises:
            JobError: if a staged file was changed.
        """
        for path, payload in zip(one.staged, one.files, strict=True):
            try:
                size = path.stat().st_size
                changed = size != payload["size"] or _digest_of(path) != payload["checksum"]
            except OSError as error:
                raise JobError(f"{path} cannot be read: {error.strerror or error}") from error
            if changed:
                raise JobError(
                    f"the staged file {path} has another size or checksum than recorded: it was "
                    f"changed, so it cannot be published as {self._store.path(one.key)}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
        if len(one.staged) > 1:
            return merge_files(self._merger, one.staged)
        return one.staged[0] if size > _LARGEST_PUT else one.staged[0].read_bytes()

    def _size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        store = self._store
        try:
            with store.naming(f"{store.path(key)} cannot be read"):
                size: int = require_obstore().head(store.open(), key)["size"]
                return size
        except FileNotFoundError:
            return None

    def _digest(self, key: str) -> str | None:
        """Return the checksum of an object, or None if it does not exist."""
        store, digest = self._store, new_digest()
        try:
            with store.naming(f"{store.path(key)} cannot be read"):
                for chunk in require_obstore().get(store.open(), key).stream():
                    digest.update(chunk)
        except FileNotFoundError:
            return None
        return digest.hexdigest()


def _digest_of(content: bytes | Path) -> str:
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, new_digest).hexdigest()
    digest = new_digest()
    digest.update(content)
    return digest.hexdigest()
