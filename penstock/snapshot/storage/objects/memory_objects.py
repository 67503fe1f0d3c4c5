"""An object store in memory that simulates faults, for tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error

#: The text of the errors that the simulation raises.
SIMULATED_OBJECT_FAULT = "simulated fault of the object store"


class MemoryBucket:
    """The objects of a simulated store, which several clients share.

    Arguments:
        seed: the seed of all random choices.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.objects: dict[str, tuple[bytes, str]] = {}
        #: The keys that listings do not contain yet.
        self.unlisted: set[str] = set()
        #: Requests that failed for their client, and that reach the store later.
        self.late: list[Callable[[], object]] = []
        #: The number of writes, by the first part of their keys.
        self.writes: dict[str, int] = {}
        self._versions = 0

    def write(self, key: str, data: bytes) -> str:
        """Write an object, and return its version."""
        self._versions += 1
        self.objects[key] = data, str(self._versions)
        self.unlisted.add(key)
        kind = key.partition("/")[0]
        self.writes[kind] = self.writes.get(kind, 0) + 1
        return str(self._versions)

    def arrive(self) -> None:
        """Let requests that are on their way reach the store."""
        late, self.late = self.late, []
        for request in late:
            request()

    def settle(self) -> None:
        """Let requests that are on their way reach the store, and complete the listings."""
        self.arrive()
        self.unlisted.clear()


class MemoryObjects:
    """A client of a `MemoryBucket`.

    Arguments:
        bucket: the objects.
        failure_rate: the probability that a request fails. A write that fails has reached the store
            already, or reaches it later, or never.
        hook: called with the operation and the key before each request; it may raise an error.
    """

    url = "memory://bucket"

    def __init__(
        self,
        bucket: MemoryBucket,
        failure_rate: float = 0.0,
        hook: Callable[[str, str], None] | None = None,
    ) -> None:
        self.failure_rate = failure_rate
        self._bucket = bucket
        self._hook = hook or _ignore

    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, from bytes or from a local file; replace it if it exists."""
        content = data if isinstance(data, bytes) else _read_file(data)
        self._request("put", key, lambda: self._bucket.write(key, content))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; return False if it exists."""

        def create() -> bool:
            if key in self._bucket.objects:
                return False
            self._bucket.write(key, data)
            return True

        return bool(self._request("create", key, create))

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version, and return its new version."""

        def replace() -> str | None:
            if self._bucket.objects.get(key, (b"", ""))[1] != version:
                return None
            return self._bucket.write(key, data)

        replaced = self._request("replace", key, replace)
        return None if replaced is None else str(replaced)

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        found = self.get_version(key)
        return None if found is None else found[0]

    def get_version(self, key: str) -> tuple[bytes, str] | None:
        """Return the content and the version of an object, or None if it does not exist."""
        self._read("get", key)
        return self._bucket.objects.get(key)

    def download(self, key: str, target: Path) -> bool:
        """Write the content of an object into a new local file; return False if there is none."""
        content = self.get(key)
        if content is None:
            return False
        target.write_bytes(content)
        return True

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; objects that do not exist are ignored."""

        def delete() -> None:
            for key in keys:
                self._bucket.objects.pop(key, None)

        self._request("delete", ",".join(keys), delete)

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`. Objects that are new may be missing."""
        self._read("list", prefix)
        return sorted(
            key
            for key in self._bucket.objects
            if key.startswith(prefix) and key not in self._bucket.unlisted
        )

    def _fails(self) -> bool:
        return bool(self.failure_rate) and self._bucket.random.random() < self.failure_rate

    def _read(self, operation: str, key: str) -> None:
        self._hook(operation, key)
        if self._fails():
            raise _fault(operation, key)

    def _request(self, operation: str, key: str, change: Callable[[], object]) -> object:
        """Execute a change in the store, or fail before, after or in the middle of it."""
        self._hook(operation, key)
        if not self._fails():
            return change()
        match self._bucket.random.randrange(3):
            case 0:
                change()
            case 1:
                self._bucket.late.append(change)
        raise _fault(operation, key)


def _read_file(path: Path) -> bytes:
    with raising_store_error("read a file of a snapshot", path):
        return path.read_bytes()


def _ignore(operation: str, key: str) -> None:
    del operation, key


def _fault(operation: str, key: str) -> StoreError:
    return StoreError(
        f"{SIMULATED_OBJECT_FAULT}: {operation} {key}", recoverability=Recoverability.ENVIRONMENT
    )
