"""A file system in memory that simulates failures and crashes, for tests."""

from __future__ import annotations

import errno
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from penstock.snapshot.storage.filesystem.disk import FileSystem

__all__ = ["MemoryFileSystem"]


@dataclass(eq=False)
class _Node:
    folder: bool = False
    seen: bytes = b""
    durable: bytes = b""


class MemoryFileSystem(FileSystem):
    """A file system in memory that fails and crashes at random, under a seed.

    It has two states: the one that programs see, and the one that would survive a crash. Changes of
    different names in one folder survive independently: POSIX guarantees no more.

    Arguments:
        seed: of all random choices.
        failure_rate: probability that a changing operation fails as on a full disk.
    """

    def __init__(self, seed: int = 0, failure_rate: float = 0.0) -> None:
        self.failure_rate = failure_rate
        self._random = random.Random(seed)
        root = _Node(folder=True)
        self._seen: dict[Path, _Node] = {Path("/"): root}
        self._durable: dict[Path, _Node] = {Path("/"): root}
        self._locks: dict[Path, int] = {}
        self._tokens = 0

    def crash(self, keep: float = 0.0) -> None:
        """Simulate a crash of the machine: release all locks and lose unsynced changes.

        Arguments:
            keep: probability that an unsynced change survives.
        """
        self._locks.clear()
        for path in sorted({*self._seen, *self._durable}):
            if self._seen.get(path) is not self._durable.get(path) and self._survives(keep):
                self._make_durable(path)
        survivors: dict[Path, _Node] = {}
        for path, node in sorted(self._durable.items()):
            if path.parent in survivors or path == path.parent:
                survivors[path] = node
                if node.seen != node.durable and self._survives(keep):
                    # All of the content survives, or the part that had reached the disk.
                    length = len(node.seen)
                    if not self._survives(keep):
                        length = self._random.randrange(length + 1)
                    node.durable = node.seen[:length]
                node.seen = node.durable
        self._durable, self._seen = survivors, dict(survivors)

    def _survives(self, keep: float) -> bool:
        return self._random.random() < keep

    def _make_durable(self, path: Path) -> None:
        if path in self._seen:
            self._durable[path] = self._seen[path]
        else:
            self._durable.pop(path, None)

    def _change(self, operation: str, path: Path) -> None:
        """Fail at random; called before any change and any sync."""
        if self.failure_rate and self._random.random() < self.failure_rate:
            raise OSError(errno.ENOSPC, f"simulated fault in {operation}", str(path))

    def _node(self, path: Path) -> _Node:
        if path not in self._seen:
            raise FileNotFoundError(errno.ENOENT, "not there", str(path))
        return self._seen[path]

    def _add(self, operation: str, path: Path, node: _Node) -> None:
        self._change(operation, path)
        self._node(path.parent)
        if path in self._seen:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self._seen[path] = node

    def make_folder(self, path: Path) -> None:
        """Make one folder."""
        self._add("make_folder", path, _Node(folder=True))

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite a file."""
        if path not in self._seen:
            self._add("create", path, _Node())
        self._change("write", path)
        self._node(path).seen = data

    def sync(self, path: Path) -> None:
        """Make a file's content, or a folder's names, outlive a crash."""
        self._change("sync", path)
        node = self._node(path)
        node.durable = node.seen
        for other in {*self._seen, *self._durable} if node.folder else ():
            if other.parent == path:
                self._make_durable(other)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""
        self._add("link", target, self._node(source))

    def links(self, path: Path) -> int:
        """Return the number of names of a file."""
        node = self._node(path)
        return sum(other is node for other in self._seen.values())

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self._change("rename", target)
        self._seen[target] = self._node(source)
        del self._seen[source]

    def remove(self, path: Path) -> None:
        """Remove a name."""
        self._change("remove", path)
        self._node(path)
        del self._seen[path]

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content, one file at a time."""
        for other in sorted(self._seen, reverse=True):
            if other.is_relative_to(path):
                self.remove(other)

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return self._node(path).seen

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        if not self._node(path).folder:
            raise NotADirectoryError(errno.ENOTDIR, "no folder", str(path))
        return sorted(other.name for other in self._seen if other.parent == path and other.name)

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""
        return path in self._seen

    def is_link(self, path: Path) -> bool:
        """Return False: there are no symbolic links."""
        del path
        return False

    def size(self, path: Path) -> int:
        """Return the size of a file, in bytes."""
        return len(self.read(path))

    def checksum(self, path: Path) -> str:
        """Return the hex BLAKE2b-128 of a file's content."""
        return hashlib.blake2b(self.read(path), digest_size=16).hexdigest()

    def lock(self, path: Path, holder: bytes) -> int:
        """Lock a file; return a token."""
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        self.write(path, holder)
        self._tokens += 1
        self._locks[path] = self._tokens
        return self._tokens

    def holds(self, path: Path, token: int) -> bool:
        """Return whether the lock is still held."""
        return self._locks.get(path) == token and path in self._seen

    def unlock(self, path: Path, token: int) -> None:
        """Release the lock."""
        if self._locks.get(path) == token:
            del self._locks[path]
