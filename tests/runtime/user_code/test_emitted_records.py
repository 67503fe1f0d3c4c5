"""Values that are no records are refused or reported where they are emitted first."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock import (
    AggregateFunction,
    CountTrigger,
    CountTumblingWindowAssigner,
    DataStream,
    GraphError,
    JobError,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
)


def stream() -> DataStream[int]:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process()
    return env.from_collection([1, 2, 3])


def failure(result: DataStream[Any]) -> str:
    with pytest.raises(JobError) as raised:
        list(result.execute_and_collect())
    return str(raised.value)


async def look_up(value: int) -> int:
    return value


class AsyncMap(MapFunction):
    async def map(self, value: int) -> int:
        return value


class AsyncProcess(KeyedProcessFunction):
    async def process_element(self, value: int, ctx: Any) -> AsyncIterator[int]:  # type: ignore
        yield value


class OneArgument(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, accumulator: int) -> int:  # type: ignore[override]
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


class AsyncTrigger(CountTrigger):
    async def on_element(self, *arguments: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.map(look_up), "was given an async function"),
        (lambda s: s.map(AsyncMap()), "AsyncMap.map is an async method"),
        (lambda s: s.key_by(str).process(AsyncProcess()), "AsyncProcess.process_element is an asy"),
        (lambda s: s.key_by(look_up), "key_by was given an async function"),
        (
            lambda s: s.key_by(str).window(CountTumblingWindowAssigner.of(2)).reduce(look_up_both),
            "reduce was given an async function",
        ),
        (
            lambda s: (
                s.key_by(str)
                .window(CountTumblingWindowAssigner.of(2))
                .trigger(AsyncTrigger(2))
                .reduce(max)
            ),
            "AsyncTrigger.on_element is an async method",
        ),
        (
            lambda s: s.window_all(CountTumblingWindowAssigner.of(2)).aggregate(OneArgument()),
            r"AggregateFunction.add calls its function as \(value, accumulator\), and "
            r"OneArgument.add takes \(accumulator",
        ),
        (lambda s: s.map(generates), "map was given generates, which yields: .* flat_map"),
    ],
)
def test_functions_that_the_engine_cannot_call_are_refused_when_the_program_is_built(
    build: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        build(stream())


async def look_up_both(first: int, second: int) -> int:
    return first + second


def generates(value: int) -> Any:
    yield value


def test_a_coroutine_as_a_record_fails_the_job() -> None:
    message = failure(stream().map(lambda value: look_up(value)))
    assert "operator 'Map' emitted a coroutine (look_up) instead of a record" in message


def test_a_filter_that_gets_a_coroutine_fails_instead_of_keeping_all_records() -> None:
    message = failure(stream().filter(lambda value: look_up(value)))
    assert "filter got a coroutine, because the function calls an async function" in message
    kept = stream().filter(lambda value: value > 1)
    assert list(kept.execute_and_collect()) == [2, 3]


def test_an_error_for_the_record_none_names_the_operator_that_emitted_it() -> None:
    def clean(value: int) -> int | None:
        return value if value < 2 else None

    message = failure(stream().map(clean).map(lambda value: value + 1))
    assert re.search(r"the record is None, which 'Map' \(.*clean\) emitted", message)
    message = failure(stream().map(clean).key_by(lambda value: value + 1).map(str))
    assert "key of Map" in message
    assert "the record is None, which 'Map' emitted" in message


def test_a_flat_map_that_returns_none_is_told_to_return_an_empty_list() -> None:
    message = failure(stream().flat_map(lambda value: [value] if value < 2 else None))
    assert "flat_map returned None: return an empty list where there is nothing to emit" in message


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value


def test_a_value_that_no_other_task_can_receive_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        values = stream().map(Plain).map(lambda plain: plain.value)
        assert list(values.execute_and_collect()) == [1, 2, 3]
    (warning,) = [one for one in caplog.messages if "no other task" in one]
    assert "operator 'Map' emits values that no other task can receive" in warning
    assert "make it a dataclass" in warning


def test_such_a_value_is_refused_where_it_leaves_its_chain_at_any_parallelism() -> None:
    message = failure(stream().map(Plain).key_by(lambda plain: plain.value).map(str))
    assert (
        "a value of type " in message and "Plain can't be carried: make it a dataclass" in message
    )
    assert "operator: Map" in message and "Plain object" in message
