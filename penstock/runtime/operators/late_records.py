"""Drop and count late records, or emit them to a side output."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.metrics import LATE_RECORDS_DROPPED, LATE_RECORDS_TO_SIDE_OUTPUT
from penstock.dataflow.output_tag import OutputTag
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.side_outputs import SideOutputs


class LateRecords:
    """Handles the records that come too late for a window or a join.

    Arguments:
        tag: the tag of the side output for late records; None drops them.
        context: the operator's place in the job, whose metrics count the records.
        side_outputs: the side outputs of the operator.
    """

    def __init__(
        self, tag: OutputTag[Any] | None, context: OperatorContext, side_outputs: SideOutputs
    ) -> None:
        self._side_outputs = side_outputs
        #: The id of the side output; None if late records are dropped.
        self._tag = tag.tag_id if tag is not None and tag.tag_id in side_outputs.declared else None
        dropped = self._tag is None
        name = LATE_RECORDS_DROPPED if dropped else LATE_RECORDS_TO_SIDE_OUTPUT
        self._counter = context.metrics.counter(name)

    @property
    def are_dropped(self) -> bool:
        """Return whether there is no side output for late records."""
        return self._tag is None

    def add(self, record: Any, timestamp: int) -> None:
        """Count a late record, and emit it to the side output if there is one.

        Arguments:
            record: the record.
            timestamp: its event time, in milliseconds since the epoch.
        """
        self._counter.inc()
        if self._tag is not None:
            self._side_outputs.emit(self._tag, record, timestamp)

    def count_dropped(self, number: int) -> None:
        """Count late records that are dropped."""
        self._counter.inc(number)
