"""Send the types of records to the workers, with their annotations.

msgspec finds the types of fields by their annotations. If these are texts, it looks up their names
in the module of the class. A worker does not have the module of a program. So the process of the
program looks up the names, and the types are sent with the class.
"""

from __future__ import annotations

import inspect
import typing
from enum import Enum
from typing import Any


class RecordType:
    """A type that can be sent to workers.

    Arguments:
        type: the type, as a format gets it from the program.
    """

    def __init__(self, type: Any) -> None:
        self.type = type
        #: The classes that the type mentions, in which the engine finds the record classes.
        self.classes = list(_annotations_of(type))

    def __getstate__(self) -> dict[str, Any]:
        return {"type": self.type, "annotations": list(_annotations_of(self.type).items())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.type, self.classes = state["type"], [cls for cls, _ in state["annotations"]]
        for cls, types in state["annotations"]:
            if types and _resolved(cls) is None:
                cls.__annotations__ = types


def _annotations_of(kind: Any) -> dict[Any, dict[str, Any]]:
    """Return the annotations of the classes that a type mentions, as types."""
    found: dict[Any, dict[str, Any]] = {}
    left = [kind]
    while left:
        one = left.pop()
        left += typing.get_args(one)
        if not isinstance(one, type) or one in found or one.__module__ == "builtins":
            continue
        if issubclass(one, Enum):
            found[one] = {}
            continue
        resolved = _resolved(one)
        if resolved:
            own = inspect.get_annotations(one)
            found[one] = {name: resolved[name] for name in own}
            left += resolved.values()
        left += one.__mro__[1:]
    return found


def _resolved(cls: Any) -> dict[str, Any] | None:
    """Return the annotations of a class as types; None if a name cannot be found."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:
        return None
