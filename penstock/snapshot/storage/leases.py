"""Keep a snapshot from being removed while a process reads it.

A reader holds a *lease*: a file in the folder `leases` of the job's folder, whose name begins with
the number of the snapshot. The reader holds a lock on the file, which the kernel releases when the
process ends. So a lease whose file is not locked is over, and its file is removed.

Retention skips a snapshot that has a lease. If a snapshot is discarded all the same, its manifest
is removed, and its files stay until the lease is over. A reader has read the manifest by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from penstock.snapshot.storage.job_paths import JobPaths

# Other systems than Linux can import this module, but not use it.
with contextlib.suppress(ModuleNotFoundError):
    import fcntl

logger = logging.getLogger(__name__)


class Lease:
    """A lease of one snapshot, which lasts until `release` or the end of the process.

    If the folder cannot be written, there is no lease, and the snapshot is read without one.

    Arguments:
        paths: the paths of the job's folder.
        number: the number of the snapshot.
    """

    def __init__(self, paths: JobPaths, number: int) -> None:
        self._path: Path | None = None
        self._descriptor: int | None = None
        try:
            while self._descriptor is None:
                paths.leases.mkdir(exist_ok=True)
                self._take(paths.lease(number, secrets.token_hex(4)))
        except OSError as error:
            logger.warning(
                "snapshot %d is read without a lease (%s): if its job removes it meanwhile, "
                "reading fails [%s]",
                number,
                error.strerror or error,
                paths.root,
            )

    def _take(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            return  # The last other lease ended, and the folder was removed.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The job may have removed the file before it was locked.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                self._path, self._descriptor = path, descriptor
                return
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        os.close(descriptor)

    @property
    def is_held(self) -> bool:
        """Whether the snapshot is kept."""
        return self._descriptor is not None

    def release(self) -> None:
        """End the lease; do nothing if it has ended."""
        if self._descriptor is not None and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # fails if there are other leases
            os.close(self._descriptor)
            self._descriptor = None


def leased_numbers(paths: JobPaths) -> set[int]:
    """Return the numbers of the snapshots that a process reads, and remove leases that are over.

    Raises:
        OSError: if the leases cannot be listed.
    """
    numbers: set[int] = set()
    try:
        found = list(paths.leases.iterdir())
    except FileNotFoundError:
        return numbers
    for path in found:
        number = JobPaths.number_of(path.name.partition(".")[0])
        if number is not None and _is_held(path):
            numbers.add(int(number))
    return numbers


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # Another user's lease: nothing is known, so the snapshot is kept.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
