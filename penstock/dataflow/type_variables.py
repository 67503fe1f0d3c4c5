"""Define the type variables of the API, which type checkers and editors use.

All of them default to `Any`, so types are optional: a bare `DataStream` is a stream of any records,
and a class may extend a bare `MapFunction`. Nothing reads them while a job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name: str, *, default: Any = None, **options: Any) -> _TypeVar:
        """Return a type variable. Its default is left out, which Python knows since 3.13 only."""
        del default
        return _TypeVar(name, **options)


__all__ = [
    "ACC",
    "IN1_contra",
    "IN2_contra",
    "IN_contra",
    "K",
    "KEY_contra",
    "K_co",
    "OUT",
    "OUT_co",
    "R",
    "S",
    "S_co",
    "T",
    "T1_co",
    "T2_co",
    "T_co",
    "T_contra",
    "V",
    "V_co",
    "TypeVar",
]

#: The type of a record, of a key, of a value, and of what a method returns.
T = TypeVar("T", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
R = TypeVar("R", default=Any)
#: A class of streams or of states.
S = TypeVar("S", default=Any)
S_co = TypeVar("S_co", covariant=True, default=Any)
#: The type that an object returns or emits: a stream, a context, an output.
T_co = TypeVar("T_co", covariant=True, default=Any)
T1_co = TypeVar("T1_co", covariant=True, default=Any)
T2_co = TypeVar("T2_co", covariant=True, default=Any)
K_co = TypeVar("K_co", covariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)
OUT_co = TypeVar("OUT_co", covariant=True, default=Any)
#: The type that an object receives: a function, a sink.
T_contra = TypeVar("T_contra", contravariant=True, default=Any)
IN_contra = TypeVar("IN_contra", contravariant=True, default=Any)
IN1_contra = TypeVar("IN1_contra", contravariant=True, default=Any)
IN2_contra = TypeVar("IN2_contra", contravariant=True, default=Any)
KEY_contra = TypeVar("KEY_contra", contravariant=True, default=Any)
#: The accumulator and the result of an aggregate function.
ACC = TypeVar("ACC", default=Any)
OUT = TypeVar("OUT", default=Any)
