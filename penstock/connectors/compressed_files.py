"""Open files that may be compressed: `.gz` with gzip, `.zst` with Zstandard.

Zstandard is a part of Python from version 3.14 on. Before, the package `backports.zstd` has the
same classes, and `penstock[zstd]` installs it.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from typing import IO, Any, Protocol

from penstock.dataflow.errors import GraphError, JobError, Recoverability

_BUFFER_BYTES = 1 << 17
#: The names of the compressions, by the end of the file's name.
_COMPRESSIONS = {".gz": "gzip", ".zst": "Zstandard"}


class ReadableFile(Protocol):
    """A file that sources read: a `pathlib.Path`, or an object in a store.

    Its text is its path, for messages.
    """

    @property
    def suffix(self) -> str:
        """The end of the file's name, with its dot; "" if there is no dot."""

    def open(self, mode: Any = "rb", buffering: int = -1) -> IO[Any]:
        """Open the file for reading bytes, without a buffer if `buffering` is 0."""


def is_compressed(path: ReadableFile) -> bool:
    """Return whether a file is compressed, by the end of its name."""
    return path.suffix in _COMPRESSIONS


def require_decompressor(path: ReadableFile) -> None:
    """Check that a file with this name can be decompressed.

    Raises:
        GraphError: if a package is missing.
    """
    if path.suffix == ".zst":
        try:
            _zstd()
        except ImportError:
            raise GraphError(
                f"{path} is compressed with Zstandard, and Python has no module for it before "
                f"version 3.14: pip install 'penstock[zstd]'"
            ) from None


def open_file(path: ReadableFile) -> io.BufferedReader[Any]:
    """Open a file for reading. Decompress it if its name ends in `.gz` or `.zst`."""
    unbuffered: Any = path.open("rb", buffering=0)
    raw: io.BufferedReader[Any] = io.BufferedReader(unbuffered, _BUFFER_BYTES)
    if not is_compressed(path):
        return raw
    return _DecompressingReader(path, raw)


def damages() -> tuple[type[Exception], ...]:
    """Return the errors that are raised while a damaged file is decompressed."""
    found: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
    try:
        return (*found, _zstd().ZstdError)
    except ImportError:
        return found


def damaged(path: ReadableFile, error: Exception) -> JobError:
    """Return the error for a file that cannot be decompressed."""
    name = _COMPRESSIONS[path.suffix]
    return JobError(
        f"{path} is not a whole {name} file, though its name ends in {path.suffix}: {error}",
        # Some of these errors are OSErrors, but waiting does not mend the file.
        recoverability=Recoverability.RECOVERABLE,
    )


class _DecompressingReader(io.BufferedReader):
    """Reads lines from a compressed file with a buffer that is implemented in C.

    `GzipFile` itself searches line ends in Python code, which is slower.
    """

    def __init__(self, path: ReadableFile, raw: io.BufferedReader[Any]) -> None:
        self._raw = raw
        stream: Any
        if path.suffix == ".gz":
            stream = gzip.GzipFile(fileobj=raw, mode="rb")
        else:
            require_decompressor(path)
            stream = _zstd().ZstdFile(raw, mode="rb")
        super().__init__(stream, _BUFFER_BYTES)

    def close(self) -> None:
        super().close()
        self._raw.close()


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
