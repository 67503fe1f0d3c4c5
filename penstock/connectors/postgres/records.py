"""Make records from rows: dicts, tuples, `Row`s, dataclasses or named tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.types import Row, RowKind

#: The kinds of records that have a name.
RECORD_KINDS = ("dict", "tuple", "row")


def check_record_kind(as_: object) -> None:
    """Raise a `GraphError` if there is no such kind of record."""
    if isinstance(as_, type):
        _class_fields(as_)
    elif as_ not in RECORD_KINDS:
        raise GraphError(
            f"as_ is one of {', '.join(RECORD_KINDS)}, a dataclass or a named tuple, not {as_!r}"
        )


def record_maker(as_: str | type, names: Sequence[str]) -> Callable[[list[Any]], list[Any]]:
    """Return a function that makes records from rows, which may have further values at their ends.

    Arguments:
        as_: the kind of record.
        names: the names of the columns.

    Raises:
        JobError: if the fields of the class `as_` are not the columns.
    """
    count = len(names)
    if as_ == "dict":
        return lambda rows: [dict(zip(names, row, strict=False)) for row in rows]
    if as_ == "tuple":
        return lambda rows: [row[:count] for row in rows]
    if as_ == "row":
        insert, make = RowKind.INSERT, Row.of_parts
        return lambda rows: [make(insert, names, row[:count]) for row in rows]
    assert isinstance(as_, type)
    if _class_fields(as_) != list(names):
        raise JobError(
            f"the columns are {list(names)}, and {as_.__name__} has the fields "
            f"{_class_fields(as_)}: select the columns with `columns` or `query`, in this order",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    return lambda rows: [as_(*row[:count]) for row in rows]


def _class_fields(cls: type) -> list[str]:
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return list(cls._fields)
    if not is_dataclass(cls):
        raise GraphError(
            f"as_ is one of {', '.join(RECORD_KINDS)}, a dataclass or a named tuple, not {cls!r}"
        )
    made_from = [field for field in fields(cls) if field.init]
    if any(field.kw_only for field in made_from):
        raise GraphError(
            f"{cls.__name__} takes fields by keyword (kw_only), and columns come in order: use a "
            f"dataclass without kw_only, or dicts"
        )
    return [field.name for field in made_from]
