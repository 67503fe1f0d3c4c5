"""Collect the records that functions emit to side outputs."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import RecordBatch, RecordBuffer
from penstock.runtime.user_code.errors import rendered

_first = itemgetter(0)


class SideOutputs(dict[str, RecordBuffer]):
    """The records that an operator has emitted to side outputs, by the id of the tag.

    The chain runner passes the records on after each call of the operator, and clears the dict.

    Arguments:
        context: the place of the operator in the job.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__()
        #: The ids of the tags whose records the program reads.
        self.declared = frozenset(context.side_outputs)
        self._context = context

    def emit(self, tag: str, record: Any, timestamp: int = NO_TIMESTAMP) -> None:
        """Emit a record to a side output.

        Arguments:
            tag: the id of the tag.
            record: the record.
            timestamp: the event time of the record, in milliseconds.

        Raises:
            JobError: if no stream of the program is this side output.
        """
        buffer = self.get(tag)
        if buffer is None:
            buffer = self[tag] = self._begin(tag)
        if buffer.timestamps is None:
            if timestamp == NO_TIMESTAMP:
                buffer.records.append(record)
                return
            buffer.start_timestamps()
        buffer.append_timed(record, timestamp)

    def take(self) -> list[tuple[str, RecordBatch]]:
        """Remove all records, and return a batch for each tag that has records."""
        batches = [(tag, buffer.take()) for tag, buffer in self.items()]
        self.clear()
        return batches

    def take_over(self, others: SideOutputs) -> None:
        """Take the records of another object, whose operator is a part of this operator.

        The chain runner has taken the earlier records of this object already.
        """
        self.update(others)
        others.clear()

    def divided(self, batch: RecordBatch) -> RecordBatch:
        """Move the records that are meant for side outputs, and return a batch of the others.

        A function emits such a record as a pair `(tag, record)`. The pair may come from anywhere,
        for example from a helper function, so all records are examined. This is done for a whole
        batch, and only if the process knows a tag at all.

        Raises:
            JobError: if no stream of the program is the side output, or a tag comes without
                exactly one record.
        """
        if not OutputTag.any_made or not batch.count:
            return batch
        rows = batch.rows()
        if not _may_begin_with_tag(rows):
            return batch
        others: list[int] = []
        for place, (emitted, timestamp) in enumerate(zip(rows, batch.times(), strict=True)):
            if _begins_with_tag(emitted):
                tag, record = self._pair(emitted)
                self.emit(tag.tag_id, record, timestamp)
            else:
                others.append(place)
        return batch if len(others) == len(rows) else batch.select(others)

    def _pair(self, emitted: Any) -> tuple[OutputTag[Any], Any]:
        items = (emitted,) if isinstance(emitted, OutputTag) else tuple(emitted)
        if len(items) == 2 and isinstance(emitted, tuple):
            return items
        what = "in a list" if isinstance(emitted, list) else f"with {len(items) - 1} values"
        raise JobError(
            f"{items[0]!r} was emitted {what}: write `yield tag, value`, with one value, which may "
            f"be a tuple",
            operator=self._context.name,
            record=rendered(emitted),
        )

    def _begin(self, tag: str) -> RecordBuffer:
        if tag in self.declared:
            return RecordBuffer()
        known = ", ".join(sorted(map(repr, self.declared))) or "none"
        raise JobError(
            f"a record was emitted to side output {tag!r}, which no stream of the program reads "
            f"(it reads {known}): call get_side_output(OutputTag({tag!r})) on the operator's "
            f"stream, even if nothing uses the result, or do not emit the record",
            operator=self._context.name,
        )


def _may_begin_with_tag(rows: list[Any]) -> bool:
    """Return whether some of the records may be tags, or may begin with one."""
    kinds = set(map(type, rows))
    if any(issubclass(kind, OutputTag) for kind in kinds):
        return True
    if not any(issubclass(kind, tuple | list) for kind in kinds):
        return False
    try:
        kinds = set(map(type, map(_first, rows)))
    except (LookupError, TypeError):
        return True  # some records are empty, or have no items
    return any(issubclass(kind, OutputTag) for kind in kinds)


def _begins_with_tag(emitted: Any) -> bool:
    if isinstance(emitted, tuple | list):
        return bool(emitted) and isinstance(emitted[0], OutputTag)
    return isinstance(emitted, OutputTag)
