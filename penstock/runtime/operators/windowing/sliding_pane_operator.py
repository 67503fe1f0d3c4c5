"""Sliding windows that combine each pane a few times, and not once for each of its windows."""

from __future__ import annotations

from typing import Any

from penstock.runtime.operators.windowing.pane_operator import PaneOperator
from penstock.snapshot.state import MISSING

#: With fewer panes in a window, combining them each time costs less.
FEWEST_PANES = 6
#: A combined value is not kept if its size is above both limits: a multiple of the size of one of
#: its panes, and a number of bytes. Such a value contains the records themselves.
_GROWTH, _SMALL_BYTES = 4, 256


class SlidingPaneOperator(PaneOperator):
    """Sliding windows of a reduce or aggregate function that merges panes.

    Time is divided into *blocks* of the size of a window. So a window consists of the last panes of
    one block and the first panes of the next. The operator keeps two things for each key: the value
    of the last panes of the first block, from each pane on, and the value of the first panes of the
    second block, to which each window adds its new panes. A window combines the two. So a pane is
    combined about three times in all. (van Herk, 1992. It is a queue made of two stacks, whose
    blocks begin at fixed times.)

    Since blocks begin at fixed times, the panes of a window are combined in the same groups before
    and after a failure. So even a sum of floats is the same.

    These values are derived from the panes, and are not in snapshots. They are made again when they
    are missing: after a restore, and after a late record. They are not kept while panes are in the
    database only, nor if they grow with the records that they contain.
    """

    def open(self) -> None:
        """Open the functions, and get the tables and timers, which are already restored."""
        super().open()
        self._probe: Any = self.context.mutability_probe()
        self._blocks: dict[Any, _Blocks] = {}
        self._keeps_blocks = True
        #: The values that are kept for a key, on average.
        self._kept_values = 1 + self.panes.size // self.panes.length // 2

    def on_timer(self, time: int, namespace: Any, *, is_event: bool) -> None:
        """Fire the window of the current key that ends at a time, or remove a pane."""
        if namespace is not None:
            super().on_timer(time, namespace, is_event=is_event)
            return
        key, panes = self.context.key, self.panes
        window = time + 1 - panes.size
        blocks = self._blocks.get(key)
        if blocks is None or blocks.border != panes.border_in(window):
            blocks = self._new_blocks(key, window)
            self._keeps_blocks = self._keeps_blocks and not self._grows(blocks.ends)
        self._extend(blocks, key, window + panes.size)
        self._emit_blocks(key, window, blocks)
        self._leave(key, window, self._take_leaving(key, window, blocks))
        if blocks.has_panes_from(window + panes.slide):
            self._timers.register(key, None, time + panes.slide)
            self._keep(key, blocks)
        else:
            self._blocks.pop(key, None)

    def _fire_window(self, key: Any, window: int) -> list[int]:
        """Emit the results of a window that has already fired, after a late record."""
        blocks = self._new_blocks(key, window)
        self._extend(blocks, key, window + self.panes.size)
        self._emit_blocks(key, window, blocks)
        return []

    def _add_to_pane(self, key: Any, pane: int, record: Any) -> None:
        """Add a late record to its pane. The blocks of the key may contain the pane."""
        self._blocks.pop(key, None)
        super()._add_to_pane(key, pane, record)

    # ---- methods for the blocks of a key

    def _new_blocks(self, key: Any, window: int) -> _Blocks:
        """Return blocks with the panes of a window that are before its border."""
        panes, get = self.panes, self._table.get
        border = panes.border_in(window)
        if self._table.has_cold:
            self._table.warm([(key, pane) for pane in panes.panes_of(window)])
        ends: list[tuple[int, Any]] = []
        for pane in reversed(range(window, border, panes.length)):
            value = get((key, pane))
            if value is not MISSING:
                ends.append((pane, self._merged(value, ends[-1][1]) if ends else value))
        return _Blocks(border, ends)

    def _extend(self, blocks: _Blocks, key: Any, end: int) -> None:
        """Add the panes up to a time to the second block."""
        get = self._table.get
        for pane in range(blocks.end, end, self.panes.length):
            value = get((key, pane))
            if value is not MISSING:
                if blocks.newest is not None:
                    value = self._merged(blocks.begin, value)
                blocks.begin, blocks.newest = value, pane
        blocks.end = end

    def _emit_blocks(self, key: Any, window: int, blocks: _Blocks) -> None:
        """Emit the results of a window, if it has contents."""
        if not blocks.ends:
            if blocks.newest is None:
                return
            value = self._copied(blocks.begin)
        elif blocks.newest is None:
            value = self._copied(blocks.ends[-1][1])
        else:
            value = self._merged(blocks.ends[-1][1], blocks.begin)
        self._emit_span(key, window, window + self.panes.size, value)

    def _take_leaving(self, key: Any, window: int, blocks: _Blocks) -> list[int]:
        """Return the panes with contents that no later window has, and remove them from blocks."""
        panes, ends = self.panes, blocks.ends
        after = window + panes.slide
        left = []
        while ends and ends[-1][0] < after:
            left.append(ends.pop()[0])
        # The next window has another border then, so the second block needs no change.
        for pane in range(blocks.border, after, panes.length):
            if self._table.get((key, pane)) is not MISSING:
                left.append(pane)
        return left

    def _keep(self, key: Any, blocks: _Blocks) -> None:
        """Keep the blocks of a key for its next window, unless they take too much memory."""
        if self._keeps_blocks and not self._table.has_cold:
            self._blocks[key] = blocks
        else:
            self._blocks.clear()
        self._table.derived_values = len(self._blocks) * self._kept_values

    def _grows(self, ends: list[tuple[int, Any]]) -> bool:
        """Return whether the value of several panes is much larger than that of one pane."""
        if len(ends) < 2:
            return False
        encode = self.context.codec.encode_value
        (_, one), (_, all_panes) = ends[0], ends[-1]
        return len(encode(all_panes)) > max(_SMALL_BYTES, _GROWTH * len(encode(one)))

    def _merged(self, first: Any, second: Any) -> Any:
        """Return the value of two, which stay as they are."""
        return self._aggregation.merge(self._copied(first), self._copied(second))

    def _copied(self, value: Any) -> Any:
        """Return a value, or a copy if it is mutable."""
        try:
            value in self._probe  # noqa: B015 - raises for mutable values, see `record_loops`
        except TypeError:
            return self.context.codec.copy_mutable([value])[0]
        return value


class _Blocks:
    """The combined panes of one key, in two blocks.

    Arguments:
        border: the end of the first block, where the second block begins.
        ends: for each pane of the first block with contents, the newest first: the pane, and the
            value of this and all later panes of the block.
    """

    __slots__ = ("begin", "border", "end", "ends", "newest")

    def __init__(self, border: int, ends: list[tuple[int, Any]]) -> None:
        self.border, self.ends = border, ends
        #: The value of the panes of the second block before `end`, and the newest of these panes
        #: that has contents. If none has, `newest` is None.
        self.begin: Any = None
        self.newest: int | None = None
        self.end = border

    def has_panes_from(self, time: int) -> bool:
        """Return whether a pane with contents begins at a time or later."""
        return bool(self.ends) or (self.newest is not None and self.newest >= time)
