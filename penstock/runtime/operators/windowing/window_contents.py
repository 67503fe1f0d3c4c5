"""Store the contents of windows in the tables of a backend.

The contents belong to a key and a *part*: the part of a composite key that names a window or a
pane. There are two kinds of contents: an accumulator, or a list of all records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from itertools import chain
from typing import Any

from penstock.dataflow.object_reuse import can_change
from penstock.runtime.operators.windowing.window_aggregation import Aggregation
from penstock.snapshot.state import MISSING, KeyedTable

#: The greatest number of records of a window that are stored together. A snapshot writes only the
#: groups of records that have changed.
GROUP = 128


class WindowContents(ABC):
    """The contents of the windows of one operator."""

    @abstractmethod
    def add(self, key: Any, part: Any, record: Any) -> None:
        """Add a record to a window."""

    @abstractmethod
    def get(self, key: Any, part: Any) -> Any:
        """Return the contents of a window, or `MISSING` if it has none."""

    @abstractmethod
    def set(self, key: Any, part: Any, contents: Any) -> None:
        """Replace the contents of a window."""

    @abstractmethod
    def clear(self, key: Any, part: Any) -> None:
        """Remove the contents of a window."""

    @abstractmethod
    def copied(self, contents: list[Any]) -> list[Any]:
        """Return the contents of several windows or panes, and copies of those that can change.

        The functions of the program may change their arguments. So they are given copies of
        contents that stay in the table.
        """

    @abstractmethod
    def combine(self, contents: list[Any]) -> Any:
        """Return the contents of several windows or panes together, which may change them."""

    def merge(self, key: Any, target: Any, sources: list[Any]) -> None:
        """Move the contents of the windows `sources` into the window `target`."""
        found = {part: self.get(key, part) for part in (target, *sources)}
        contents = [value for value in found.values() if value is not MISSING]
        for source in sources:
            self.clear(key, source)
        if contents:
            self.set(key, target, self.combine(contents))


class AggregatedContents(WindowContents):
    """One accumulator for each window.

    Arguments:
        table: the composite table of the accumulators.
        aggregation: combines records and accumulators.
        copy: copies values that can change.
    """

    def __init__(
        self,
        table: KeyedTable,
        aggregation: Aggregation,
        copy: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._table, self._copy = table, copy
        self._first, self._add = aggregation.first, aggregation.add
        self._merge = aggregation.merge

    def add(self, key: Any, part: Any, record: Any) -> None:
        """Add a record to the accumulator of a window."""
        entry = key, part
        value = self._table.get(entry)
        self._table.dirty[entry] = (
            self._first(record) if value is MISSING else self._add(value, record)
        )

    def get(self, key: Any, part: Any) -> Any:
        """Return the accumulator of a window, or `MISSING`."""
        return self._table.get((key, part))

    def set(self, key: Any, part: Any, contents: Any) -> None:
        """Replace the accumulator of a window."""
        self._table.dirty[key, part] = contents

    def clear(self, key: Any, part: Any) -> None:
        """Remove the accumulator of a window."""
        self._table.delete((key, part))

    def copied(self, contents: list[Any]) -> list[Any]:
        """Return accumulators, and copies of those that can change."""
        return self._copy(contents) if can_change(contents) else contents

    def combine(self, contents: list[Any]) -> Any:
        """Return the accumulator of several windows or panes together."""
        return reduce(self._merge, contents)


class ListedContents(WindowContents):
    """The list of all records of each window, in the order of their arrival.

    The newest records of a window are in the list under its part, behind the number of the full
    groups. The group `n` is in the list under the part and `n`.

    Arguments:
        table: the composite table of the lists.
        copy: copies values that can change.
    """

    def __init__(self, table: KeyedTable, copy: Callable[[list[Any]], list[Any]]) -> None:
        self._table, self._copy = table, copy

    def add(self, key: Any, part: Any, record: Any) -> None:
        """Append a record to the list of a window."""
        entry = key, part
        newest: Any = self._table.get(entry)
        if newest is MISSING:
            self._table.dirty[entry] = [0, record]
        elif len(newest) <= GROUP:
            newest.append(record)
        else:
            number = newest[0]
            self._table.dirty[key, part, number] = newest[1:]
            self._table.dirty[entry] = [number + 1, record]

    def get(self, key: Any, part: Any) -> Any:
        """Return a new list of the records of a window, or `MISSING`."""
        newest: Any = self._table.get((key, part))
        if newest is MISSING:
            return MISSING
        records: list[Any] = []
        for number in range(newest[0]):
            group: Any = self._table.get((key, part, number))
            records += group
        records += newest[1:]
        return records

    def set(self, key: Any, part: Any, contents: Any) -> None:
        """Replace the list of a window; an empty list removes it."""
        self.clear(key, part)
        if contents:
            full = (len(contents) - 1) // GROUP
            for number in range(full):
                begin = number * GROUP
                self._table.dirty[key, part, number] = contents[begin : begin + GROUP]
            self._table.dirty[key, part] = [full, *contents[full * GROUP :]]

    def clear(self, key: Any, part: Any) -> None:
        """Remove the list of a window."""
        newest: Any = self._table.get((key, part))
        if newest is not MISSING:
            for number in range(newest[0]):
                self._table.delete((key, part, number))
            self._table.delete((key, part))

    def copied(self, contents: list[Any]) -> list[Any]:
        """Return lists of records, and copies of records that can change."""
        return [self._copy(records) if can_change(records) else records for records in contents]

    def combine(self, contents: list[Any]) -> Any:
        """Return the records of several windows or panes."""
        return contents[0] if len(contents) == 1 else list(chain.from_iterable(contents))
