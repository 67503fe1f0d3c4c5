"""Decide which emitted records of a function are checked for other references.

The decision depends on the bytecode of the function, which shows whether it may change objects.
"""

from __future__ import annotations

import dis
from enum import Enum, auto
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, MethodDescriptorType

from penstock.dataflow.object_reuse.mutability import can_change
from penstock.dataflow.object_reuse.ownership import copy_listed_if_shared
from penstock.dataflow.type_variables import T

#: The names of methods and functions that change an object of a built-in type.
CHANGING_METHODS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "rotate"})
CHANGING_METHODS |= {"pop", "popleft", "popitem", "remove", "discard", "clear", "sort", "reverse"}
CHANGING_METHODS |= {"update", "setdefault", "add", "subtract", "move_to_end"}
CHANGING_METHODS |= {f"{kind}_update" for kind in ("difference", "intersection")}
CHANGING_METHODS |= {"symmetric_difference_update", "setattr", "delattr"}
CHANGING_METHODS |= {"__setitem__", "__delitem__", "__setattr__", "__iadd__", "__ior__"}
#: The bytecode instructions that change an object.
CHANGING_INSTRUCTIONS = ("STORE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_SUBSCR")


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

    def __init__(self, function: object) -> None:
        #: The check for the records of the next batch.
        self.check = Check.EVERY_RECORD
        self._unless_mutable = (
            Check.MUTABLE_RECORDS if may_change_objects(function) else Check.NOTHING
        )

    def after_batch(self, records: list[T]) -> list[T]:
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


def may_change_objects(function: object) -> bool:
    """Return whether a function's bytecode may change objects, or is not available.

    The functions that it calls are not analysed.
    """
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):
        return False
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        # Built-in functions, such as the methods of `str`, are assumed to change nothing.
        return not isinstance(function, BuiltinFunctionType | MethodDescriptorType)
    return _changes(code)


@lru_cache(maxsize=1024)  # The function of an operator is analysed for each of its subtasks.
def _changes(code: CodeType) -> bool:
    if not CHANGING_METHODS.isdisjoint(code.co_names):
        return True
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        # An in-place operation such as `items += more` changes a list.
        if name in CHANGING_INSTRUCTIONS or (
            name == "BINARY_OP" and instruction.argrepr.endswith("=")
        ):
            return True
    return any(_changes(inner) for inner in code.co_consts if isinstance(inner, CodeType))
