"""Checks that a value decoded from a file is what the fields of its dataclass say.

Decoding builds dataclasses from plain lists without looking at what is in them. A file that was not
written by Penstock would then fail later, in whatever first uses the value.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["require_type"]

Check = Callable[[Any], None]


class _WrongError(Exception):
    """A value of the wrong type; `place` grows on the way out."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__()
        self.value, self.expected = value, expected
        self.place = ""


def require_type(value: Any, hint: Any) -> None:
    """Check a value against a type.

    Arguments:
        value: what was decoded.
        hint: a dataclass, or another type that fields of such classes have.

    Raises:
        ValueError: that names the place and the value, if it is of another type.
    """
    try:
        _check(hint)(value)
    except _WrongError as error:
        shown = repr(error.value)[:60]
        place = error.place.lstrip(".")
        raise ValueError(f"{place} is {shown}, which is no {error.expected}") from None


@cache
def _check(hint: Any) -> Check:
    """Return a function that checks values of a type. Made once: some files hold many values."""
    if hint is Any or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return _anything  # a member was made of what was decoded, which would have failed
    if isinstance(hint, typing.NewType):
        return _check(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return _optional(_check(inner))
    if origin is tuple:
        return _sequence(arguments) if arguments[-1] is ... else _tuple(arguments)
    if origin is dict:
        return _mapping(_check(arguments[0]), _check(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _fields(hint)
    return _exactly(hint)


def _anything(value: Any) -> None:
    del value


def _exactly(kind: type) -> Check:
    name = kind.__name__

    def check(value: Any) -> None:
        # Not isinstance: True would be an int.
        if type(value) is not kind:
            raise _WrongError(value, name)

    return check


def _optional(inner: Check) -> Check:
    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    return check


def _sequence(arguments: tuple[Any, ...]) -> Check:
    inner = _check(arguments[0])

    def check(value: Any) -> None:
        if type(value) is not tuple:
            raise _WrongError(value, "list")
        for index, item in enumerate(value):
            try:
                inner(item)
            except _WrongError as error:
                error.place = f"[{index}]{error.place}"
                raise

    return check


def _tuple(arguments: tuple[Any, ...]) -> Check:
    inner = [_check(argument) for argument in arguments]

    def check(value: Any) -> None:
        if type(value) is not tuple or len(value) != len(inner):
            raise _WrongError(value, f"list of {len(inner)}")
        for function, item in zip(inner, value, strict=True):
            function(item)

    return check


def _mapping(key: Check, value_check: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _WrongError(value, "map")
        for name, item in value.items():
            key(name)
            value_check(item)

    return check


def _fields(kind: Any) -> Check:
    hints = typing.get_type_hints(kind)
    fields = [(field.name, _check(hints[field.name])) for field in dataclasses.fields(kind)]
    name = kind.__name__

    def check(value: Any) -> None:
        if type(value) is not kind:
            raise _WrongError(value, name)
        for field, function in fields:
            try:
                function(getattr(value, field))
            except _WrongError as error:
                error.place = f".{field}{error.place}"
                raise

    return check
