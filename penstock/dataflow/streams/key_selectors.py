"""Check the function that returns the key of a record."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeySelector, check_function

__all__ = ["check_key_selector"]


def check_key_selector(key_selector: Any, method: str = "key_by") -> Any:
    """Return the function that a program passes to `key_by`.

    Arguments:
        key_selector: the argument of the method.
        method: the name of the method.

    Raises:
        GraphError: if it is not a function. The position or name of a field is not accepted.
    """
    if isinstance(key_selector, int | str):
        raise GraphError(
            f"{method} takes a function, not a position or the name of a field: write "
            f"{method}(lambda record: record[{key_selector!r}])"
        )
    return check_function(key_selector, KeySelector, method)
