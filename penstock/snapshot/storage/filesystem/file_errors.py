"""Convert errors of the file system into errors with advice for the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.dataflow.errors import StoreError

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
    errno.EFBIG: "a file is larger than the limit of the file size; raise it (ulimit -f)",
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


def store_error(doing: str, path: Path | None, error: OSError) -> StoreError:
    """Return a `StoreError` with advice for the user, made from an `OSError`.

    Arguments:
        doing: the action that failed, which follows "cannot" in the message.
        path: the file or folder to name in the message, if the `OSError` does not name one.
        error: the `OSError`.
    """
    advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    return StoreError(f"cannot {doing}: {advice}", error.filename or path)


def with_advice(error: Exception) -> str:
    """Return the text of an error of a database, and advice if a file operation has failed.

    The text of such an error contains the text of the system, but no error number.
    """
    text = str(error)
    advice = [advice for number, advice in _ADVICE.items() if os.strerror(number) in text]
    return "; ".join([text, *advice[:1]])
