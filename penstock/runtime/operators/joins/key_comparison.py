"""Check in a running job that the keys of two joined streams can be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.joins.key_types import key_shape, shapes_can_match, why_keys_never_match

#: The number of records of each side whose keys are compared.
_SAMPLE = 100


class KeyComparison:
    """Compares the keys in the first batches of two streams.

    The comparison is made once, so that it costs nothing per record.

    Arguments:
        operator: the name of the operator.
        sides: the names of the two sides in the error message.
    """

    def __init__(
        self, operator: str, sides: tuple[str, str] = ("first stream", "second stream")
    ) -> None:
        self._operator, self._sides = operator, sides
        #: For each side, one example of a key for each shape.
        self._keys: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})

    def are_unknown(self, side: int) -> bool:
        """Return whether no key of a side is known yet."""
        return not self._keys[side]

    def compare(self, side: int, key_of: Callable[[Any], Any], records: Iterable[Any]) -> None:
        """Record keys of a side, and compare them with the keys of the other side.

        Arguments:
            side: 0 for the first stream, 1 for the second.
            key_of: returns the key of a record.
            records: the first records of this side.

        Raises:
            JobError: if no key of one side can be equal to a key of the other.
        """
        mine = self._keys[side]
        for record in islice(records, _SAMPLE):
            key = key_of(record)
            mine.setdefault(key_shape(key), key)
        first, second = self._keys
        if not first or not second:
            return
        if not any(shapes_can_match(one, other) for one in first for other in second):
            raise JobError(
                why_keys_never_match(
                    next(iter(first.values())), next(iter(second.values())), self._sides
                ),
                operator=self._operator,
                recoverability=Recoverability.NON_RECOVERABLE,
            )
