"""Name the parts of an entry of keyed state, for readers of snapshots and of running jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.snapshot.metadata.state_kind import StateKind

#: The names that a path to a value may begin with.
FIRST_FIELDS = ("key", "part", "value", "last_used_ms")


def full_name(name: str, names: Iterable[str]) -> str:
    """Return the name of the state that a user means.

    The name of a window's state says how the window is kept, as in "window-panes (size 1000)". The
    part before the parenthesis suffices, if there is only one such state.

    Arguments:
        name: the name that the user has given.
        names: the names of all states of the operator.
    """
    found = set(names)
    longer = [one for one in found if one.startswith(f"{name} (")]
    return longer[0] if name not in found and len(longer) == 1 else name


def is_bounds(kind: StateKind, key: Any) -> bool:
    """Return whether a composite key is that of the bounds of a list, which are no entry."""
    return kind.is_list and key[-1] is None


def entry_parts(kind: StateKind, key: Any) -> tuple[Any, Any]:
    """Return the key of an entry, and the part that `StateEntry.part` describes."""
    if not kind.is_composite:
        return key, None
    first, *parts = key
    return first, parts[0] if kind in (StateKind.MAP, StateKind.LIST) else parts


def field_of(value: Any, path: Sequence[str]) -> Any:
    """Return what a path of fields, items and keys leads to; None if there is nothing.

    Arguments:
        value: a record, a tuple, a list or a dict.
        path: the name of a field, the index of an item or the key of a value, for each step.
    """
    for name in path:
        value = _field(value, name)
    return value


def _field(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if name.isdecimal() and isinstance(value, (tuple, list)):
        return value[int(name)] if int(name) < len(value) else None
    found = getattr(value, name, None)
    return None if callable(found) else found
