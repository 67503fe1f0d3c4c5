"""Define `TypeInformation`, the declared type of records, of their fields and of states.

Penstock encodes values by their Python types (`docs/guides/types.md`), and needs no type
information. If a program declares the type of the records of a stream, the records are checked.
They are converted if that is safe: a tuple becomes a `Row` if the type is a row.

Records are checked a batch at a time. If all values of a batch have the expected class, only their
limits are compared. So a check costs much less than the function that made the records.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Generic

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import R, T_co, UserValue


class TypeInformation(Generic[T_co]):
    """The type of a record, of a field or of a state. (PyFlink: `TypeInformation`.)

    The methods of `Types` create it.

    Arguments:
        name: the name of the type, such as `STRING`.
        kinds: the Python classes of its values. `object` allows every value.
        limits: for numbers, the smallest and the largest value.
        write: writes a value as Flink prints it.

    Examples:
        >>> isinstance(Types.STRING(), TypeInformation)
        True
    """

    def __init__(
        self,
        name: str,
        kinds: type | tuple[type, ...] = object,
        limits: tuple[int, int] | None = None,
        write: Callable[[UserValue], str] = str,
    ) -> None:
        self.name = name
        self._write = write
        self._kinds = kinds
        self._limits = limits
        #: The classes of which every value is of this type, within the limits.
        self._exact = frozenset(self.python_classes)

    @property
    def python_classes(self) -> tuple[type, ...]:
        """The Python classes of the values. `object` stands for every class."""
        return self._kinds if isinstance(self._kinds, tuple) else (self._kinds,)

    def text(self, value: UserValue) -> str:
        """Return a value of this type as Flink prints it, such as `true` and `1.0E16`.

        `DataStream.print` writes records of a declared type so.
        """
        return "null" if value is None else self._write(value)

    def converted(self, value: UserValue) -> object:
        """Return a value of this type that a value of the program stands for.

        Raises:
            ValueError: if the value is not of this type.
        """
        if not isinstance(value, self._kinds) and int in self._exact:
            # A whole number of NumPy is a number, too.
            value = operator.index(value) if hasattr(value, "__index__") else value
        wrong = isinstance(value, bool) and self._kinds not in (bool, object)
        if wrong or not isinstance(value, self._kinds):
            raise ValueError(f"{value!r} is no {self}")
        number: UserValue = value
        if self._limits is not None and not self._limits[0] <= number <= self._limits[1]:
            raise ValueError(f"{value!r} is out of the range of {self}")
        return value

    def converted_all(self, values: Sequence[UserValue]) -> Sequence[UserValue]:
        """Return the converted values; the same object if no value has to be converted.

        Raises:
            ValueError: if a value is not of this type.
        """
        if self._kinds is object:
            return values
        if set(map(type, values)) <= self._exact:
            limits = self._limits
            if limits is None or (limits[0] <= min(values) and max(values) <= limits[1]):
                return values
        return [self.converted(value) for value in values]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return self.name


def nullable(convert: Callable[[UserValue], R], value: UserValue) -> R | None:
    """Return a converted value; None stands for no value, and is kept."""
    return None if value is None else convert(value)


def check_type_info(method: str, type_info: object, *, required: bool = False) -> None:
    """Check that an argument is a type, such as `Types.STRING()`.

    Arguments:
        method: the name of the API's method, for the error message.
        type_info: the argument. A Python class and a list of types are accepted, too.
        required: whether the argument must be a `TypeInformation`.

    Raises:
        GraphError: if the argument is something else.
    """
    if isinstance(type_info, TypeInformation):
        return
    if not required and (type_info is None or isinstance(type_info, type | list | tuple)):
        return
    name = getattr(type_info, "__name__", None)
    hint = ": write Types.STRING(), with parentheses" if callable(type_info) and name else ""
    raise GraphError(f"{method} takes a type such as Types.STRING(), not {type_info!r}{hint}")
