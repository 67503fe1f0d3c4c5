"""Assign a number to each key, and look up the numbers of the keys of a batch.

Small whole numbers are looked up as indices of an array, without a Python object for each key. All
other keys are looked up in a dict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.dataflow.columns.column_key import DistinctKeys
from penstock.dataflow.type_variables import UserValue

if TYPE_CHECKING:
    from penstock.dataflow.columns.arrow import Array

#: The maximum length of the array. Larger whole numbers are looked up in the dict.
_SMALL = 1 << 22
_FIRST_SIZE = 1 << 10


class _Numbers(dict[object, int]):
    """A dict with the number of each key. It finds the number of a missing key itself."""

    def __init__(self, find: Callable[[UserValue], int]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: object) -> int:
        number = self[key] = self._find(key)
        return number


class KeyIndex:
    """Stores the number that is assigned to each key.

    Arguments:
        find: a function that returns the number of a new key, from 0 on.
        max_keys: the maximum number of keys in the dict. When it is exceeded, the dict is cleared,
            and `find` must return the same numbers again. With None, the dict keeps all keys.
    """

    def __init__(self, find: Callable[[UserValue], int], max_keys: int | None = None) -> None:
        self._numbers = _Numbers(find)
        self._max_keys = max_keys
        self._small = np.full(_FIRST_SIZE, -1, np.int64)

    def lookup(self, keys: DistinctKeys) -> Array:
        """Return the number assigned to each key, in the order of the keys."""
        whole = keys.whole_numbers
        if whole is None or not len(whole) or whole.min() < 0 or whole.max() >= _SMALL:
            return self._in_dict(keys.values)
        self._grow(int(whole.max()) + 1)
        found: Array = self._small[whole]
        missing = np.flatnonzero(found < 0)
        if len(missing):
            new = whole[missing]
            found[missing] = self._small[new] = self._in_dict(new.tolist())
        return found

    def set(self, key: object, number: int) -> None:
        """Set the number of a key."""
        self._numbers[key] = number

    def _in_dict(self, keys: list[UserValue]) -> Array:
        numbers, most = self._numbers, self._max_keys
        if most is not None and len(numbers) + len(keys) > most:
            numbers.clear()
        return np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))

    def _grow(self, size: int) -> None:
        have = len(self._small)
        if size > have:
            more = np.full(max(size, have * 2) - have, -1, np.int64)
            self._small = np.concatenate((self._small, more))
