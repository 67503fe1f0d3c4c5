"""Define type information, which PyFlink programs give to streams, state and collections.

Penstock encodes values by their Python types (`docs/types.md`), and needs no type information. It
uses it where that is free: `from_collection` checks the elements, and makes rows of them.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NoReturn

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import K, T, T_co, V
from penstock.dataflow.types.row import Row, RowKind

__all__ = ["TypeInformation", "Types", "check_type_info"]


class TypeInformation(Generic[T_co]):
    """The type of a record, of a field or of a state. (PyFlink: `TypeInformation`.)

    The methods of `Types` create it.

    Arguments:
        name: the name of the type, such as `STRING`.
        kinds: the Python classes of its values. `object` allows every value.
        limits: for numbers, the smallest and the largest value.
    """

    def __init__(
        self,
        name: str,
        kinds: type | tuple[type, ...] = object,
        limits: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self._kinds = kinds
        self._limits = limits

    @property
    def python_classes(self) -> tuple[type, ...]:
        """The Python classes of the values. `object` stands for every class."""
        return self._kinds if isinstance(self._kinds, tuple) else (self._kinds,)

    def converted(self, value: Any) -> Any:
        """Return a value of this type that a value of the program stands for.

        Raises:
            ValueError: if the value is not of this type.
        """
        wrong = isinstance(value, bool) and self._kinds not in (bool, object)
        if wrong or not isinstance(value, self._kinds):
            raise ValueError(f"{value!r} is no {self}")
        number: Any = value
        if self._limits is not None and not self._limits[0] <= number <= self._limits[1]:
            raise ValueError(f"{value!r} is out of the range of {self}")
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return self.name


class _ArrayType(TypeInformation[list[T]]):
    """The type of lists and arrays, with the type of their items."""

    def __init__(self, name: str, item: TypeInformation[T]) -> None:
        super().__init__(name, Sequence)
        check_type_info(f"Types.{name}", item, required=True)
        self._item = item

    def converted(self, value: Any) -> Any:
        if isinstance(value, str | bytes | Row) or not hasattr(value, "__iter__"):
            raise ValueError(f"{value!r} is no {self}")
        items = [self._item.converted(item) for item in value]
        return items if isinstance(value, list) else value

    def __repr__(self) -> str:
        return f"{self.name}({self._item!r})"


class _MapType(TypeInformation[dict[K, V]]):
    """The type of dicts, with the types of their keys and values."""

    def __init__(self, key: TypeInformation[K], value: TypeInformation[V]) -> None:
        super().__init__("MAP", Mapping)
        check_type_info("Types.MAP", key, required=True)
        check_type_info("Types.MAP", value, required=True)
        self._key, self._value = key, value

    def converted(self, value: Any) -> Any:
        pairs = super().converted(value).items()
        return {self._key.converted(k): self._value.converted(v) for k, v in pairs}

    def __repr__(self) -> str:
        return f"MAP({self._key!r}, {self._value!r})"


class _TupleType(TypeInformation[T_co]):
    """The type of tuples, with the types of their items."""

    def __init__(self, name: str, items: Sequence[TypeInformation]) -> None:
        super().__init__(name, tuple)
        if not isinstance(items, Sequence):
            raise GraphError(f"Types.{name} takes a list of types, not {items!r}")
        for item in items:
            check_type_info(f"Types.{name}", item, required=True)
        self._items = tuple(items)

    def converted(self, value: Any) -> Any:
        return tuple(self._fields(super().converted(value)))

    def _fields(self, values: Sequence[Any]) -> list[Any]:
        if len(values) != len(self._items):
            raise ValueError(f"{values!r} has {len(values)} fields, and {self} {len(self._items)}")
        pairs = zip(self._items, values, strict=True)
        return [None if value is None else kind.converted(value) for kind, value in pairs]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self._items))})"


class _RowType(_TupleType[Row]):
    """The type of rows, with the types and perhaps the names of their fields."""

    def __init__(self, items: Sequence[TypeInformation], names: Sequence[str] | None) -> None:
        super().__init__("ROW" if names is None else "ROW_NAMED", items)
        if names is not None and len(names) != len(self._items):
            raise GraphError(
                f"Types.ROW_NAMED got {len(names)} names and {len(self._items)} types: give each "
                f"field a name and a type"
            )
        self._names = None if names is None else tuple(names)

    def converted(self, value: Any) -> Any:
        if isinstance(value, Row):
            kind, names, values = value.parts
        elif isinstance(value, tuple | list):
            kind, names, values = RowKind.INSERT, None, list(value)
        else:
            raise ValueError(f"{value!r} is no {self}")
        if names is not None and self._names is not None:
            values = value.get_fields_by_names(self._names)
        return Row.of_parts(kind, self._names or names, self._fields(values))

    def __repr__(self) -> str:
        if self._names is None:
            return super().__repr__()
        pairs = zip(self._names, self._items, strict=True)
        return f"ROW({', '.join(f'{name}: {kind!r}' for name, kind in pairs)})"


class _TypesMeta(type):
    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(
            f"Types has no type {name!r}; Penstock ignores the types of streams and of state, so "
            f"that the argument can be left out"
        )


def _type(name: str, kind: type[T]) -> TypeInformation[T]:
    return TypeInformation(name, kind)


def _float(name: str) -> TypeInformation[float]:
    return TypeInformation(name, (int, float))


def _number(name: str, bits: int) -> TypeInformation[int]:
    return TypeInformation(name, int, (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))


class Types(metaclass=_TypesMeta):
    """Creates type information, as in PyFlink. Examples: `Types.STRING()`, `Types.LIST(item)`.

    A program may give types wherever a PyFlink program does. They are not needed.
    """

    STRING = staticmethod(lambda: _type("STRING", str))
    CHAR = staticmethod(lambda: _type("CHAR", str))
    BOOLEAN = staticmethod(lambda: _type("BOOLEAN", bool))
    BYTE = staticmethod(lambda: _number("BYTE", 8))
    SHORT = staticmethod(lambda: _number("SHORT", 16))
    INT = staticmethod(lambda: _number("INT", 32))
    LONG = staticmethod(lambda: _number("LONG", 64))
    BIG_INT = staticmethod(lambda: _type("BIG_INT", int))
    FLOAT = staticmethod(lambda: _float("FLOAT"))
    DOUBLE = staticmethod(lambda: _float("DOUBLE"))
    BIG_DEC = staticmethod(lambda: _type("BIG_DEC", decimal.Decimal))
    SQL_DATE = staticmethod(lambda: _type("SQL_DATE", datetime.date))
    SQL_TIME = staticmethod(lambda: _type("SQL_TIME", datetime.time))
    SQL_TIMESTAMP = staticmethod(lambda: _type("SQL_TIMESTAMP", datetime.datetime))
    INSTANT = staticmethod(lambda: TypeInformation("INSTANT"))
    PICKLED_BYTE_ARRAY = staticmethod(lambda: TypeInformation("PICKLED_BYTE_ARRAY"))

    @staticmethod
    def TUPLE(types: Sequence[TypeInformation]) -> TypeInformation[tuple[Any, ...]]:
        """Return the type of tuples with items of these types."""
        return _TupleType("TUPLE", types)

    @staticmethod
    def ROW(types: Sequence[TypeInformation]) -> TypeInformation[Row]:
        """Return the type of rows with fields of these types."""
        return _RowType(types, None)

    @staticmethod
    def ROW_NAMED(names: Sequence[str], types: Sequence[TypeInformation]) -> TypeInformation[Row]:
        """Return the type of rows with fields of these names and types."""
        return _RowType(types, names)

    @staticmethod
    def LIST(element_type_info: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of lists with elements of this type."""
        return _ArrayType("LIST", element_type_info)

    @staticmethod
    def MAP(
        key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]
    ) -> TypeInformation[dict[K, V]]:
        """Return the type of dicts with keys and values of these types."""
        return _MapType(key_type_info, value_type_info)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of arrays with elements of this type."""
        return _ArrayType("PRIMITIVE_ARRAY", element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of arrays with elements of this type."""
        return _ArrayType("BASIC_ARRAY", element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of arrays with elements of this type."""
        return _ArrayType("OBJECT_ARRAY", element_type)


def check_type_info(method: str, type_info: Any, *, required: bool = False) -> None:
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
