"""Data that a function keeps outside of its state is noticed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    CheckpointedFunction,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)

NAN = float("nan")
SEEN: dict[int, int] = {}


class Attribute(MapFunction):
    def __init__(self) -> None:
        self.count = 0
        self.lines = ["fixed"]

    def open(self, runtime_context: Any) -> None:
        self.count += 100

    def map(self, value: int) -> int:
        self.count += 1
        return self.count


class Late(MapFunction):
    def map(self, value: int) -> int:
        self.last = value
        return value


class Checkpointed(MapFunction, CheckpointedFunction):
    def __init__(self) -> None:
        self.buffer: list[int] = []

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: int) -> int:
        self.buffer.append(value)
        return value


class InState(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.connection = object()
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: int, ctx: Any) -> Any:
        self.connection = object()
        self.seen.update(value)
        return [value]


def count_globally(value: int) -> int:
    SEEN[value] = SEEN.get(value, 0) + 1
    return SEEN[value]


def count_outside() -> Callable[[int], int]:
    seen: list[int] = []

    def count(value: int) -> int:
        seen.append(value)
        return len(seen)

    return count


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda s: s.map(Attribute()), "its attribute 'count' while"),
        (lambda s: s.map(Late()), "its attribute 'last' while"),
        (lambda s: s.map(count_globally), "the global variable 'SEEN' while"),
        (lambda s: s.map(count_outside()), "the variable 'seen' while"),
        (lambda s: s.map(Checkpointed()), None),
        (lambda s: s.map(lambda value: (value, NAN)), None),
        (lambda s: s.map(lambda value: value + len(SEEN)), None),
        (lambda s: s.key_by(str).process(InState()), None),
    ],
)
def test_changed_variables_of_a_function_are_named_once(
    build: Callable[[DataStream[int]], DataStream[Any]],
    named: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    SEEN.clear()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process().set_parallelism(2).enable_checkpointing(1)
    with caplog.at_level(logging.WARNING, "penstock"):
        list(build(env.from_collection(range(100))).execute_and_collect())
    said = [message for message in caplog.messages if "while it processed records" in message]
    assert len(said) == (named is not None)
    assert all(f"has changed {named}" in message for message in said)
