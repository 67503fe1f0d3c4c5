"""Notice a function that reads a value state and never updates it.

    def process_element(self, value, ctx):
        seen = self.seen.value() or []  # a new list, which is not in the state
        seen.append(value)
        yield len(seen)

The state stays empty, and the function runs without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from penstock.dataflow.functions.function import Function

__all__ = ["never_updates"]

#: The number of functions and classes that are examined at most.
_MOST = 500


def never_updates(function: Any) -> bool:
    """Return whether a function gets a value state, and nothing in its code updates one.

    The code is that of its class, and of the functions and classes that it refers to.

    Arguments:
        function: the function of an operator. Plain functions have no state.
    """
    if not isinstance(function, Function):
        return False
    names: set[str] = set()
    for code in _codes(type(function)):
        names.update(code.co_names)
        if "update" in names:
            return False
    return "get_state" in names and "value" in names


def _codes(start: type) -> Iterator[CodeType]:
    """Yield the code of a class and of all that it refers to, except modules."""
    waiting: list[Any] = [start]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        found = waiting.pop()
        if id(found) in seen or _is_of_engine(found):
            continue
        seen.add(id(found))
        if isinstance(found, CodeType):
            yield found
            waiting += found.co_consts
        elif isinstance(found, FunctionType):
            names = found.__globals__
            waiting.append(found.__code__)
            waiting += (names[name] for name in _names(found.__code__) if name in names)
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


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # The cell is empty.


def _is_of_engine(found: Any) -> bool:
    return str(getattr(found, "__module__", "")).partition(".")[0] == "penstock"
