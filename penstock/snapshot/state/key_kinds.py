"""Notice that a resumed program has keys of another kind than its snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger("penstock")


class KeyKinds:
    """Compares the keys of a restored state with the first keys that a run uses.

    If the program has another key selector, the state of the old keys is never read again. Nothing
    is wrong with that state itself, so there is a warning only.

    Arguments:
        canonical: a function that returns the canonical bytes of a key, which begin with its kind.
    """

    def __init__(self, canonical: Callable[[object], bytes]) -> None:
        self._canonical = canonical
        self._restored: dict[object, object] = {}

    @property
    def is_pending(self) -> bool:
        """Whether there are restored keys that were not compared yet."""
        return bool(self._restored)

    def note_restored(self, keys: Iterable[object]) -> None:
        """Note the kinds of some restored keys."""
        self._restored = self._kinds(keys)

    def compare(self, keys: Iterable[object]) -> None:
        """Warn if none of the keys is of the kind of a restored key. Then compare no more keys."""
        used = self._kinds(keys)
        if used and used.keys().isdisjoint(self._restored):
            logger.warning(
                "keyed state was restored with keys such as %r, and this run uses keys such as %r: "
                "the values of the old keys are never read again. If the key selector has changed, "
                "give the operator another uid",
                next(iter(self._restored.values())),
                next(iter(used.values())),
            )
        if used:
            self._restored = {}

    def _kinds(self, keys: Iterable[object]) -> dict[object, object]:
        return {self._kind(key): key for key in keys}

    def _kind(self, key: object) -> object:
        if isinstance(key, tuple):
            return tuple(map(self._kind, key))
        kind = self._canonical(key)[:1]
        return b"number" if kind in (b"i", b"I", b"d", b"q") else kind
