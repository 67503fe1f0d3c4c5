"""Check the arguments of `as_of_join` and `join_table`."""

from __future__ import annotations

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import JoinFunction, check_function, check_methods
from penstock.dataflow.joins.operations import AsOfJoinOperation, TableJoinOperation
from penstock.dataflow.joins.static_table import static_table
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.streams.key_selectors import check_key_selector
from penstock.dataflow.streams.window_settings import own
from penstock.dataflow.type_variables import UserValue


def as_of_join_operation(how: str, function: object, late_tag: object) -> AsOfJoinOperation:
    """Return the operation of an as-of join; see `KeyedStream.as_of_join`.

    Raises:
        GraphError: if an argument is wrong.
    """
    if how not in ("inner", "left"):
        raise GraphError(f"how is 'inner' or 'left', not {how!r}")
    if late_tag is not None and not isinstance(late_tag, OutputTag):
        raise GraphError(
            f"late_tag is an OutputTag, not {late_tag!r}: write OutputTag({str(late_tag)!r})"
        )
    checked = check_function(_pair if function is None else own(function), JoinFunction, "function")
    check_methods(checked)
    return AsOfJoinOperation(checked, how == "left", late_tag)


def table_join_operation(
    table: object,
    on: object,
    key: object,
    how: str,
    function: object,
    many: bool,
    reload_every: DurationLike | None,
) -> TableJoinOperation:
    """Return the operation of a join with a table; see `DataStream.join_table`.

    Raises:
        GraphError: if an argument is wrong.
    """
    if how not in ("inner", "left"):
        raise GraphError(f"how is 'inner' or 'left', not {how!r}")
    has_columns = not hasattr(table, "keys") or hasattr(table, "columns")
    if key is None and has_columns and not callable(table):
        key = _as_columns(on)
    reload_ms = None
    if reload_every is not None:
        reload_ms = milliseconds_of("reload_every", reload_every, 1)
    checked = check_function(_pair if function is None else own(function), JoinFunction, "function")
    check_methods(checked)
    selector = check_key_selector(on, method="join_table")
    static = static_table(table, key, many)
    if reload_ms is not None and not (callable(static.source) or isinstance(static.source, str)):
        raise GraphError(
            f"{static.name} is in the memory of the program, so it cannot be loaded again: give "
            f"the path of a Parquet file or a function, or leave reload_every out"
        )
    return TableJoinOperation(static, selector, checked, how == "left", reload_ms)


def _pair(record: UserValue, other: object) -> UserValue:
    return record, other


def _as_columns(on: object) -> UserValue:
    """Return the fields of a key as column names, or None if they are not names."""
    names = on if isinstance(on, tuple) else (on,)
    return on if all(isinstance(name, str) for name in names) else None
