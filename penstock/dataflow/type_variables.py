"""Define the type variables of the API, which type checkers and editors use.

All of them default to `UserValue`, so types are optional: a bare `DataStream` is a stream of any
records, and a class may extend a bare `MapFunction`. Nothing reads them while a job runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name: str, *, default: object = None, **options: bool | type) -> _TypeVar:
        """Return a type variable. Its default is left out, which Python knows since 3.13 only."""
        del default
        return _TypeVar(name, **options)


#: A record, a key or a value of a program, on which programs and their functions call any method.
#: Type checkers check nothing there. A value that is only passed on is an `object` instead.
UserValue: TypeAlias = Any  # type: ignore[explicit-any]
#: A value of plain types: str, int, float, bool, None, bytes, and lists and dicts of these.
PlainValue: TypeAlias = Any  # type: ignore[explicit-any]

#: The type of a record, of a key, of a value, and of what a method returns.
T = TypeVar("T", default=UserValue)
K = TypeVar("K", default=UserValue)
V = TypeVar("V", default=UserValue)
R = TypeVar("R", default=UserValue)
#: A class of streams or of states.
S = TypeVar("S", default=UserValue)
S_co = TypeVar("S_co", covariant=True, default=UserValue)
#: The type that an object returns or emits: a stream, a context, an output.
T_co = TypeVar("T_co", covariant=True, default=UserValue)
T1_co = TypeVar("T1_co", covariant=True, default=UserValue)
T2_co = TypeVar("T2_co", covariant=True, default=UserValue)
K_co = TypeVar("K_co", covariant=True, default=UserValue)
V_co = TypeVar("V_co", covariant=True, default=UserValue)
OUT_co = TypeVar("OUT_co", covariant=True, default=UserValue)
#: The type that an object receives: a function, a sink.
T_contra = TypeVar("T_contra", contravariant=True, default=UserValue)
IN_contra = TypeVar("IN_contra", contravariant=True, default=UserValue)
IN1_contra = TypeVar("IN1_contra", contravariant=True, default=UserValue)
IN2_contra = TypeVar("IN2_contra", contravariant=True, default=UserValue)
KEY_contra = TypeVar("KEY_contra", contravariant=True, default=UserValue)
#: The accumulator and the result of an aggregate function.
ACC = TypeVar("ACC", default=UserValue)
OUT = TypeVar("OUT", default=UserValue)

#: A function whose arguments no type can say, since they depend on its place in a program.
UserFunction: TypeAlias = Callable[..., R]  # type: ignore[explicit-any]
