"""Compare the keys of two streams that are joined while the job runs."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.joins.key_types import keys_can_match, why_keys_never_match

__all__ = ["KeyComparison"]


class KeyComparison:
    """Compares one key of the first stream with one key of the second stream.

    The comparison is made once, so that it costs nothing per record.

    Arguments:
        operator: the name of the operator.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        #: A key of each side; None if there is none yet.
        self._keys: list[Any] = [None, None]

    def are_unknown(self, side: int) -> bool:
        """Return whether no key of a side is known yet."""
        return self._keys[side] is None

    def compare(self, side: int, key: Any) -> None:
        """Note a key of a side, and compare it with the key of the other side.

        Raises:
            JobError: if keys of these types are never equal.
        """
        self._keys[side] = key
        if not keys_can_match(*self._keys):
            raise JobError(
                why_keys_never_match(*self._keys),
                operator=self._operator,
                recoverability=Recoverability.NON_RECOVERABLE,
            )
