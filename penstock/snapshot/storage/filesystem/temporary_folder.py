"""Create temporary folders, which are removed even if their process was killed.

A folder belongs to the process that holds a lock on the file `lock` in it. The kernel releases the
lock when the process ends. A folder whose file `lock` is not locked is abandoned. A process that
creates a temporary folder also removes the abandoned folders of the same user. A process id in the
folder's name would not suffice, because processes in other PID namespaces may share the file
system.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from penstock.dataflow.errors import StoreError

# Other systems than Linux can import this module, but not use it.
with contextlib.suppress(ModuleNotFoundError):
    import fcntl

_LOCK = "lock"
_NAME = re.compile(r"penstock-[a-z]+-[a-z0-9_]{8}")


class TemporaryFolder:
    """A context manager for a temporary folder that only this user can read.

    Arguments:
        kind: a word in small letters that becomes part of the folder's name.
        parent: the folder in which the temporary folder is created. The default is Python's
            temporary folder, which the environment variable `TMPDIR` determines.

    Raises:
        StoreError: if the folder cannot be created.
    """

    def __init__(self, kind: str, parent: str | None = None) -> None:
        self._process = os.getpid()
        try:
            place = Path(parent or tempfile.gettempdir())
            remove_abandoned(place)
            if parent is not None:
                # Folders of other kinds are in Python's temporary folder, so clean up there, too.
                with contextlib.suppress(OSError):
                    remove_abandoned(Path(tempfile.gettempdir()))
            while (made := _make(kind, place)) is None:
                continue  # another process removed the folder before this process locked it
        except OSError as error:
            raise StoreError(
                f"cannot make a temporary folder: {error.strerror or error}; set TMPDIR to a "
                f"folder that can be written",
                parent or error.filename,
            ) from error
        self._folder = made[0]
        self._lock: int | None = made[1]
        #: The folder for the user's files. The file `lock` is not in it, but beside it.
        self.path = self._folder / "content"

    def remove(self) -> None:
        """Remove the folder with its content; do nothing if it is already removed."""
        # A forked child process inherits the lock, but only the parent may remove the folder.
        if self._lock is None or self._process != os.getpid():
            return
        _remove(self._folder)
        os.close(self._lock)
        self._lock = None

    def __enter__(self) -> TemporaryFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _make(kind: str, parent: Path) -> tuple[Path, int] | None:
    folder = Path(tempfile.mkdtemp(prefix=f"penstock-{kind}-", dir=parent))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            # The file system has no locks. A process removes a folder only if it can lock it, so no
            # other process removes this folder.
            pass
        (folder / "content").mkdir(mode=0o700)
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    return folder, lock


def remove_abandoned(parent: Path) -> None:
    """Remove temporary folders in `parent` whose processes ended without removing them."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(folder: Path) -> None:
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        return
    # Without O_NONBLOCK, opening a named pipe would block.
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder whose lock this process holds.

    The file `lock` is removed last, so that another process can finish an interrupted removal.
    """
    shutil.rmtree(folder / "content", ignore_errors=True)
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == [_LOCK]:
            shutil.rmtree(folder)
