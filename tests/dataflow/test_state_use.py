"""A function that reads a value state and never updates it is named in a warning."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

import pytest

from penstock import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueState,
    ValueStateDescriptor,
)


class Reads(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: int, ctx: Any) -> Any:
        seen = self.seen.value() or []
        seen.append(value)
        yield len(seen)


class UpdatesInTimer(Reads):
    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        self.seen.update([timestamp])


def helper(state: ValueState[Any], value: int) -> None:
    for new in [[*(state.value() or []), value]]:
        state.update(new)


class UpdatesInHelper(Reads):
    def process_element(self, value: int, ctx: Any) -> Any:
        helper(self.seen, value)
        yield value


class Wrapper:
    def __init__(self, state: ValueState[Any]) -> None:
        self.state = state

    def store(self, value: int) -> int | None:
        before: int | None = self.state.value()
        self.state.update(value)
        return before


class UpdatesInClass(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = Wrapper(runtime_context.get_state(ValueStateDescriptor("seen")))

    def process_element(self, value: int, ctx: Any) -> Any:
        yield self.seen.store(value)


storing: Any = ModuleType("storing")
storing.keep = helper


class UpdatesInModule(Reads):
    def process_element(self, value: int, ctx: Any) -> Any:
        storing.keep(self.seen, value)
        yield value


class WithoutState(KeyedProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Any:
        yield value


@pytest.mark.parametrize(
    ("function", "warned"),
    [
        (Reads(), True),
        (UpdatesInTimer(), False),
        (UpdatesInHelper(), False),
        (UpdatesInClass(), False),
        (UpdatesInModule(), False),
        (WithoutState(), False),
    ],
)
def test_a_value_state_that_nothing_updates_is_reported_when_the_program_is_built(
    function: KeyedProcessFunction, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with caplog.at_level(logging.WARNING, "penstock"):
        env.from_collection([1]).key_by(str).process(function)
    assert len(caplog.messages) == warned
    assert all(
        "Reads reads a value state, and no call of update()" in one for one in caplog.messages
    )
