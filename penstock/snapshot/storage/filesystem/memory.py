"""A file system in memory that simulates failures and crashes, for tests."""

from __future__ import annotations

import errno
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from penstock.snapshot.storage.filesystem.disk import FileSystem


@dataclass(eq=False)
class _Node:
    folder: bool = False
    seen: bytes = b""
    durable: bytes = b""


class MemoryFileSystem(FileSystem):
    """A file system in memory that simulates failures and crashes, for tests.

    It has two states: the state that programs see, and the state that would survive a crash. In a
    crash, each unsynced change of a name in a folder is lost or survives independently. POSIX does
    not guarantee more.

    Arguments:
        seed: the seed of all random choices.
        failure_rate: the probability that an operation that changes something fails as on a full
            disk.
    """

    def __init__(self, seed: int = 0, failure_rate: float = 0.0) -> None:
        self.failure_rate = failure_rate
        self._random = random.Random(seed)
        root = _Node(folder=True)
        # By the text of the path, because a path takes long to hash and to compare.
        self._seen: dict[str, _Node] = {"/": root}
        self._durable: dict[str, _Node] = {"/": root}
        self._locks: dict[str, int] = {}
        self._tokens = 0

    def crash(self, keep: float = 0.0) -> None:
        """Simulate a crash of the machine: release all locks and lose unsynced changes.

        Arguments:
            keep: the probability that an unsynced change survives.
        """
        self._locks.clear()
        for name in sorted({*self._seen, *self._durable}, key=_parts):
            if self._seen.get(name) is not self._durable.get(name) and self._survives(keep):
                self._make_durable(name)
        survivors: dict[str, _Node] = {}
        for name in sorted(self._durable, key=_parts):
            node = self._durable[name]
            if name == "/" or _parent(name) in survivors:
                survivors[name] = node
                if node.seen != node.durable and self._survives(keep):
                    # Either the whole unsynced content survives, or only its first bytes.
                    length = len(node.seen)
                    if not self._survives(keep):
                        length = self._random.randrange(length + 1)
                    node.durable = node.seen[:length]
                node.seen = node.durable
        self._durable, self._seen = survivors, dict(survivors)

    def _survives(self, keep: float) -> bool:
        return self._random.random() < keep

    def _make_durable(self, name: str) -> None:
        if name in self._seen:
            self._durable[name] = self._seen[name]
        else:
            self._durable.pop(name, None)

    def _change(self, operation: str, path: Path) -> None:
        """Raise an `OSError` with probability `failure_rate`, before a change or a sync."""
        if self.failure_rate and self._random.random() < self.failure_rate:
            raise OSError(errno.ENOSPC, f"simulated fault in {operation}", str(path))

    def _node(self, path: Path) -> _Node:
        node = self._seen.get(str(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "not there", str(path))
        return node

    def _add(self, operation: str, path: Path, node: _Node) -> None:
        self._change(operation, path)
        self._node(path.parent)
        if str(path) in self._seen:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self._seen[str(path)] = node

    def make_folder(self, path: Path) -> None:
        """Create a folder. The parent folder must exist."""
        self._add("make_folder", path, _Node(folder=True))

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite a file."""
        if str(path) not in self._seen:
            self._add("create", path, _Node())
        self._change("write", path)
        self._node(path).seen = data

    def sync(self, path: Path) -> None:
        """Make the content of a file, or the names in a folder, durable."""
        self._change("sync", path)
        node = self._node(path)
        node.durable = node.seen
        if node.folder:
            folder = str(path)
            for name in {*self._seen, *self._durable}:
                if _parent(name) == folder:
                    self._make_durable(name)

    def link(self, source: Path, target: Path) -> None:
        """Create a hard link to a file; raise `FileExistsError` if `target` exists."""
        self._add("link", target, self._node(source))

    def links(self, path: Path) -> int:
        """Return the number of hard links to a file."""
        node = self._node(path)
        return sum(other is node for other in self._seen.values())

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file; replace the file at `target` if there is one."""
        self._change("rename", target)
        self._seen[str(target)] = self._node(source)
        del self._seen[str(source)]

    def remove(self, path: Path) -> None:
        """Remove a file or an empty folder."""
        self._change("remove", path)
        self._node(path)
        del self._seen[str(path)]

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with its content, one file at a time."""
        for name in sorted(self._seen, key=_parts, reverse=True):
            if Path(name).is_relative_to(path):
                self.remove(Path(name))

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return self._node(path).seen

    def names(self, path: Path) -> list[str]:
        """Return the names of all files and folders in a folder, sorted."""
        if not self._node(path).folder:
            raise NotADirectoryError(errno.ENOTDIR, "no folder", str(path))
        folder = str(path)
        return sorted(_parts(name)[-1] for name in self._seen if _parent(name) == folder != name)

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder exists at the path."""
        return str(path) in self._seen

    def is_link(self, path: Path) -> bool:
        """Return False, because this file system has no symbolic links."""
        del path
        return False

    def size(self, path: Path) -> int:
        """Return the size of a file, in bytes."""
        return len(self.read(path))

    def checksum(self, path: Path) -> str:
        """Return the BLAKE2b-128 checksum of a file's content in hex."""
        return hashlib.blake2b(self.read(path), digest_size=16).hexdigest()

    def lock(self, path: Path, holder: bytes) -> int:
        """Lock a file and write `holder` into it; return a token for `holds` and `unlock`."""
        if str(path) in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        self.write(path, holder)
        self._tokens += 1
        self._locks[str(path)] = self._tokens
        return self._tokens

    def holds(self, path: Path, token: int) -> bool:
        """Return whether the lock of this token is still held, and the file exists."""
        return self._locks.get(str(path)) == token and str(path) in self._seen

    def unlock(self, path: Path, token: int) -> None:
        """Release the lock of this token."""
        if self._locks.get(str(path)) == token:
            del self._locks[str(path)]


def _parts(name: str) -> list[str]:
    """Return the parts of a path, in whose order paths are sorted."""
    return name.split("/")


def _parent(name: str) -> str:
    """Return the folder of a path; the root is its own."""
    return name.rpartition("/")[0] or "/"
