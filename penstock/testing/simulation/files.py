"""Files whose changes a simulation sees before they are made, can undo, and can damage.

* `HookedFiles`, `HookedDiskFiles`: the store's file system, with a hook.
* `UnsyncedChanges`: what the crash of the machine would undo.
* `Damage`: a damaged file of a snapshot, and its repair.
* `numbered_contents`: names in an object store that do not depend on the contents.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.snapshot.metadata.handles import FileRecord
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects import mirrored_store


class UnsyncedChanges:
    """Remembers the changes of files and of their names that were not synced.

    Arguments:
        folder: a folder on the same file system, for the former files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = 0
        #: The former content of files, by path; None if a file was not there.
        self._contents: dict[Path, bytes | None] = {}
        #: The former file of a name, as a link in `folder`; None if the name was not there.
        self._names: dict[Path, Path | None] = {}

    def writes(self, path: Path) -> None:
        """Note that a file is about to be written."""
        if not path.exists():
            self.renames(path)
        if path not in self._contents:
            self._contents[path] = path.read_bytes() if path.exists() else None

    def renames(self, path: Path) -> None:
        """Note that a name is about to get another file, or none, or a new folder."""
        if path in self._names:
            return
        kept = None
        if path.is_file():
            self._kept += 1
            kept = self._folder / str(self._kept)
            os.link(path, kept)
        self._names[path] = kept

    def moves(self, source: Path, target: Path) -> None:
        """Note that a file is about to be renamed."""
        self.renames(source)
        self.renames(target)
        if source in self._contents:
            self._contents[target] = self._contents.pop(source)

    def syncs(self, path: Path) -> None:
        """Note that the content of a file, or the names in a folder, are durable."""
        self._contents.pop(path, None)
        if path.is_dir():
            for name in [name for name in self._names if name.parent == path]:
                self._forget(name)

    def crash(self, rng: random.Random) -> list[str]:
        """Undo some of the changes, as a stop of the machine may do; return their descriptions."""
        lost = []
        for path, before in self._contents.items():
            if path.is_file() and rng.random() < 0.5:
                data = path.read_bytes()
                # A torn write, or the former content.
                left = data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else before or b""
                _replace(path, left)
                lost.append(f"content of {path.name}")
        for path in sorted(self._names, reverse=True):
            if rng.random() < 0.5:
                _put_back(path, self._names[path])
                lost.append(f"name {path.name}")
        self._contents.clear()
        for path in list(self._names):
            self._forget(path)
        return lost

    def _forget(self, path: Path) -> None:
        kept = self._names.pop(path)
        if kept is not None:
            kept.unlink()


def _put_back(path: Path, kept: Path | None) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif kept is None:
        path.unlink(missing_ok=True)
    elif path.parent.is_dir():
        path.unlink(missing_ok=True)
        os.link(kept, path)


def _replace(path: Path, data: bytes) -> None:
    """Give a name another file, so that other links to its file keep their content."""
    other = path.with_name(f"{path.name}.simulated")
    other.write_bytes(data)
    other.replace(path)


class HookedFiles:
    """Calls `hook` before each change of a file, and releases the lock of a killed process.

    It is inherited together with the file system that makes the changes.
    """

    hook: Callable[[str, Path], None]
    held: tuple[Path, int] | None = None
    #: The changes that a crash of the machine would undo; None if it undoes none.
    unsynced: UnsyncedChanges | None = None

    def release(self: Any) -> None:
        """Release the lock, as the end of its process does."""
        if self.held is not None:
            path, token = self.held
            self.held = None
            super().unlock(path, token)  # type: ignore[misc]

    def lock(self: Any, path: Path, holder: bytes) -> int:
        """Lock a file."""
        token: int = super().lock(path, holder)  # type: ignore[misc]
        self.held = (path, token)
        return token

    def unlock(self: Any, path: Path, token: int) -> None:
        """Release the lock of a file."""
        if self.held is not None:
            self.held = None
            super().unlock(path, token)  # type: ignore[misc]

    def make_folder(self: Any, path: Path) -> None:
        """Make a folder."""
        self.hook("make_folder", path)
        if self.unsynced is not None and not path.exists():
            self.unsynced.renames(path)
        super().make_folder(path)  # type: ignore[misc]

    def write(self: Any, path: Path, data: bytes) -> None:
        """Write a file."""
        self.hook("write", path)
        if self.unsynced is not None:
            self.unsynced.writes(path)
        super().write(path, data)  # type: ignore[misc]

    def sync(self: Any, path: Path) -> None:
        """Make a file durable."""
        self.hook("sync", path)
        super().sync(path)  # type: ignore[misc]
        if self.unsynced is not None:
            self.unsynced.syncs(path)

    def link(self: Any, source: Path, target: Path) -> None:
        """Give a file another name."""
        self.hook("link", target)
        if self.unsynced is not None and not target.exists():
            self.unsynced.renames(target)
        super().link(source, target)  # type: ignore[misc]

    def rename(self: Any, source: Path, target: Path) -> None:
        """Rename a file."""
        self.hook("rename", target)
        if self.unsynced is not None:
            self.unsynced.moves(source, target)
        super().rename(source, target)  # type: ignore[misc]

    def remove(self: Any, path: Path) -> None:
        """Remove a file."""
        self.hook("remove", path)
        if self.unsynced is not None:
            self.unsynced.renames(path)
        super().remove(path)  # type: ignore[misc]


class HookedDiskFiles(HookedFiles, FileSystem):
    """The file system of the machine, with a hook."""


@dataclass
class Damage:
    """A file of a snapshot that was damaged.

    Arguments:
        number: the number of the snapshot.
        path: the file.
        data: its right content.
    """

    number: int
    path: Path
    data: bytes

    def __str__(self) -> str:
        return f"file {self.path.name} of snapshot {self.number}"

    def repair(self) -> None:
        """Write the right content, if the snapshot is still there."""
        if self.path.parent.is_dir():
            _replace(self.path, self.data)


def damage_newest(root: Path, rng: random.Random) -> Damage | None:
    """Change one byte of a file of the newest snapshot; return None if there is no snapshot.

    Arguments:
        root: the job's checkpoint folder.
        rng: chooses the file and the byte.
    """
    paths = JobPaths(root)
    folders = sorted(paths.checkpoints.iterdir()) if paths.checkpoints.is_dir() else []
    whole = [folder for folder in folders if (folder / "manifest").is_file()]
    if not whole:
        return None
    number = JobPaths.number_of(whole[-1].name)
    files = [path for path in sorted(whole[-1].rglob("*")) if path.is_file()]
    files = [path for path in files if path.stat().st_size]
    path = rng.choice(files)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    with suppress(FileNotFoundError):
        _replace(path, data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
    return Damage(int(number or 0), path, data)


@contextmanager
def numbered_contents() -> Iterator[None]:
    """Name the contents of files in an object store by the order in which they are seen first.

    Their checksums differ between runs of one seed, since RocksDB writes random numbers into its
    files. Requests would be in another order, and other ones would fail.
    """
    name_content, numbers = mirrored_store.content_name, dict[str, int]()

    def number(record: FileRecord) -> str:
        found = numbers.setdefault(name_content(record), len(numbers))
        return f"{found:032x}.{record.size}"

    mirrored_store.content_name = number
    try:
        yield
    finally:
        mirrored_store.content_name = name_content
