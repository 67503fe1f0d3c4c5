"""Which classes of a program are record classes: those that it registers or mentions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment, UnsupportedTypeError
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry


@dataclass
class Settings:
    offset: int = 1


class Production(Settings):
    """A plain subclass, whose state its fields do not tell."""


class Slots:
    __slots__ = ("hidden",)


@dataclass
class Hiding(Slots):
    a: int = 1


def limits(n: int) -> Any:
    @dataclass(frozen=True)
    class Limits:
        n: int

    return Limits(n)


SETTINGS = Settings()
PRODUCTION = Production()
HIDING = Hiding()
LOW, HIGH = limits(1), limits(2)


def found(function: Callable[..., Any], *registered: type) -> list[type]:
    """The record classes of a program with a function."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).map(function).print()
    classes = record_classes(env._graph, registered)
    TypeRegistry(classes)  # which is what a job begins with
    return classes


def refused(value: Any, *classes: type) -> str:
    with pytest.raises(UnsupportedTypeError) as caught:
        Codec(TypeRegistry(classes)).encode_value(value)
    return str(caught.value)


def test_a_class_that_a_function_mentions_is_found() -> None:
    assert found(lambda n: n + SETTINGS.offset) == [Settings]


def test_a_mentioned_class_that_cannot_be_registered_does_not_stop_the_job() -> None:
    assert found(lambda n: (n + SETTINGS.offset, PRODUCTION.offset, HIDING.a)) == [Settings]
    assert "make it a dataclass" in refused(PRODUCTION)
    assert "slots that are not fields: ['hidden']" in refused(HIDING)
    with pytest.raises(UnsupportedTypeError, match="slots that are not fields"):
        found(lambda n: n, Hiding)


def test_of_two_mentioned_classes_of_one_name_none_is_found() -> None:
    assert found(lambda n: LOW.n < n < HIGH.n) == []
    assert "register it with env.register_type(limits.<locals>.Limits)" in refused(LOW)
    # A registered one is the only one.
    assert found(lambda n: LOW.n < n < HIGH.n, type(HIGH)) == [type(HIGH)]
    assert "another class of that name is registered" in refused(LOW, type(HIGH))


def test_a_value_of_a_plain_class_is_refused_with_what_to_make_of_it() -> None:
    class Plain:
        pass

    message = refused(Plain())
    assert message.endswith(
        "make it a dataclass, a NamedTuple or an Enum (all types: `penstock docs types`)"
    )
