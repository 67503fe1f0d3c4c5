"""Check single settings, and convert the names of log levels to numbers."""

from __future__ import annotations

import logging

from penstock.dataflow.errors import GraphError

#: The largest allowed number of key groups, as in Flink.
MAX_PARALLELISM = 32768


def check_parallelism(parallelism: int, max_parallelism: int, of: str) -> None:
    """Raise a `GraphError` unless `1 <= parallelism <= max_parallelism`.

    Arguments:
        parallelism: the number of subtasks.
        max_parallelism: the number of key groups.
        of: the operator or job that has this parallelism, for the error message.
    """
    if not isinstance(parallelism, int) or isinstance(parallelism, bool):
        raise GraphError(f"the parallelism of {of} must be a whole number, not {parallelism!r}")
    if parallelism < 1:
        raise GraphError(f"the parallelism of {of} must be at least 1, not {parallelism}")
    if parallelism > max_parallelism:
        raise GraphError(
            f"the parallelism of {of} is {parallelism}, above the max parallelism "
            f"{max_parallelism}, which is the number of key groups; raise it with "
            f"env.set_max_parallelism(...) before the job has state"
        )


def log_level_number(level: str | int) -> int:
    """Return the number of a log level that is given by its name or number.

    Raises:
        GraphError: if `logging` has no level of this name.
    """
    if isinstance(level, int) and not isinstance(level, bool):
        return level
    names = logging.getLevelNamesMapping()
    number = names.get(level.upper()) if isinstance(level, str) else None
    if number is None:
        raise GraphError(
            f"a log level is DEBUG, INFO, WARNING, ERROR, CRITICAL or a number, not {level!r}"
        )
    return number
