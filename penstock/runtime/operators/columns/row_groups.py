"""Sort the rows of a batch by group, and compute running results within the groups.

Running results are computed as if the rows arrived one by one. So they do not depend on the
boundaries of batches, not even in the last bit of a float.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: A group with at least this number of rows is computed separately. Smaller groups are computed
#: together: first the first row of each group, then the second row of each group, and so on.
_LONG = 32


class RowGroups:
    """The rows of a batch, sorted by group. Rows of a group keep their order.

    Arguments:
        codes: the group of each row, from 0.
        count: the number of groups. Each has at least one row.
    """

    def __init__(self, codes: Array, count: int) -> None:
        self.codes, self.count = codes, count
        #: The number of rows of each group.
        self.sizes = np.bincount(codes, minlength=count)

    @cached_property
    def order(self) -> Array:
        """The indices of the rows, sorted by group."""
        # NumPy sorts integers of 16 bits in linear time.
        narrow = self.codes.astype(np.uint16) if self.count < 1 << 16 else self.codes
        return np.argsort(narrow, kind="stable")

    @cached_property
    def starts(self) -> Array:
        """The index of the first row of each group in `order`."""
        return np.cumsum(self.sizes) - self.sizes

    def in_order_of_rows(self, values: Array) -> Array:
        """Rearrange values from the order of `order` to the order of the rows."""
        out = np.empty_like(values)
        out[self.order] = values
        return out

    def running_sum(self, values: Array, initial: Array) -> Array:
        """For each row, return the sum of its group up to this row. The values are integers.

        Arguments:
            values: the value of each row.
            initial: the sum of each group before its first row.
        """
        # Sums of integers are exact, so all groups can be summed at once. An intermediate overflow
        # does no harm, because sums are computed modulo 2**64.
        by_group = values[self.order]
        total = np.cumsum(by_group)
        before = total[self.starts] - by_group[self.starts]
        return self.in_order_of_rows(total + np.repeat(initial - before, self.sizes))

    def running_count(self, initial: Array) -> Array:
        """For each row, return the number of rows of its group up to this row.

        Arguments:
            initial: the number of rows of each group before its first row.
        """
        places = np.arange(1, len(self.codes) + 1)
        return self.in_order_of_rows(places + np.repeat(initial - self.starts, self.sizes))

    def running(self, combine: np.ufunc, values: Array, initial: Array) -> Array:
        """For each row, return the result of its group up to this row.

        Arguments:
            combine: combines the result so far with the value of a row.
            values: the value of each row.
            initial: the result of each group before its first row.
        """
        by_group = values[self.order]
        out = np.empty_like(by_group)
        largest_first = np.argsort(-self.sizes, kind="stable")
        sizes, starts = self.sizes[largest_first], self.starts[largest_first]
        result = initial[largest_first]
        long = int(np.count_nonzero(sizes >= _LONG))
        for group in range(long):
            begin, end = starts[group], starts[group] + sizes[group]
            whole = np.concatenate((result[group : group + 1], by_group[begin:end]))
            out[begin:end] = combine.accumulate(whole)[1:]
        sizes, starts, result = sizes[long:], starts[long:], result[long:]
        for place in range(int(sizes[0]) if len(sizes) else 0):
            left = int(np.searchsorted(-sizes, -place, side="left"))
            rows = starts[:left] + place
            result[:left] = combine(result[:left], by_group[rows])
            out[rows] = result[:left]
        return self.in_order_of_rows(out)

    def last_of(self, running: Array) -> Array:
        """Return the value of the last row of each group.

        Arguments:
            running: the value of each row.
        """
        last: Array = running[self.order[self.starts + self.sizes - 1]]
        return last
