"""The policy of object reuse: how closely a function's output is checked."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from penstock.dataflow.object_reuse.mutability import can_change
from penstock.dataflow.object_reuse.mutation_analysis import may_change_objects
from penstock.dataflow.object_reuse.ownership import copy_listed_if_shared

__all__ = ["Check", "EmissionPolicy"]


class Check(Enum):
    """The check that is made when a record is emitted."""

    #: Nothing. Afterwards two records of the batch are looked at.
    NOTHING = auto()
    #: Whether the record can change; if so, whether something else refers to it.
    MUTABLE_RECORDS = auto()
    #: Whether something else refers to the record.
    EVERY_RECORD = auto()


class EmissionPolicy:
    """Decides how the output of one function is checked, batch by batch.

    * The first batch is checked record by record.
    * If a batch held immutable records only, nothing is checked any more. A function whose own
      code changes objects remains checked for mutable records.
    * Once the function has emitted a mutable record, every record is checked from then on.

    Arguments:
        function: the user's function.
    """

    def __init__(self, function: Any) -> None:
        #: How the next batch is to be checked.
        self.check = Check.EVERY_RECORD
        self._unless_mutable = (
            Check.MUTABLE_RECORDS if may_change_objects(function) else Check.NOTHING
        )

    def after_batch(self, records: list[Any]) -> list[Any]:
        """Return the records of a batch that was emitted, and decide how the next is checked."""
        if not records:
            return records
        checked = self.check
        looked_at = (records[0], records[-1]) if checked is Check.NOTHING else records
        if not can_change(looked_at):
            self.check = self._unless_mutable
            return records
        self.check = self._unless_mutable = Check.EVERY_RECORD
        if checked is Check.EVERY_RECORD:
            return records
        return list(map(copy_listed_if_shared, records))
