"""Programs with asynchronous requests, for `test_types.py`."""

from typing import reveal_type

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    BatchedFunction,
    RequestCache,
    StreamExecutionEnvironment,
)

env = StreamExecutionEnvironment.get_execution_environment()
numbers = env.from_collection([1, 2, 3])


class Name(AsyncFunction[int, str]):
    async def async_invoke(self, value: int) -> list[str]:
        return [value.name]  # E: "int" has no attribute "name"


async def ask(value: int) -> list[tuple[int, str]]:
    return [(value, "")]


def block(value: int) -> list[bool]:
    return [value > 0]


async def of_text(value: str) -> list[str]:
    return [value]


reveal_type(AsyncDataStream.ordered_wait(numbers, Name(), 1000))  # R: DataStream[str]
asked = AsyncDataStream.unordered_wait(numbers, ask, 1000)
asked.map(lambda pair: pair.name)  # E: "tuple[int, str]" has no attribute "name"
reveal_type(asked)  # R: DataStream[tuple[int, str]]
blocked = AsyncDataStream.unordered_wait(numbers, block, 1000, run_in="threads")
reveal_type(blocked)  # R: DataStream[bool]
AsyncDataStream.ordered_wait(numbers, of_text, 1000)  # E: has incompatible type


class Embed(BatchedFunction[str, list[float]]):
    def invoke_batch(self, values: list[str]) -> list[list[float]]:
        return [[value.size] for value in values]  # E: "str" has no attribute "size"


async def names(values: list[int]) -> list[str]:
    return [str(value) for value in values]


def parts(values: list[int]) -> list[list[bool]]:
    return [[value > 0] for value in values]


def both(value: int, name: str) -> tuple[int, str]:
    return value, name


texts = env.from_collection(["a"])
reveal_type(AsyncDataStream.batched(texts, Embed(), 0))  # R: DataStream[list[float]]
reveal_type(AsyncDataStream.batched(numbers, names, 0))  # R: DataStream[str]
reveal_type(AsyncDataStream.batched(numbers, parts, 0))  # R: DataStream[list[bool]]
reveal_type(AsyncDataStream.batched(numbers, parts, 0, flatten=True))  # R: DataStream[bool]
joined = AsyncDataStream.batched(numbers, names, 0, combine=both, cache=RequestCache(ttl=1000))
reveal_type(joined)  # R: DataStream[tuple[int, str]]
AsyncDataStream.batched(texts, names, 0)  # E: has incompatible type
AsyncDataStream.batched(numbers, parts, 0, combine=both)  # E: Cannot infer value of type
