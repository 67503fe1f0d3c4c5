"""Finds blocks of a dense table that are unlikely to change again before the next snapshot.

A block is worth flushing if all of it changed: records that visit the keys in some order have left
it behind. Or if a good part of it changed, and nothing since the last look: several readers visit
the keys, not side by side, and one of them has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import is_not
from typing import Any

from penstock.snapshot.state.layout.dense_blocks import DenseBlocks
from penstock.snapshot.state.preparation.eager_flush_policy import MAX_FLUSHES
from penstock.snapshot.state.settings import StateSettings

__all__ = ["BlockScan"]

# A look at a block compares a sample of its values, which takes 5 us. When this share of the
# sample changed, all values are compared, which takes 100 us.
_CHANGED_SHARE = 0.25


class BlockScan:
    """Looks through the blocks of a table, one after the other, and writes some of them.

    Arguments:
        blocks: the blocks.
        settings: thresholds of the backend.
    """

    def __init__(self, blocks: DenseBlocks, settings: StateSettings) -> None:
        self._blocks = blocks
        self._settings = settings
        self._position: Iterator[int | None] | None = None
        self._next_scan = 0.0
        self._interval = settings.scan_seconds
        #: By where a block begins, how many of its values had changed at the last look.
        self._changed: dict[int, int] = {}
        #: By where a block begins, how often its entries were flushed since the last barrier: a
        #: flush counts for the share of the block that had changed.
        self._flushes: dict[int, float] = {}

    def restart(self) -> None:
        """Begin at the first block again: a snapshot was captured."""
        self._position = None
        self._flushes.clear()

    def announce_snapshot(self) -> None:
        """Scan soon, whatever the last scans found."""
        self._next_scan, self._interval = 0.0, self._settings.scan_seconds

    def is_due(self, now: float) -> bool:
        """Return whether to scan, at a time in seconds."""
        return now >= self._next_scan

    def flush(self, live: Mapping[Any, Any], now: float) -> Iterator[int | None]:
        """Go on with the scan where it stopped.

        Yields where each written block begins, or None after a longer look that found nothing.

        Arguments:
            live: the entries of the table.
            now: the time in seconds.
        """
        if self._position is None:
            # Doubled for a scan that finds nothing.
            self._interval = min(2 * self._interval, self._settings.max_scan_seconds)
            self._position = self._scan(live)
        for begin in self._position:
            if begin is not None:
                self._interval = self._settings.scan_seconds
            yield begin
        self._position, self._next_scan = None, now + self._interval

    def _scan(self, live: Mapping[Any, Any]) -> Iterator[int | None]:
        value_of, blocks = live.__getitem__, self._blocks
        stride = max(1, blocks.size // self._settings.dense_sample)
        # The last block, which is not full, is flushed as well; if keys are added, it changes.
        for begin in range(0, len(blocks.written), blocks.size):
            end = min(begin + blocks.size, len(blocks.written))
            old = blocks.written[begin:end:stride]
            changed = sum(map(is_not, map(value_of, blocks.keys[begin:end:stride]), old))
            share, flushes = changed / len(old), self._flushes.get(begin, 0.0)
            if share < _CHANGED_SHARE or flushes > MAX_FLUSHES - _CHANGED_SHARE:
                continue
            values = list(map(value_of, blocks.keys[begin:end]))
            if not self._has_settled(begin, values):
                yield None
                continue
            self._flushes[begin] = flushes + share
            self._changed.pop(begin, None)
            blocks.write(begin, values)
            yield begin

    def _has_settled(self, begin: int, values: list[Any]) -> bool:
        """Return whether all of a block has changed, or nothing of it since the last look."""
        before = self._changed.get(begin)
        written = self._blocks.written[begin : begin + self._blocks.size]
        changed = sum(map(is_not, values, written))
        self._changed[begin] = changed
        return changed in (len(values), before)
