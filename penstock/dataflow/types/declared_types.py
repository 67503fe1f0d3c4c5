"""Define `Types`, with which a program declares the types of records."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock.dataflow.time.durations import Instant
from penstock.dataflow.type_variables import K, T, UserValue, V
from penstock.dataflow.types.composite_types import (
    ArrayTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
)
from penstock.dataflow.types.java_text import double_text, float_text, timestamp_text
from penstock.dataflow.types.row import Row
from penstock.dataflow.types.type_information import TypeInformation


class _TypesMeta(type):
    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(
            f"Types has no type {name!r}; types need not be declared, so that the argument can be "
            f"left out"
        )


def _type(name: str, kind: type[T], write: Callable[[UserValue], str] = str) -> TypeInformation[T]:
    return TypeInformation(name, kind, write=write)


def _boolean_text(value: bool) -> str:
    return "true" if value else "false"


def _float(name: str, write: Callable[[UserValue], str]) -> TypeInformation[float]:
    return TypeInformation(name, (int, float), write=write)


def _number(name: str, bits: int) -> TypeInformation[int]:
    return TypeInformation(name, int, (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))


class Types(metaclass=_TypesMeta):
    """Creates type information, as in PyFlink. Examples: `Types.STRING()`, `Types.LIST(item)`.

    A program may give types wherever a PyFlink program does. They are not needed.

    Examples:
        >>> Types.TUPLE([Types.STRING(), Types.LONG()])
        TUPLE(STRING, LONG)
    """

    STRING = staticmethod(lambda: _type("STRING", str))
    CHAR = staticmethod(lambda: _type("CHAR", str))
    BOOLEAN = staticmethod(lambda: _type("BOOLEAN", bool, _boolean_text))
    BYTE = staticmethod(lambda: _number("BYTE", 8))
    SHORT = staticmethod(lambda: _number("SHORT", 16))
    INT = staticmethod(lambda: _number("INT", 32))
    LONG = staticmethod(lambda: _number("LONG", 64))
    BIG_INT = staticmethod(lambda: _type("BIG_INT", int))
    FLOAT = staticmethod(lambda: _float("FLOAT", float_text))
    DOUBLE = staticmethod(lambda: _float("DOUBLE", double_text))
    BIG_DEC = staticmethod(lambda: _type("BIG_DEC", decimal.Decimal))
    SQL_DATE = staticmethod(lambda: _type("SQL_DATE", datetime.date))
    SQL_TIME = staticmethod(lambda: _type("SQL_TIME", datetime.time))
    SQL_TIMESTAMP = staticmethod(lambda: _type("SQL_TIMESTAMP", datetime.datetime, timestamp_text))
    INSTANT = staticmethod(lambda: _type("INSTANT", Instant))
    PICKLED_BYTE_ARRAY = staticmethod(lambda: TypeInformation("PICKLED_BYTE_ARRAY"))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation[tuple[UserValue, ...]]:
        """Return the type of tuples with items of these types."""
        return TupleTypeInfo(field_types)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation[Row]:
        """Return the type of rows with fields `f0`, `f1`, … of these types."""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(
        field_names: Sequence[str], field_types: Sequence[TypeInformation]
    ) -> TypeInformation[Row]:
        """Return the type of rows with fields of these names and types."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def LIST(element_type_info: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of lists with elements of this type."""
        return ArrayTypeInfo("LIST", element_type_info)

    @staticmethod
    def MAP(
        key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]
    ) -> TypeInformation[dict[K, V]]:
        """Return the type of dicts with keys and values of these types."""
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of arrays with elements of this type."""
        return ArrayTypeInfo("PRIMITIVE_ARRAY", element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of arrays with elements of this type."""
        return ArrayTypeInfo("BASIC_ARRAY", element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation[T]) -> TypeInformation[list[T]]:
        """Return the type of arrays with elements of this type."""
        return ArrayTypeInfo("OBJECT_ARRAY", element_type)
