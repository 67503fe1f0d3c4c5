"""Analyse the bytecode of a function to decide whether it changes objects."""

from __future__ import annotations

import dis
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, MethodDescriptorType
from typing import Any

__all__ = ["may_change_objects"]

#: The names of methods and functions that change an object of a built-in type.
CHANGING_METHODS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "rotate"})
CHANGING_METHODS |= {"pop", "popleft", "popitem", "remove", "discard", "clear", "sort", "reverse"}
CHANGING_METHODS |= {"update", "setdefault", "add", "subtract", "move_to_end"}
CHANGING_METHODS |= {f"{kind}_update" for kind in ("difference", "intersection")}
CHANGING_METHODS |= {"symmetric_difference_update", "setattr", "delattr"}
CHANGING_METHODS |= {"__setitem__", "__delitem__", "__setattr__", "__iadd__", "__ior__"}
#: The bytecode instructions that change an object.
CHANGING_INSTRUCTIONS = ("STORE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_SUBSCR")


def may_change_objects(function: Any) -> bool:
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
