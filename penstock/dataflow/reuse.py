"""Sees whether records are objects of their own.

Records wait in batches. One that is changed and given again, as a loop may do with its one dict,
would come out as its last self in all places, and nothing would tell. So it is refused when the
same object is given twice in a row, if it can change, which is what has no hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import is_
from typing import Any

from penstock.dataflow.errors import JobError

__all__ = ["ReuseGuard"]


class ReuseGuard:
    """Looks at what one function, or one iterable, gives; batch by batch."""

    def __init__(self) -> None:
        # The object itself, lest another is made at its place.
        self._last: Any = None

    def check(self, records: list[Any], made_of: Sequence[Any] = ()) -> list[Any]:
        """The same records.

        Arguments:
            records: what was given.
            made_of: the records that a function was given for them. It may hand one on, and those
                may come twice.

        Raises:
            JobError: if one that can change was given twice in a row.
        """
        if not records or type(records[0]).__hash__ is not None:
            return records
        last, self._last = self._last, records[-1]
        again = records[0] is last and not (made_of and records[0] is made_of[0])
        if again or (_repeats(records) and not _repeats(made_of)):
            kind = type(records[0]).__name__
            raise JobError(
                f"the same {kind} was emitted more than once. Records wait in batches: what is "
                f"changed in it later changes what was emitted before. Emit a new {kind}, or a "
                f"copy, each time"
            )
        return records


def _repeats(records: Sequence[Any]) -> bool:
    """Whether an object comes twice in a row."""
    return any(map(is_, records, islice(records, 1, None)))
