"""Turn a list of rows into a list of columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any


def columns_of(rows: Sequence[Collection[Any]]) -> list[Sequence[Any]]:
    """Return the columns of rows that all have the same width.

    Returns an empty list if the widths differ or are 0.
    """
    width = len(rows[0])
    if width == 2:
        # Two is the most frequent width. This loop is faster for it than the code below, which is
        # faster for wider rows.
        left: list[Any] = []
        right: list[Any] = []
        try:
            for first, second in rows:
                left.append(first)
                right.append(second)
        except ValueError:
            return []
        return [left, right]
    if list(map(len, rows)).count(width) != len(rows):
        return []
    # `zip(*rows)` would take three times as long, since it makes an iterator for each row.
    items = list(chain.from_iterable(rows))
    return [items[column::width] for column in range(width)]
