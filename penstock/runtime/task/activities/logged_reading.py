"""Read a source whose splits are read in turns, in an order that can be repeated."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.activities.input import SourceReading
from penstock.runtime.task.source_reads import SourceReads


class LoggedReading(SourceReading):
    """Reads the source of a task, and logs the splits, or takes them in the order of a log.

    Arguments:
        reads: the reads of the task.
        arguments: the arguments of `SourceReading`.
    """

    def __init__(self, reads: SourceReads, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._reads = reads
        self._source_input.note_reads()
        self._source_input.turn = reads.turn
        self._read = self._read_and_log

    def _read_and_log(self, max_records: int) -> RecordBatch | None:
        """Read the split whose turn it is, and log that before its records are sent."""
        reads, source_input = self._reads, self._source_input
        split = reads.turn
        if split is None:
            reads.report()
            batch = source_input.read(max_records)
        else:
            batch = source_input.read(reads.limit(split) or max_records)
        for read, count in source_input.take_reads():
            if count:
                reads.taken(read, count)
        if split is not None:
            ended = batch is not None and split not in source_input.open_splits
            if ended and reads.turn == split:
                raise ProtocolError(
                    f"split {split!r} has ended before records that were read before the restart: "
                    f"the source is not deterministic"
                )
            source_input.turn = reads.turn
            # A thread reads one batch ahead, which must not contain records for a later turn.
            if (limit := reads.limit(split)) is not None:
                source_input.limit_ahead(split, limit)
        return batch
