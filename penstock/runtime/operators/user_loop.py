"""A loop over records, specialised for the functions of the user that it calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.runtime import codegen
from penstock.runtime.serialization.record_batch import WIDEST


class UserLoop:
    """One of the loops of `record_loops`, with the functions of the user that it calls.

    The loop is specialised: the user's expressions are inlined. If they cannot be inlined, the loop
    is used as it is written.

    Arguments:
        plain: the loop as it is written.
        functions: the user's functions, which are the first parameters of the loop.
    """

    def __init__(self, plain: Callable[..., Any], functions: dict[str, Any]) -> None:
        self.plain, self.functions = plain, functions
        #: The loop over records. Its first parameter is the iterator.
        self.over_rows: Callable[..., list[Any]] = partial(
            codegen.specialize(plain, functions) or plain, *functions.values()
        )
        #: The specialised loops over columns, keyed by the number of columns. The value is None if
        #: such a loop would hardly be faster than the loop over rows.
        self._by_column: dict[int, Callable[..., list[Any]] | None] = {}

    def over_columns(self, width: int) -> Callable[..., list[Any]] | None:
        """Return the loop over tuples that are held by column; None if it would not be faster."""
        if width > WIDEST:
            return None
        if width not in self._by_column:
            loop = codegen.specialize(self.plain, self.functions, width)
            given = self.functions.values()
            self._by_column[width] = None if loop is None else partial(loop, *given)
        return self._by_column[width]
