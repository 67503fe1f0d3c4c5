"""Handle the records that are too late for all their windows."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.windows import WindowOperation
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.side_outputs import SideOutputs

__all__ = ["LateRecords"]


class LateRecords:
    """The records that no window has taken, because they are too late.

    Arguments:
        operation: the windows, their allowed lateness and the tag of the side output.
        context: the operator's place in the job.
        side_outputs: the side outputs of the operator.
    """

    def __init__(
        self, operation: WindowOperation, context: OperatorContext, side_outputs: SideOutputs
    ) -> None:
        self._tag, self._lateness = operation.late_tag, operation.allowed_lateness
        self._is_event_time = operation.assigner.is_event_time()
        self._context, self._side_outputs = context, side_outputs

    def skip(self, record: Any, timestamp: int) -> None:
        """Emit a record to the side output of late data, if it is late, since no window took it."""
        if self._tag is None or not self._is_event_time:
            return
        if timestamp + self._lateness > self._context.watermark:
            return
        if self._tag.tag_id in self._side_outputs.declared:
            self._side_outputs.emit(self._tag.tag_id, record, timestamp)
