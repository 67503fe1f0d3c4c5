"""Compare the types of the keys of two streams that are joined.

Keys of different types are never equal, so a join of such keys has no results. If the program
declares the types, they are compared before the job starts. The operator also compares the keys of
the first records.
"""

from __future__ import annotations

import typing
from decimal import Decimal
from fractions import Fraction
from numbers import Number

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeySelector
from penstock.dataflow.types import TypeInformation

_NUMBERS = (int, float, Decimal, Fraction)


def check_key_types(
    first: object, second: object, declared: tuple[object, object] = (None, None)
) -> None:
    """Check that the declared types of the keys of two streams can be equal.

    A type is declared with `key_type`, or as the annotation of the key selector's result.

    Arguments:
        first: the key selector of the first stream.
        second: the key selector of the second stream.
        declared: the arguments `key_type` of the two streams; None if there is none.

    Raises:
        GraphError: if no key of one stream can be equal to a key of the other.
    """
    types = [
        type_ if type_ is not None else _annotated(selector)
        for type_, selector in zip(declared, (first, second), strict=True)
    ]
    one, other = map(_family_of_type, types)
    if one is not None and other is not None and one != other:
        raise GraphError(
            f"the streams of a join have keys of different types, {_shown(types[0])} and "
            f"{_shown(types[1])}, which are never equal: convert one of the keys in its key "
            f"selector"
        )


def key_shape(key: object) -> object:
    """Return the shape of a key: a class that stands for its type, or a tuple of shapes."""
    if key is None:
        return None
    return tuple(map(key_shape, key)) if isinstance(key, tuple) else _family(type(key))


def shapes_can_match(first: object, second: object) -> bool:
    """Return whether a key of one shape can be equal to a key of another shape.

    The key None is compatible with keys of any type.
    """
    if first is None or second is None:
        return True
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(shapes_can_match, first, second))
    return bool(first is second)


def why_keys_never_match(first: object, second: object, sides: tuple[str, str]) -> str:
    """Return the message for two keys whose types can never be equal.

    Arguments:
        first: a key of the first side.
        second: a key of the second side.
        sides: the names of the two sides, such as "stream" and "table".
    """
    return (
        f"the two sides of this join have keys of different types: {first!r} "
        f"({type(first).__name__}) in the {sides[0]} and {second!r} ({type(second).__name__}) in "
        f"the {sides[1]}, which never match: convert one of the keys"
    )


def _family(kind: type) -> type:
    """Return a class that stands for all types whose values can be equal to values of `kind`."""
    return Number if issubclass(kind, _NUMBERS) or issubclass(kind, Number) else _plain(kind)


def _plain(kind: type) -> type:
    return next((base for base in (str, bytes, tuple) if issubclass(kind, base)), kind)


def _annotated(selector: object) -> object:
    """Return the annotation of a key selector's result; None if there is none."""
    function = selector.get_key if isinstance(selector, KeySelector) else selector
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        return None


def _family_of_type(type_: object) -> type | None:
    """Return the family of a declared type; None if it is unknown."""
    if isinstance(type_, TypeInformation):
        kinds = type_.python_classes
        return _family(kinds[0]) if kinds[0] is not object else None
    origin = typing.get_origin(type_) or type_
    if isinstance(origin, type) and origin not in (object, type(None)):
        return _family(origin)
    return None


def _shown(type_: object) -> str:
    return type_.__name__ if isinstance(type_, type) else repr(type_)
