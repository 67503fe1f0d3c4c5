"""Report state that a restore cannot decode although its checksum is correct."""

from __future__ import annotations

from pathlib import Path

from penstock.dataflow.errors import PenstockError, ProtocolError, Recoverability, StoreError


class Decoding:
    """Raise a `StoreError` with advice if a `with` block cannot decode a part of a snapshot.

    A checksum shows damage of a file, but not who wrote it. Errors of the disk and errors that
    Penstock raises on purpose are not changed.

    This is a class and not a generator, whose frames in `contextlib` would be shown to users.

    Arguments:
        what: the part of the snapshot, with its operator.
        folder: the folder of the snapshot, if it is known.
    """

    def __init__(self, what: str, folder: Path | None = None) -> None:
        self._what, self._folder = what, folder

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        """Raise a `StoreError` from the error of the block, unless it is another kind of error."""
        if not isinstance(error, Exception) or isinstance(error, OSError | MemoryError):
            return
        is_unexpected = isinstance(error, ProtocolError)
        if isinstance(error, PenstockError) and not is_unexpected:
            return
        cause = str(error) if is_unexpected else f"{type(error).__name__}: {error}"
        raise StoreError(
            f"{self._what} cannot be decoded: {cause}. Another program wrote the snapshot, or "
            "Penstock has a bug; resume from another snapshot",
            self._folder,
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
