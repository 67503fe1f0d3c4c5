"""Implement the operations on objects through obstore, for S3, Google Cloud Storage and Azure.

obstore repeats a request that fails in the network or in the server, with a growing pause.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.dataflow.errors import JobError, Recoverability, StoreError
from penstock.object_store import ObjectStore, require_obstore
from penstock.snapshot.storage.filesystem.durable_files import sync_file
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error

#: The variables of AWS's own tools for the address of a server that is compatible with S3.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
#: Files up to this size are sent in one request, in bytes. Larger ones are sent in parts.
_ONE_REQUEST = 16 * 1024 * 1024
_DELETED_AT_ONCE = 500
#: The number of times that an object is read if the connection ends in its middle, and the first
#: pause between them, in seconds.
_READS, _PAUSE_SECONDS = 6, 0.1


class ObstoreObjects:
    """The objects below a URL.

    Credentials, the region and the address of the server come from the environment, under the names
    that the tools of the vendor use.

    Arguments:
        url: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or the
            like.
        retry_seconds: the time for which a failed request is repeated, in seconds.
        timeout_seconds: the time for one request, in seconds.

    Raises:
        GraphError: if obstore is not installed, or the URL is wrong.
    """

    def __init__(
        self, url: str, *, retry_seconds: float = 30.0, timeout_seconds: float = 30.0
    ) -> None:
        found = (os.environ.get(name) for name in _ENDPOINTS)
        endpoint = next(filter(None, found), None) if url.startswith("s3") else None
        self._store = ObjectStore(
            url,
            endpoint=endpoint,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
        )
        self.url = url.rstrip("/")

    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, from bytes or from a local file; replace it if it exists."""
        obstore = require_obstore()
        with self._naming("cannot write", key):
            if isinstance(data, Path):
                with raising_store_error("read a file of a snapshot", data):
                    if data.stat().st_size > _ONE_REQUEST:
                        obstore.put(self._store.open(), self._key(key), data)
                        return
                    data = data.read_bytes()
            obstore.put(self._store.open(), self._key(key), data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; return False if it exists."""
        obstore = require_obstore()
        with self._naming("cannot write", key):
            try:
                obstore.put(
                    self._store.open(), self._key(key), data, mode="create", use_multipart=False
                )
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return False
            return True

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version, and return its new version."""
        obstore = require_obstore()
        tag, _, number = version.partition(" ")
        known = {"e_tag": tag, "version": number}
        mode = {name: value for name, value in known.items() if value}
        with self._naming("cannot write", key):
            try:
                written = obstore.put(
                    self._store.open(), self._key(key), data, mode=mode, use_multipart=False
                )
            except (
                obstore.exceptions.AlreadyExistsError,
                obstore.exceptions.PreconditionError,
                FileNotFoundError,
            ):
                return None
            return _version(written)

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        found = self.get_version(key)
        return None if found is None else found[0]

    def get_version(self, key: str) -> tuple[bytes, str] | None:
        """Return the content and the version of an object, or None if it does not exist."""
        read: list[bytes] = []
        meta = self._read(key, read.append, read.clear)
        return None if meta is None else (b"".join(read), _version(meta))

    def download(self, key: str, target: Path) -> bool:
        """Write the content of an object into a new local file; return False if there is none."""
        doing = "write a file of a snapshot"
        with raising_store_error(doing, target), target.open("wb") as file:

            def begin() -> None:
                file.seek(0)
                file.truncate()

            found = self._read(key, file.write, begin)
            sync_file(file)
        return found is not None

    def _read(
        self, key: str, write: Callable[[bytes], object], begin: Callable[[], object]
    ) -> Mapping[str, object] | None:
        """Pass the content of an object to `write`, and return what the store knows of the object.

        Return None if the object does not exist. obstore repeats a request only until its answer
        begins. If the connection ends later, the object is read again from its beginning, and
        `begin` is called before that.
        """
        obstore = require_obstore()
        for turn in range(_READS):
            with self._naming("cannot read", key):
                try:
                    result = obstore.get(self._store.open(), self._key(key))
                except FileNotFoundError as error:
                    if "NoSuchBucket" in str(error):
                        raise
                    return None
                begin()
                try:
                    for chunk in result.stream():
                        write(bytes(chunk))
                except obstore.exceptions.BaseError:
                    if turn == _READS - 1:
                        raise
                    time.sleep(_PAUSE_SECONDS * 2**turn)
                    continue
                meta: Mapping[str, object] = result.meta
                return meta
        raise AssertionError

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; objects that do not exist are ignored."""
        obstore = require_obstore()
        for begin in range(0, len(keys), _DELETED_AT_ONCE):
            part = keys[begin : begin + _DELETED_AT_ONCE]
            with self._naming("cannot remove", part[0]), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store.open(), [self._key(key) for key in part])

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`. Objects that are new may be missing."""
        obstore = require_obstore()
        begin = len(self._key(""))
        with self._naming("cannot list", prefix):
            listed = obstore.list(self._store.open(), self._key(prefix).rstrip("/") or None)
            return sorted(meta["path"][begin:] for chunk in listed for meta in chunk)

    def _key(self, key: str) -> str:
        return f"{self._store.prefix}/{key}" if self._store.prefix else key

    @contextlib.contextmanager
    def _naming(self, what: str, key: str) -> Iterator[None]:
        """Convert errors of obstore to a `StoreError` that names the object."""
        place = f"{self.url}/{key}"
        try:
            with self._store.naming(f"{what} {place}"):
                yield
        except JobError as error:
            raise StoreError(str(error), recoverability=error.recoverability) from error
        except FileNotFoundError as error:
            raise StoreError(
                f"there is no bucket for {self.url}: create it, or correct the URL",
                recoverability=Recoverability.NON_RECOVERABLE,
            ) from error


def _version(meta: Mapping[str, object]) -> str:
    """Return the tag and the version of an object as one text."""
    return f"{meta.get('e_tag') or ''} {meta.get('version') or ''}"
