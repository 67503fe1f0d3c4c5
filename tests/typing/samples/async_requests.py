"""Programs with asynchronous requests, for `test_types.py`."""

from typing import reveal_type

from penstock import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment

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
