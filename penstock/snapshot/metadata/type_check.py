"""Check that decoded values have the types of their dataclass's fields.

Decoding creates dataclasses from plain lists without checking the values. Without this check, a
file or message that Penstock did not write would fail later, where a value is first used.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

Check = Callable[[Any], None]


class _WrongError(Exception):
    """Raised for a value of the wrong type.

    Each enclosing check adds its field or index to `place`, for example `.handles[0].uid`.
    """

    def __init__(self, value: object, expected: str) -> None:
        super().__init__()
        self.value, self.expected = value, expected
        self.place = ""


def require_type(value: Any, hint: Any) -> None:
    """Check a value against a type.

    Arguments:
        value: the decoded value.
        hint: the expected type: a dataclass, or a type that fields of dataclasses have.

    Raises:
        ValueError: if the value has another type. The message names the field and the value.
    """
    try:
        _check(hint)(value)
    except _WrongError as error:
        shown = repr(error.value)[:60]
        place = error.place.lstrip(".")
        raise ValueError(f"{place} is {shown}, which is no {error.expected}") from None


@cache
def _check(hint: Any) -> Check:
    """Return a function that checks values of a type. Each type's function is cached."""
    if hint is Any or hint is object or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return _anything  # decoding has already refused a value that is not a member
    if isinstance(hint, typing.NewType):
        return _check(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [_check(argument) for argument in arguments if argument is not types.NoneType]
        check = inner[0] if len(inner) == 1 else _any_of(inner, str(hint))
        return _optional(check) if types.NoneType in arguments else check
    if origin is list or (origin is tuple and arguments[-1] is ...):
        return _sequence(origin, _check(arguments[0]))
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return _mapping(_check(arguments[0]), _check(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _fields(hint)
    return _exactly(hint)


def _anything(value: Any) -> None:
    del value


def _exactly(kind: type) -> Check:
    # Do not use isinstance, because True would pass as an int. An int is accepted for a float.
    kinds, name = (float, int) if kind is float else (kind,), kind.__name__

    def check(value: Any) -> None:
        if type(value) not in kinds:
            raise _WrongError(value, name)

    return check


def _optional(inner: Check) -> Check:
    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    return check


def _any_of(checks: list[Check], name: str) -> Check:
    def check(value: Any) -> None:
        for inner in checks:
            try:
                return inner(value)
            except _WrongError:
                continue
        raise _WrongError(value, name)

    return check


def _sequence(kind: Any, inner: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not kind:
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
