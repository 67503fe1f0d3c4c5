"""Type information, accepted wherever PyFlink takes it and never required.

Penstock encodes Python values by their own types (`docs/types.md`). A `TypeInformation` is only a
name, so that a PyFlink program runs unchanged.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TypeInformation", "Types"]


class TypeInformation:
    """The name of a type.

    Arguments:
        name: such as `STRING` or `TUPLE`.
        parameters: the types inside it.
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
    """`Types.STRING()`, `Types.TUPLE([Types.STRING(), Types.INT()])` and so on, as in PyFlink."""
