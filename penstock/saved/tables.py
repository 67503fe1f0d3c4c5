"""Turn entries of state into tables of Arrow.

A column has one Arrow type. Its values are converted in batches, and the types of the batches are
unified: a column of integers and floats becomes a column of floats. A column whose values fit no
common type becomes JSON text.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import GraphError
from penstock.saved.entries import OPERATOR_KINDS, SavedState, StateEntry
from penstock.saved.json_values import as_json
from penstock.snapshot.metadata.state_kind import StateKind

if TYPE_CHECKING:
    import pyarrow as pa


_PART: Callable[[StateEntry], Any] = attrgetter("part")
_BATCH_ROWS = 1 << 16
#: The largest number of different keys of dicts that become the fields of a struct.
_MAX_FIELDS = 100


def require(module: str, extra: str) -> Any:
    """Import and return a module of an extra.

    Raises:
        GraphError: if it is missing. The message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphError(
            f"this needs {module}, which cannot be imported ({error}): "
            f"pip install 'penstock[{extra}]'"
        ) from error


def table_of_state(state: SavedState, entries: Iterable[StateEntry]) -> pa.Table:
    """Return the entries of a state as a table; see `SavedSnapshot.to_pandas`."""
    columns = state_columns(state)
    getters = list(columns.values())
    return table_of(
        list(columns), (tuple([getter(entry) for getter in getters]) for entry in entries)
    )


def state_columns(state: SavedState) -> dict[str, Callable[[StateEntry], Any]]:
    """Return the columns of a state, each with a function that returns its value of an entry."""
    columns: dict[str, Callable[[StateEntry], Any]] = {}
    kind = state.kind
    if kind in OPERATOR_KINDS.values():
        columns |= {"part": _PART, "subtask": attrgetter("subtask")}
    else:
        columns["key"] = attrgetter("key")
    if kind in (StateKind.MAP.value, StateKind.LIST.value):
        columns["part"] = _PART
    elif kind == StateKind.TIMER.value or kind.startswith("window"):
        columns["time" if kind == StateKind.TIMER.value else "window"] = attrgetter("window")
        columns["part"] = lambda entry: entry.part[1:] or None
    columns["value"] = attrgetter("value")
    if state.expires:
        columns["last_used_ms"] = attrgetter("last_used_ms")
    return columns


def table_of(names: list[str], rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Return rows as a table with these columns."""
    pa = require("pyarrow", "columns")
    batches: list[list[Any]] = [[] for _ in names]
    for chunk in _chunks(rows):
        for column, values in zip(batches, zip(*chunk, strict=True), strict=True):
            column.append(_array(pa, list(values)))
    return pa.table({name: _joined(pa, some) for name, some in zip(names, batches, strict=True)})


def _chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    left = iter(rows)
    while chunk := list(islice(left, _BATCH_ROWS)):
        yield chunk


def _array(pa: Any, values: list[Any]) -> Any:
    """Return values as an array, or as an array of JSON text if they have no common type."""
    kinds = set(map(type, values))
    # Arrow would turn a bool among integers into an integer.
    mixed = len(kinds - {int, float, type(None)}) > 1 or (bool in kinds and len(kinds) > 2)
    if not mixed or kinds <= {int, float, type(None)}:
        try:
            return pa.array(list(map(_plain, values)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, _NotTabularError):
            pass
    return _text(pa, values)


def _text(pa: Any, values: list[Any]) -> Any:
    # This type of text marks JSON. Texts of a program are of the type `string`.
    texts = [None if value is None else as_json(value) for value in values]
    return pa.array(texts, pa.large_string())


class _NotTabularError(Exception):
    """A value has no Arrow type."""


def _plain(value: Any) -> Any:
    """Return a value in the form that Arrow converts: structs are dicts."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool, bytes):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None) or [f"f{n}" for n in range(len(value))]
        if not names:
            return None
        return {name: _plain(item) for name, item in zip(names, value, strict=True)}
    if isinstance(value, dict):
        if not value or len(value) > _MAX_FIELDS or not all(type(key) is str for key in value):
            raise _NotTabularError
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, list):
        return list(map(_plain, value))
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def _joined(pa: Any, arrays: list[Any]) -> Any:
    """Return the arrays of all batches as one column of a common type."""
    if not arrays:
        return pa.array([], pa.null())
    kinds = {array.type for array in arrays}
    if len(kinds) == 1:
        return pa.chunked_array(arrays)
    if pa.large_string() not in kinds:
        try:
            tables = [pa.table({"column": array}) for array in arrays]
            return pa.concat_tables(tables, promote_options="permissive").column(0)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            pass
    texts = [
        array if array.type == pa.large_string() else _text(pa, array.to_pylist())
        for array in arrays
    ]
    return pa.chunked_array(texts)
