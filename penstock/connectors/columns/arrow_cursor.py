"""Emit Arrow batches piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.dataflow.source import ColumnarRead, Read

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowCursor:
    """Emits the rows of Arrow batches in pieces, and counts them.

    Arguments:
        batches: the batches.
        position: the number of rows of the split that were emitted before. They are skipped.
        rows: the number of rows of the split.
        passed: the number of rows of the split that come before the batches.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], position: int, rows: int, passed: int = 0
    ) -> None:
        self._batches = batches
        self._position, self._rows = position, rows
        self._skip = position - passed
        self._batch: pa.RecordBatch | None = None

    def read(self, max_records: int) -> Read:
        """Return at most `max_records` rows, and the position after them."""
        batch = self._batch
        while batch is None:
            batch = next(self._batches, None)
            if batch is None:
                return Read([], self._position, finished=True)
            if self._skip:
                skipped = min(self._skip, batch.num_rows)
                self._skip -= skipped
                batch = batch.slice(skipped)
            if not batch.num_rows:
                batch = None
        part = batch.slice(0, max_records)
        self._batch = batch.slice(part.num_rows) if part.num_rows < batch.num_rows else None
        self._position += part.num_rows
        return ColumnarRead(part, self._position, finished=self._position >= self._rows)
