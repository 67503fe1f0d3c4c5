"""Convert values of a state that an older version of the program has stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.state import StateDescriptor


def migration_of(
    descriptor: StateDescriptor, old: int, *, is_late: bool = False
) -> Callable[[Any], Any] | None:
    """Return a function that converts a restored value; None if the values stay as they are.

    Arguments:
        descriptor: the descriptor of the state in the program.
        old: the version of the restored values.
        is_late: whether the program requests the state later than when it is opened.

    Raises:
        GraphError: if the values cannot be converted.
    """
    name, new = descriptor.name, descriptor.version
    if old == new:
        return None
    if old > new:
        raise GraphError(
            f"the values of state {name!r} have version {old} in the snapshot, and {new} in the "
            f"program: a newer program has written them. Resume with that program, or from a "
            f"snapshot before it"
        )
    migrate = descriptor.migrate
    if migrate is None:
        raise GraphError(
            f"the values of state {name!r} have version {old} in the snapshot, and {new} in the "
            f"program: give its descriptor a function that converts them, migrate=... (value, "
            f"version)"
        )
    if is_late:
        raise GraphError(
            f"the values of state {name!r} have version {old} in the snapshot, and {new} in the "
            f"program. They can only be converted before the first record: request the state in "
            f"open"
        )

    def convert(value: Any) -> Any:
        try:
            return migrate(value, old)
        except Exception as error:
            text = repr(value)[:200]
            error.add_note(f"state {name!r}: a value of version {old} was converted: {text}")
            raise

    return convert
