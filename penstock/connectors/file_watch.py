"""Find the new files of folders that are watched, for `FilesSource`.

A file is new if its path is unknown. It is *ready* when its size and its version have not changed
for a while, so a file is not read while it is being written.

The watch remembers each file that is there, and the last files that were removed: by a digest of
its path, and one of its size and version. A file that is removed and put back unchanged is not read
again, for example if a network share was not mounted for a while.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from penstock.dataflow.errors import GraphError

#: The number of removed files that are remembered. If more files were there at once, it is their
#: number, so that a share that is not mounted for a while is not read again.
LEAST_REMOVED = 10_000
_PATH_BYTES = 10
_STATUS_BYTES = 6
_ENTRY_BYTES = _PATH_BYTES + _STATUS_BYTES

logger = logging.getLogger("penstock.connectors")


class FoundFile(NamedTuple):
    """A file that was found.

    Arguments:
        path: the path of the file. Its text is the same in every run, and no other file has it.
        size: the size of the file, in bytes.
        version: a value that changes with the content of the file: the modification time of a
            local file, in nanoseconds, or the ETag of an object.
    """

    path: Any
    size: int
    version: int | str


class FileWatch:
    """Finds the new files of some paths, each once.

    Arguments:
        list_files: a function that returns the files that are there now, in any order.
        quiet_seconds: the time for which a file must not have changed, in seconds; 0 takes each
            file at once.
        clock: a function that returns a monotonic time, in seconds.
    """

    def __init__(
        self,
        list_files: Callable[[], Iterable[FoundFile]],
        quiet_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._list_files = list_files
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        #: The digest of the status of each file that was found, keyed by the digest of its path.
        self._seen: dict[bytes, bytes] = {}
        #: The same of files that were removed later, the oldest removal first.
        self._removed: dict[bytes, bytes] = {}
        #: The largest number of files that were there at once.
        self._most = 0
        #: For each file that is not ready yet, its status and the time at which it had it first.
        self._waiting: dict[bytes, tuple[bytes, float]] = {}
        #: The result of `snapshot`, until something changes.
        self._snapshot: dict[str, bytes] | None = None

    def find(self) -> list[FoundFile]:
        """Return the files that are new and ready, sorted by path, and remember them.

        Raises:
            JobError: if a folder is not there, or cannot be read.
        """
        now = self._clock()
        ready: list[FoundFile] = []
        seen: dict[bytes, bytes] = {}
        waiting: dict[bytes, tuple[bytes, float]] = {}
        for found in self._list_files():
            key, mark = _digest_of(found), _digest_of_version(found)
            if key in seen or key in waiting:
                continue  # two of the paths have it
            before = self._seen.get(key)
            if before is not None:
                if before != mark:
                    _warn_of_change(found)
                seen[key] = mark
            elif self._removed.get(key) == mark:
                seen[key] = self._removed.pop(key)
            elif found.size:
                first, since = self._waiting.get(key, (mark, now))
                since = since if first == mark else now
                if now - since >= self._quiet_seconds:
                    seen[key] = mark
                    ready.append(found)
                else:
                    waiting[key] = mark, since
        self._removed |= {key: mark for key, mark in self._seen.items() if key not in seen}
        self._most = max(self._most, len(seen))
        surplus = len(self._removed) - max(LEAST_REMOVED, self._most)
        for key in list(islice(self._removed, max(0, surplus))):
            del self._removed[key]
        if seen != self._seen:
            self._snapshot = None
        self._seen, self._waiting = seen, waiting
        return sorted(ready, key=lambda found: found.path)

    def forget(self, found: FoundFile) -> None:
        """Forget a file that could not be read when it was found, as if it were unknown."""
        self._seen.pop(_digest_of(found), None)
        self._snapshot = None

    def snapshot(self) -> dict[str, bytes]:
        """Return the remembered files for a snapshot: 16 bytes for each."""
        if self._snapshot is None:
            self._snapshot = {"seen": _packed(self._seen), "removed": _packed(self._removed)}
        return self._snapshot

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the remembered files from a value that `snapshot` returned."""
        self._seen, self._removed = _unpacked(state["seen"]), _unpacked(state["removed"])
        self._most = max(len(self._seen), len(self._removed))
        self._snapshot = None


def _warn_of_change(found: FoundFile) -> None:
    logger.warning(
        "%s has changed since it was found, and has %d bytes now: what was added or changed is not "
        "read. Move files into the folder when they are complete, or set a longer quiet_seconds",
        found.path,
        found.size,
    )


def _digest_of(found: FoundFile) -> bytes:
    return hashlib.blake2b(os.fsencode(str(found.path)), digest_size=_PATH_BYTES).digest()


def _digest_of_version(found: FoundFile) -> bytes:
    text = f"{found.size} {found.version}"
    return hashlib.blake2b(text.encode(), digest_size=_STATUS_BYTES).digest()


def _packed(entries: dict[bytes, bytes]) -> bytes:
    return b"".join(key + mark for key, mark in entries.items())


def _unpacked(data: bytes) -> dict[bytes, bytes]:
    if not isinstance(data, bytes) or len(data) % _ENTRY_BYTES:
        raise GraphError("the snapshot's list of files that were read is damaged")
    return {
        data[at : at + _PATH_BYTES]: data[at + _PATH_BYTES : at + _ENTRY_BYTES]
        for at in range(0, len(data), _ENTRY_BYTES)
    }
