"""The folder of a table: of the local file system, or a prefix of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.folders import local_path
from penstock.connectors.object_store.object_file import ObjectFile
from penstock.dataflow.errors import JobError
from penstock.object_store import ObjectStore, require_obstore


class TableStore:
    """Reads the files of one table.

    Arguments:
        place: the path of the folder, a URL such as `s3://bucket/table`, or an `ObjectStore`.
    """

    def __init__(self, place: Any) -> None:
        if isinstance(place, str) and "://" in place and not place.startswith("file:"):
            place = ObjectStore(place)
        self.store = place if isinstance(place, ObjectStore) else None
        self.folder = None if self.store is not None else local_path(place)

    def __str__(self) -> str:
        return self.uri

    @property
    def uri(self) -> str:
        """The path or the URL of the table."""
        if self.store is not None:
            return f"{self.store.bucket}/{self.store.prefix}"
        return str(self.folder)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The options with which deltalake reaches the table."""
        store = self.store
        if store is None:
            return None
        options = {key: str(value) for key, value in store.options.items()}
        if store.endpoint is not None:
            options["endpoint"] = store.endpoint
            options["allow_http"] = str(store.endpoint.startswith("http://")).lower()
        options["timeout"] = f"{store.timeout_seconds:g}s"
        return options

    def path(self, name: str) -> str:
        """Return the path or URL of a file of the table."""
        return f"{self.uri}/{name}"

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            if self.store is None:
                return Path(self.path(name)).read_bytes()
            with self.store.naming(f"{self.path(name)} cannot be read"):
                key = f"{self.store.prefix}/{name}".lstrip("/")
                return bytes(require_obstore().get(self.store.open(), key).bytes())
        except FileNotFoundError:
            return None

    def parquet(self, name: str, size: int) -> pq.ParquetFile:
        """Open a Parquet file.

        Raises:
            FileNotFoundError: if it does not exist.
            JobError: if it cannot be read.
        """
        path = self.path(name)
        source: Any = path
        if self.store is not None:
            key = f"{self.store.prefix}/{name}".lstrip("/")
            with self.store.naming(f"{path} cannot be read"):
                meta = require_obstore().head(self.store.open(), key)
            source = ObjectFile(self.store, key, size, meta["e_tag"] or "").open(buffering=0)
        try:
            return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise JobError(f"{path} is no Parquet file that can be read: {error}") from error
