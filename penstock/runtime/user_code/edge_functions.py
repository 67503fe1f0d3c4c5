"""Open and close the key selectors and partitioners of a worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.dataflow.functions import Function
from penstock.dataflow.state import RuntimeContext


class EdgeFunction:
    """A rich key selector or partitioner, which several operators of a worker may call.

    The sender of a record and its receiver compute the key with the same object. So the first of
    them opens it, and the last one closes it.

    Arguments:
        function: the key selector or partitioner.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._users = 0

    def open(self, context: RuntimeContext) -> None:
        """Open the function, unless another operator has done so.

        Arguments:
            context: the context that the function gets. It has no keyed state.
        """
        if not self._users:
            self._function.open(context)
        self._users += 1

    def close(self) -> None:
        """Close the function, if no other operator still needs it."""
        if self._users:
            self._users -= 1
            if not self._users:
                self._function.close()


class EdgeFunctions:
    """The rich key selectors and partitioners of one worker."""

    def __init__(self) -> None:
        self._shared: dict[int, EdgeFunction] = {}

    def of(self, functions: Iterable[Any]) -> list[EdgeFunction]:
        """Return each rich function in `functions` once.

        Arguments:
            functions: key selectors and partitioners. None and plain functions are left out.
        """
        rich = {id(one): one for one in functions if isinstance(one, Function)}
        return [self._shared.setdefault(number, EdgeFunction(one)) for number, one in rich.items()]
