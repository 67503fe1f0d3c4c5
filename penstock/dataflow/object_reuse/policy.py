"""Decide which emitted records of a function are checked for other references."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from penstock.dataflow.object_reuse.mutability import can_change
from penstock.dataflow.object_reuse.mutation_analysis import may_change_objects
from penstock.dataflow.object_reuse.ownership import copy_listed_if_shared

__all__ = ["Check", "EmissionPolicy"]


class Check(Enum):
    """The check that is made for each record when it is emitted."""

    #: No check for each record. After a batch, only its first and last records are checked for
    #: mutability.
    NOTHING = auto()
    #: Check whether the record can change, and if so, whether other code refers to it.
    MUTABLE_RECORDS = auto()
    #: Check for every record whether other code refers to it.
    EVERY_RECORD = auto()


class EmissionPolicy:
    """Decides for each batch that a function emits which of its records are checked.

    * Every record of the first batch is checked.
    * After a batch with only immutable records, later records are not checked. The exception is a
      function whose code may change objects: its mutable records are still checked.
    * After the first mutable record, every record is checked.

    Arguments:
        function: the user's function.
    """

    def __init__(self, function: Any) -> None:
        #: The check for the records of the next batch.
        self.check = Check.EVERY_RECORD
        self._unless_mutable = (
            Check.MUTABLE_RECORDS if may_change_objects(function) else Check.NOTHING
        )

    def after_batch(self, records: list[Any]) -> list[Any]:
        """Choose the check for the next batch, and return the records of the emitted batch.

        Records that were not checked, but turn out to be mutable, are copied here if other code
        refers to them.
        """
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
