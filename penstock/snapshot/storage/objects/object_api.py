"""Define the operations on objects that snapshots in an object store need.

`obstore_objects.py` implements them for S3, Google Cloud Storage and Azure. `memory_objects.py`
simulates a store with faults for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Objects(Protocol):
    """The objects below one prefix of an object store.

    Keys are relative to the prefix. A reader of an object never sees a part of it. A key that was
    written can be read at once, but `names` may lack it for a while. All methods block, and raise
    `StoreError` if the store cannot be reached or refuses.

    Attributes:
        url: the URL of the prefix, for messages.
    """

    url: str

    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, from bytes or from a local file; replace it if it exists."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet; return False if it exists.

        If the store repeats the request, the result may be False although this call has written the
        object. After an error, the object may appear later.
        """

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version, and return its new version.

        Return None if it has another version.
        """

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""

    def get_version(self, key: str) -> tuple[bytes, str] | None:
        """Return the content and the version of an object, or None if it does not exist."""

    def download(self, key: str, target: Path) -> bool:
        """Write the content of an object into a new local file; return False if there is none."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; objects that do not exist are ignored."""

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`. Objects that are new may be missing."""
