"""Notice a function that reads a value state and never updates it.

    def process_element(self, value, ctx):
        seen = self.seen.value() or []  # a new list, which is not in the state
        seen.append(value)
        yield len(seen)

The state stays empty, and the function runs without an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, ModuleType

from penstock.dataflow.functions.function import Function

#: The number of functions and classes that are examined at most.
_MOST = 500
#: The kinds of objects that are examined.
_KINDS = (CodeType, FunctionType, type, property, classmethod, staticmethod)


def never_updates(function: object) -> bool:
    """Return whether a function gets a value state, and no call of `update` is in its code.

    The code is that of its class, and of the functions and classes that it refers to. If there is
    too much of it, the answer is False.

    Arguments:
        function: the function of an operator. Plain functions have no state.
    """
    if not isinstance(function, Function):
        return False
    names: set[str] = set()
    for code in _codes(type(function)):
        if code is None:
            return False
        names.update(code.co_names)
        if "update" in names:
            return False
    return "get_state" in names and "value" in names


def _codes(start: type) -> Iterator[CodeType | None]:
    """Yield the code of a class and of all that it refers to, and None if there is too much."""
    waiting: list[object] = [start]
    seen: set[int] = set()
    while waiting:
        if len(seen) >= _MOST:
            yield None
            return
        found = waiting.pop()
        if id(found) in seen or not isinstance(found, _KINDS) or _is_foreign(found):
            continue
        seen.add(id(found))
        if isinstance(found, CodeType):
            yield found
            waiting += found.co_consts
        elif isinstance(found, FunctionType):
            used = set(_names(found.__code__))
            waiting.append(found.__code__)
            for one in [found.__globals__[name] for name in used if name in found.__globals__]:
                waiting.append(one)
                if isinstance(one, ModuleType):
                    waiting += (vars(one)[name] for name in used if name in vars(one))
            waiting += (_content(cell) for cell in found.__closure__ or ())
        elif isinstance(found, type):
            waiting += (*found.__mro__[1:], *vars(found).values())
        elif isinstance(found, property):
            waiting += (found.fget, found.fset)
        elif isinstance(found, classmethod | staticmethod):
            waiting.append(found.__func__)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # The cell is empty.


def _is_foreign(found: object) -> bool:
    """Return whether Penstock or Python defines a function or class, which updates no state."""
    package = str(getattr(found, "__module__", "")).partition(".")[0]
    return package == "penstock" or package in sys.stdlib_module_names
