"""Define `AsyncDataStream`, which sends a request for each record of a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import get_args

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.async_io.async_function import AsyncFunction, check_async_function
from penstock.dataflow.async_io.async_operation import AsyncOperation, RunIn
from penstock.dataflow.async_io.retry_strategies import AsyncRetryStrategy
from penstock.dataflow.errors import GraphError
from penstock.dataflow.streams.building import add_async_wait
from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.type_variables import R, T
from penstock.dataflow.types import check_type_info

#: A function of `AsyncDataStream`.
_Function = AsyncFunction[T, R] | Callable[[T], Awaitable[Iterable[R]]] | Callable[[T], Iterable[R]]


class AsyncDataStream:
    """Adds operators that send a request for each record. (PyFlink: `AsyncDataStream`.)

    Many requests are in flight at the same time. Those in flight at a snapshot are part of it, and
    are repeated after a restore.

    All methods take these arguments:

    * `stream`: the stream of the records.
    * `async_function`: an `AsyncFunction`, or an `async def` function of a record. It returns a
      list of the records to emit.
    * `timeout`: the longest time of a request with its repetitions, in milliseconds or as a `Time`
      or `timedelta`. 0 is no limit. After it, `AsyncFunction.timeout` is called.
    * `capacity`: the largest number of requests in flight in each subtask. Then the operator takes
      no more records.
    * `output_type`: the declared type of the results, such as `Types.STRING()`; results of another
      type are refused.
    * `run_in`: where the function runs. "asyncio" is an event loop in a thread of the worker;
      "trio" is the worker's own event loop; "threads" calls a plain function that blocks.

    All methods raise a `GraphError` if an argument is wrong, for example if the function is no
    async function.

    Examples:
        >>> async def double(value):
        ...     return [2 * value]  # or await a request
        >>> numbers = env.from_collection([1, 2])
        >>> list(AsyncDataStream.ordered_wait(numbers, double, 5_000).execute_and_collect())
        [2, 4]
    """

    @staticmethod
    def ordered_wait(
        stream: DataStream[T],
        async_function: _Function[T, R],
        timeout: DurationLike,
        capacity: int = 100,
        output_type: object = None,
        *,
        run_in: RunIn = "asyncio",
    ) -> DataStream[R]:
        """Add an operator whose results are in the order of the records."""
        request = (async_function, timeout, AsyncRetryStrategy.no_restart(), capacity)
        return _add("ordered_wait", True, stream, *request, output_type, run_in)

    @staticmethod
    def unordered_wait(
        stream: DataStream[T],
        async_function: _Function[T, R],
        timeout: DurationLike,
        capacity: int = 100,
        output_type: object = None,
        *,
        run_in: RunIn = "asyncio",
    ) -> DataStream[R]:
        """Add an operator that emits each result as soon as its request has ended.

        No result overtakes a watermark, or is overtaken by one.
        """
        request = (async_function, timeout, AsyncRetryStrategy.no_restart(), capacity)
        return _add("unordered_wait", False, stream, *request, output_type, run_in)

    @staticmethod
    def ordered_wait_with_retry(
        stream: DataStream[T],
        async_function: _Function[T, R],
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: object = None,
        *,
        run_in: RunIn = "asyncio",
    ) -> DataStream[R]:
        """Add the operator of `ordered_wait`, which repeats requests as a strategy decides."""
        request = (async_function, timeout, async_retry_strategy, capacity)
        return _add("ordered_wait_with_retry", True, stream, *request, output_type, run_in)

    @staticmethod
    def unordered_wait_with_retry(
        stream: DataStream[T],
        async_function: _Function[T, R],
        timeout: DurationLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: object = None,
        *,
        run_in: RunIn = "asyncio",
    ) -> DataStream[R]:
        """Add the operator of `unordered_wait`, which repeats requests as a strategy decides."""
        request = (async_function, timeout, async_retry_strategy, capacity)
        return _add("unordered_wait_with_retry", False, stream, *request, output_type, run_in)


def _add(
    method: str,
    ordered: bool,
    stream: DataStream[T],
    function: _Function[T, R],
    timeout: DurationLike,
    strategy: AsyncRetryStrategy,
    capacity: int,
    output_type: object,
    run_in: RunIn,
) -> DataStream[R]:
    check_type_info("output_type", output_type)
    if not isinstance(strategy, AsyncRetryStrategy):
        raise GraphError(
            f"{method} takes an AsyncRetryStrategy, such as AsyncRetryStrategy.fixed_delay(...), "
            f"not {strategy!r}"
        )
    if not isinstance(stream, DataStream):
        raise GraphError(f"{method} takes a stream first, and got {stream!r}")
    if run_in not in get_args(RunIn):
        raise GraphError(
            f"run_in is one of {', '.join(map(repr, get_args(RunIn)))}, and got {run_in!r}"
        )
    operation = AsyncOperation(
        check_async_function(method, function, run_in),
        ordered,
        milliseconds_of("timeout", timeout),
        whole_number("capacity", capacity, 1),
        strategy,
        run_in,
    )
    return stream._emitting(add_async_wait(stream._input, operation), output_type)
