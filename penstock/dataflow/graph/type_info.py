"""Define type information for compatibility with PyFlink. Penstock ignores it.

Penstock encodes values by their Python types (`docs/types.md`). A `TypeInformation` object only
has a name, so that a PyFlink program can pass it without changes.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TypeInformation", "Types"]


class TypeInformation:
    """The name of a type.

    Arguments:
        name: the name of the type, such as `STRING` or `TUPLE`.
        parameters: the types of its parts.
    """

    def __init__(self, name: str, parameters: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.parameters = parameters

    def __repr__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name


class _TypesMeta(type):
    def __getattr__(cls, name: str) -> Any:
        if not name.isupper():
            raise AttributeError(f"Types has no type {name!r}")
        return lambda *parameters: TypeInformation(name, parameters)


class Types(metaclass=_TypesMeta):
    """Creates type information, as in PyFlink.

    Examples are `Types.STRING()` and `Types.TUPLE([Types.STRING(), Types.INT()])`.
    """
