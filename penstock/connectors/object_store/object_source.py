"""A source that reads the objects of a store, as `FileSource` reads files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Generic

from penstock.connectors.bad_messages import side_output_tags
from penstock.connectors.columns.parquet_files import (
    ParquetReader,
    check_columns,
    open_parquet,
    parquet_splits,
)
from penstock.connectors.compressed_files import require_decompressor
from penstock.connectors.file_formats import FileFormat, TextLines
from penstock.connectors.file_watch import FoundFile
from penstock.connectors.files_source import (
    FilesSource,
    RecordReader,
    byte_ranges,
    require_format,
)
from penstock.connectors.folders import is_hidden
from penstock.connectors.object_store.object_file import ObjectFile
from penstock.connectors.object_store.parquet_rows import ParquetRows
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.metrics import LINES_SKIPPED
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import ReaderContext, SourceReader, Split
from penstock.dataflow.type_variables import T
from penstock.object_store import ObjectStore, require_obstore

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_LISTED_AT_ONCE = 1000
_MAGIC = frozenset("*?[")


class ObjectStoreSource(FilesSource[T], Generic[T]):
    r"""Reads the records of objects in S3, Google Cloud Storage, Azure or a compatible store.

    A URL names an object, a prefix, or a glob such as `s3://logs/2026/**/*.jsonl.gz`. Under a
    prefix, and in globs, names with a part that begins with `_` or `.` are skipped. Objects whose
    names end in `.gz` or `.zst` are decompressed. Positions are those of `FileSource`, so a resumed
    job requests the rest of an object only, unless it is compressed or CSV.

    An object must not change while the job may still read it. Each request names the ETag that the
    object had when it was found, and the job fails if it has another now.

    By default, the objects are listed once, and the source ends. With `discovery_seconds` it lists
    them again and again, reads each new object once, and never ends.

    Arguments:
        urls: a URL or an `ObjectStore`, or a list of these.
        format: the format of the objects: `TextLines()`, `JsonLines()`, `CsvRows(...)`, another
            `LineFormat`, or `ParquetRows(...)`.
        split_bytes: the size of a byte range, in bytes. Larger plain objects of lines are divided
            into ranges of this size, so that several readers share them.
        discovery_seconds: the time between two searches for new objects, in seconds. With None,
            there is one search.
        clock: a function that returns a monotonic time, in seconds.

    Raises:
        GraphError: if obstore is not installed, or an argument has the wrong type or value.

    Examples:
        >>> store = ObjectStore("memory://words")
        >>> _ = store.open().put("a/words.txt", b"to be\nor not\n")
        >>> source = ObjectStoreSource(store)
        >>> [found.path.key for found in source.list_files()]
        ['a/words.txt']
    """

    def __init__(
        self,
        urls: str | ObjectStore | Iterable[str | ObjectStore],
        format: FileFormat[T] | ParquetRows | None = None,
        *,
        split_bytes: int = 64 << 20,
        discovery_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # An object appears when it is complete, so there is no need to wait until it is quiet.
        super().__init__(discovery_seconds, 0.0, clock)
        given = [urls] if isinstance(urls, (str, ObjectStore)) else list(urls)
        if not given:
            raise GraphError("an object store source needs at least one URL")
        chosen: Any = TextLines() if format is None else format
        if not isinstance(chosen, ParquetRows):
            require_format("an object store source", chosen)
        if split_bytes < 1:
            raise GraphError(f"split_bytes is a positive number of bytes, not {split_bytes!r}")
        self.stores = [ObjectStore.of(place) for place in given]
        self.format = chosen
        self.split_bytes = split_bytes

    @property
    def location(self) -> object:
        """The first of the URLs."""
        return self.stores[0].url

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        """The tag `BAD_MESSAGES` if the format emits bad lines to a side output."""
        if isinstance(self.format, ParquetRows):
            return ()
        return side_output_tags(self.format.on_error)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Return a reader that reads the records of these splits."""
        if isinstance(self.format, ParquetRows):
            columns, schema = self.format.columns, self.format.schema
            return ParquetReader(columns, schema, self._open_parquet, blocking=True)
        skipped = context.metrics.counter(LINES_SKIPPED)
        return RecordReader(self.format, self._file, skipped, blocking=True)

    def list_files(self) -> list[FoundFile]:
        """Return the objects that each URL names, each once, sorted by name."""
        files: dict[str, FoundFile] = {}
        for index, store in enumerate(self.stores):
            found = sorted(self._listed(index), key=lambda file: str(file.path))
            if not found:
                raise JobError(
                    f"{store} names no object: there is no such object, and none below this "
                    f"prefix; names with a part that begins with _ or . are skipped",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            for file in found:
                files.setdefault(str(file.path), file)
        return list(files.values())

    def watch_files(self) -> Iterator[FoundFile]:
        """Return the objects that are there now."""
        for index in range(len(self.stores)):
            yield from self._listed(index)

    def splits_of(self, found: FoundFile) -> list[Split]:
        """Return the splits of an object."""
        file = found.path
        payload = {
            "path": str(file),
            "store": file.index,
            "key": file.key,
            "size": file.size,
            "etag": file.etag,
        }
        if not isinstance(self.format, ParquetRows):
            return byte_ranges(file, self.format, self.split_bytes, payload)
        with _opened(file) as parquet:
            return list(parquet_splits(file, parquet, self.format.split_rows, payload))

    def validate(self) -> None:
        """Check that each URL names an object, or a place that can be listed.

        Raises:
            GraphError: if it does not, if a package is missing that decompresses the objects, or if
                a Parquet object lacks a column.
        """
        try:
            if not self.ends:
                for store in self.stores:
                    require_decompressor(ObjectFile(store, store.url, 0, ""))
                next(iter(self.watch_files()), None)
                return
            files = self.list_files()
            for found in files:
                require_decompressor(found.path)
            if isinstance(self.format, ParquetRows):
                with _opened(files[0].path) as parquet:
                    check_columns(files[0].path, parquet, self.format.columns)
        except JobError as error:
            raise GraphError(error.message) from None

    def _listed(self, index: int) -> Iterator[FoundFile]:
        """Yield the objects that a URL names now, in any order."""
        store = self.stores[index]
        obstore, opened = require_obstore(), store.open()
        folder, pattern = _split_pattern(store.prefix)
        with store.naming(f"{store} cannot be listed"):
            if folder and not pattern:
                try:
                    yield _found(store, index, obstore.head(opened, folder))
                    return
                except FileNotFoundError:
                    pass  # it is a prefix
            for chunk in obstore.list(opened, folder or None, chunk_size=_LISTED_AT_ONCE):
                for meta in chunk:
                    parts = meta["path"][len(folder) :].lstrip("/").split("/")
                    shown = not any(is_hidden(part, pattern) for part in parts)
                    if meta["size"] and shown and _matches(parts, pattern):
                        yield _found(store, index, meta)

    def _file(self, payload: dict[str, Any]) -> ObjectFile:
        index = payload["store"]
        if index >= len(self.stores):
            raise JobError(
                f"{payload['path']} was found by URL {index + 1} of the source, and the source has "
                f"{len(self.stores)} now: give it its URLs again",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        return ObjectFile(self.stores[index], payload["key"], payload["size"], payload["etag"])

    def _open_parquet(self, payload: dict[str, Any]) -> pq.ParquetFile:
        return _opened(self._file(payload))


class _FoundObject(ObjectFile):
    """An object, with the index of the URL that names it."""

    def __init__(self, store: ObjectStore, index: int, meta: Any) -> None:
        super().__init__(store, meta["path"], meta["size"], meta["e_tag"] or "")
        self.index = index


def _found(store: ObjectStore, index: int, meta: Any) -> FoundFile:
    version = meta["e_tag"] or meta["last_modified"].isoformat()
    return FoundFile(_FoundObject(store, index, meta), meta["size"], version)


def _opened(file: ObjectFile) -> pq.ParquetFile:
    # Arrow gathers the ranges of the columns of a row group, and requests few large ones.
    return open_parquet(file, file.open("rb", buffering=0), pre_buffer=True)


def _split_pattern(prefix: str) -> tuple[str, list[str]]:
    """Divide a prefix before its first part that has a wildcard; the rest may be empty."""
    parts = prefix.split("/")
    for index, part in enumerate(parts):
        if _MAGIC & set(part):
            return "/".join(parts[:index]), parts[index:]
    return prefix, []


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return whether the parts of a name match a glob pattern, or lie below a match of it."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
