"""Convert errors of the file system into errors with advice for the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.dataflow.errors import StoreError

__all__ = ["store_error", "raising_store_error"]

_ADVICE = {
    errno.ENOSPC: "the disk is full; make room, or keep fewer checkpoints",
    errno.EDQUOT: "the quota is used up; make room, or keep fewer checkpoints",
    errno.EACCES: "not permitted; check owner and mode of the folder",
    errno.EPERM: "not permitted; check owner and mode of the folder",
    errno.EROFS: "the file system is mounted read-only; use a folder that can be written",
    errno.ENOENT: "it is not there; was the folder removed or moved while the job ran?",
    errno.ENOTDIR: "a part of the path is a file; use another folder",
    errno.EIO: "the disk failed; look at the system's log",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


@contextmanager
def raising_store_error(doing: str, path: Path) -> Iterator[None]:
    """Convert an `OSError` that the `with` block raises to a `StoreError`.

    Arguments:
        doing: the action of the block, which follows "cannot" in the message.
        path: the file or folder to name in the message, if the `OSError` does not name one.
    """
    try:
        yield
    except OSError as error:
        raise store_error(doing, path, error) from error


def store_error(doing: str, path: Path, error: OSError) -> StoreError:
    """Return a `StoreError` with advice for the user, made from an `OSError`.

    Arguments:
        doing: the action that failed, which follows "cannot" in the message.
        path: the file or folder to name in the message, if the `OSError` does not name one.
        error: the `OSError`.
    """
    advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    return StoreError(f"cannot {doing}: {advice}", error.filename or path)
