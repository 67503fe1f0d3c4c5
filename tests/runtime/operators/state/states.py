"""Contexts with keyed state for tests, over real backends."""

from dataclasses import dataclass
from typing import Any

from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.state import KeyedBackend
from tests.snapshot.state.backends import GROUPS

CODEC = Codec(TypeRegistry())


@dataclass
class Clock:
    """The time of the clock, in milliseconds since the epoch."""

    now: int = 1_000_000

    def __call__(self) -> int:
        return self.now


def context_of(backend: KeyedBackend | None, clock: Clock | None = None) -> OperatorContext:
    return OperatorContext("Sum", "uid", 0, 1, GROUPS, 0, CODEC, backend, now_ms=clock or Clock())


def with_key(context: OperatorContext, key: Any) -> OperatorContext:
    context.key = key
    return context
