"""Type information, accepted wherever PyFlink takes it and never required.

Penstock carries Python values by their own types (`docs/types.md`), so a `TypeInformation` is a
name and nothing more: it lets a PyFlink program run unchanged.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TypeInformation", "Types"]


class TypeInformation:
    """A type's name, for display.

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
