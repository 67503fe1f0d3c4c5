"""Notice that a function keeps data in variables, which are not part of snapshots.

    class Count(KeyedProcessFunction):
        def __init__(self):
            self.seen = {}

        def process_element(self, value, ctx):
            self.seen[value] = self.seen.get(value, 0) + 1
            yield value, self.seen[value]

After a restart the dict is empty again, and each subtask has a dict of its own. Only data of
built-in types is compared: once after `open` and once later, so that no record costs anything.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from penstock.dataflow.functions import Function
from penstock.dataflow.state import CheckpointedFunction
from penstock.runtime.user_code.current_operator import OperatorAtWork, operator_at_work

_ATOMS = (bool, int, float, str, bytes, tuple, type(None))
_CONTAINERS = (list, dict, set, deque, Counter, OrderedDict, defaultdict, bytearray)
#: The largest container whose items are compared. Of a larger one, only the length is.
_SMALL = 100


_LOGGER = logging.getLogger("penstock")


class HiddenState:
    """Compares the variables of a user's function with their earlier values.

    The variables are the attributes of a function object, the global variables that its code names,
    and the variables of an enclosing function.

    Arguments:
        function: the function of an operator, or an object with several `functions`.
        operator: the operator.
    """

    def __init__(self, function: Any, operator: OperatorAtWork) -> None:
        self._operator = operator
        parts = getattr(function, "functions", None)
        self._functions = [
            one
            for one in (parts if isinstance(parts, list) else [function])
            if not isinstance(one, CheckpointedFunction) and not _is_of_engine(one)
        ]
        self._before = self._values()

    def report(self) -> bool:
        """Log a warning if variables have changed, and return whether they have."""
        changed = self.changed()
        if changed:
            operator_at_work.set(self._operator)
            _LOGGER.warning(
                "the function of operator %r has changed %s while it processed records. Snapshots "
                "do not have it: after a restart it is as at the start, each subtask has its own, "
                "and the program does not see it. Keep data in state (`penstock docs state`), "
                "unless it is only a cache",
                self._operator.name,
                " and ".join(changed),
            )
        return bool(changed)

    def changed(self) -> list[str]:
        """Return texts that name the variables that have changed."""
        before = self._before
        return [
            name
            for name, value in self._values().items()
            if name not in before or _differ(before[name], value)
        ]

    def _values(self) -> dict[str, Any]:
        """Return the value to compare for each variable, by a text that names it."""
        found: dict[str, Any] = {}
        for function in self._functions:
            for name, value in _variables(function):
                if isinstance(value, _ATOMS):
                    found[name] = value
                elif type(value) in _CONTAINERS:
                    found[name] = len(value), _items(value)
        return found


def _differ(before: Any, now: Any) -> bool:
    try:
        return before is not now and bool(before != now)  # NaN is not equal to itself
    except Exception:
        return False  # A tuple may contain values of any class.


def _is_of_engine(function: Any) -> bool:
    defined = function if hasattr(function, "__module__") else type(function)
    return str(defined.__module__).partition(".")[0] == "penstock"


def _items(container: Any) -> list[Any] | None:
    """Return the items of a small container of plain values; None for another one."""
    if len(container) > _SMALL:
        return None
    items = [*container, *(container.values() if isinstance(container, dict) else ())]
    return items if all(isinstance(item, _ATOMS) for item in items) else None


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, Function):
        # A thread of the function may add attributes.
        for name, value in list(vars(function).items()):
            yield f"its attribute {name!r}", value
        for cls in type(function).__mro__:
            for method in vars(cls).values():
                if isinstance(method, FunctionType) and not _is_of_engine(method):
                    yield from _outer_variables(method)
    elif isinstance(function, FunctionType):
        yield from _outer_variables(function)


def _outer_variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"the global variable {name!r}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"the variable {name!r}", cell.cell_contents
        except ValueError:
            continue  # The cell is empty.


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names
