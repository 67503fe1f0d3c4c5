"""Define `AsyncDataStream`, which sends requests for the records of a stream."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, get_args, overload

from penstock.dataflow.arguments.callables import check_argument_count
from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of, whole_number
from penstock.dataflow.async_io.async_function import AsyncFunction, check_async_function
from penstock.dataflow.async_io.async_operation import AsyncOperation, Batching, RunIn
from penstock.dataflow.async_io.batched_function import BatchedFunction, check_batched_function
from penstock.dataflow.async_io.request_cache import RequestCache
from penstock.dataflow.async_io.retry_strategies import AsyncRetryStrategy
from penstock.dataflow.errors import GraphError
from penstock.dataflow.streams.building import add_async_wait
from penstock.dataflow.streams.data_stream import DataStream
from penstock.dataflow.type_variables import R, S, T, UserValue
from penstock.dataflow.types import check_type_info

#: A function of `AsyncDataStream`.
_Function = AsyncFunction[T, R] | Callable[[T], Awaitable[Iterable[R]]] | Callable[[T], Iterable[R]]
#: A function of `AsyncDataStream.batched`.
_Batched = (
    BatchedFunction[T, R]
    | Callable[[list[T]], Awaitable[Iterable[R]]]
    | Callable[[list[T]], Iterable[R]]
)


class AsyncDataStream:
    """Adds operators that send requests for records. (PyFlink: `AsyncDataStream`.)

    Many requests are in flight at the same time. Those in flight at a snapshot are part of it, and
    are repeated after a restore. `batched` sends one request for many records, and the other
    methods one for each record.

    The other methods take these arguments:

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
      "trio" is the worker's own event loop; "threads" calls a plain function that blocks;
      "thread" does so in one thread of the worker, one call after the other.

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

    @overload
    @staticmethod
    def batched(
        stream: DataStream[T],
        function: _Batched[T, R],
        timeout: DurationLike,
        capacity: int | None = None,
        output_type: object = None,
        *,
        batch_size: int = 100,
        batch_wait: DurationLike = 10,
        max_calls: int = 4,
        ordered: bool = True,
        flatten: Literal[False] = False,
        combine: None = None,
        retry: AsyncRetryStrategy | None = None,
        cache: RequestCache | None = None,
        records_per_second: float | None = None,
        calls_per_second: float | None = None,
        run_in: RunIn | None = None,
    ) -> DataStream[R]: ...

    @overload
    @staticmethod
    def batched(
        stream: DataStream[T],
        function: _Batched[T, R],
        timeout: DurationLike,
        capacity: int | None = None,
        output_type: object = None,
        *,
        batch_size: int = 100,
        batch_wait: DurationLike = 10,
        max_calls: int = 4,
        ordered: bool = True,
        flatten: Literal[False] = False,
        combine: Callable[[T, R], S],
        retry: AsyncRetryStrategy | None = None,
        cache: RequestCache | None = None,
        records_per_second: float | None = None,
        calls_per_second: float | None = None,
        run_in: RunIn | None = None,
    ) -> DataStream[S]: ...

    @overload
    @staticmethod
    def batched(
        stream: DataStream[T],
        function: _Batched[T, Iterable[R]],
        timeout: DurationLike,
        capacity: int | None = None,
        output_type: object = None,
        *,
        batch_size: int = 100,
        batch_wait: DurationLike = 10,
        max_calls: int = 4,
        ordered: bool = True,
        flatten: Literal[True],
        combine: None = None,
        retry: AsyncRetryStrategy | None = None,
        cache: RequestCache | None = None,
        records_per_second: float | None = None,
        calls_per_second: float | None = None,
        run_in: RunIn | None = None,
    ) -> DataStream[R]: ...

    @overload
    @staticmethod
    def batched(
        stream: DataStream[T],
        function: _Batched[T, Iterable[R]],
        timeout: DurationLike,
        capacity: int | None = None,
        output_type: object = None,
        *,
        batch_size: int = 100,
        batch_wait: DurationLike = 10,
        max_calls: int = 4,
        ordered: bool = True,
        flatten: Literal[True],
        combine: Callable[[T, R], S],
        retry: AsyncRetryStrategy | None = None,
        cache: RequestCache | None = None,
        records_per_second: float | None = None,
        calls_per_second: float | None = None,
        run_in: RunIn | None = None,
    ) -> DataStream[S]: ...

    @staticmethod
    def batched(
        stream: DataStream[T],
        function: _Batched[T, UserValue],
        timeout: DurationLike,
        capacity: int | None = None,
        output_type: object = None,
        *,
        batch_size: int = 100,
        batch_wait: DurationLike = 10,
        max_calls: int = 4,
        ordered: bool = True,
        flatten: bool = False,
        combine: Callable[[T, UserValue], UserValue] | None = None,
        retry: AsyncRetryStrategy | None = None,
        cache: RequestCache | None = None,
        records_per_second: float | None = None,
        calls_per_second: float | None = None,
        run_in: RunIn | None = None,
    ) -> DataStream[UserValue]:
        """Add an operator that calls a function with many records at once.

        A call begins when there are `batch_size` records, or when one of them has waited for
        `batch_wait`. The records of a call may have any keys.

        Arguments:
            stream: the stream of the records.
            function: a `BatchedFunction`, or a function of a list of records, plain or `async def`.
                It returns a list with one result for each record, in the same order. A result that
                is an exception is the error of its record.
            timeout: the longest time of a call with its repetitions, in milliseconds or as a `Time`
                or `timedelta`. 0 is no limit. After it, `BatchedFunction.timeout` is called.
            capacity: the largest number of records in each subtask whose results are not emitted.
                None is `2 * batch_size * max_calls`.
            output_type: the declared type of the results.
            batch_size: the largest number of records of a call.
            batch_wait: the longest time that a record waits for others, in milliseconds. With 0, a
                call takes the records that are there, as soon as fewer than `max_calls` run.
            max_calls: the largest number of calls at the same time in each subtask.
            ordered: whether results leave in the order of their records. Otherwise they leave when
                their call has ended. No result overtakes a watermark, or is overtaken by one.
            flatten: whether the function returns a list of results for each record: a list of
                lists. It emits none, one or several records for each.
            combine: a function of a record and its result, which returns the record to emit. None
                emits the result itself.
            retry: decides when records are repeated whose call or result has failed. They are
                repeated together, and results of the same call are kept.
            cache: keeps results for records with equal keys.
            records_per_second: the largest number of records per second in calls. Each subtask gets
                an equal share of it.
            calls_per_second: the largest number of calls per second, also with equal shares.
            run_in: where the function runs. "asyncio" is an event loop in a thread of the worker;
                "trio" is the worker's own event loop; "threads" calls a plain function in threads;
                "thread" calls it in one thread of the worker, also `open` and `close`. None is
                "asyncio" for async functions and "threads" for plain ones.

        Raises:
            GraphError: if an argument is wrong.

        Examples:
            >>> def square(numbers):
            ...     return [number * number for number in numbers]  # or ask a model or a database
            >>> numbers = env.from_collection([1, 2, 3])
            >>> squares = AsyncDataStream.batched(numbers, square, 5_000, batch_size=2)
            >>> list(squares.execute_and_collect())
            [1, 4, 9]
        """
        check_type_info("output_type", output_type)
        _check_stream("batched", stream)
        batching = Batching(
            whole_number("batch_size", batch_size, 1),
            milliseconds_of("batch_wait", batch_wait),
            whole_number("max_calls", max_calls, 1),
            flatten,
            combine,
            cache,
            _rate("records_per_second", records_per_second),
            _rate("calls_per_second", calls_per_second),
        )
        if combine is not None:
            check_argument_count("combine", combine, 2, "(record, result)")
        if cache is not None and not isinstance(cache, RequestCache):
            raise GraphError(f"cache is a RequestCache, such as RequestCache(), not {cache!r}")
        if capacity is None:
            capacity = 2 * batch_size * max_calls
        if whole_number("capacity", capacity, 1) < batch_size:
            raise GraphError(
                f"capacity must be at least batch_size, so that a batch can be complete: it is "
                f"{capacity}, and batch_size is {batch_size}"
            )
        if run_in is not None:
            _check_run_in(run_in)
        checked, run_in = check_batched_function(function, run_in)
        strategy = AsyncRetryStrategy.no_restart() if retry is None else retry
        _check_strategy("batched", strategy)
        wait = milliseconds_of("timeout", timeout)
        operation = AsyncOperation(
            checked, ordered, wait, capacity, strategy, run_in, None, batching
        )
        return stream._emitting(add_async_wait(stream._input, operation), output_type)


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
    _check_strategy(method, strategy)
    _check_stream(method, stream)
    _check_run_in(run_in)
    operation = AsyncOperation(
        check_async_function(method, function, run_in),
        ordered,
        milliseconds_of("timeout", timeout),
        whole_number("capacity", capacity, 1),
        strategy,
        run_in,
    )
    return stream._emitting(add_async_wait(stream._input, operation), output_type)


def _check_strategy(method: str, strategy: object) -> None:
    if not isinstance(strategy, AsyncRetryStrategy):
        raise GraphError(
            f"{method} takes an AsyncRetryStrategy, such as AsyncRetryStrategy.fixed_delay(...), "
            f"not {strategy!r}"
        )


def _check_stream(method: str, stream: object) -> None:
    if not isinstance(stream, DataStream):
        raise GraphError(f"{method} takes a stream first, and got {stream!r}")


def _check_run_in(run_in: object) -> None:
    if run_in not in get_args(RunIn):
        raise GraphError(
            f"run_in is one of {', '.join(map(repr, get_args(RunIn)))}, and got {run_in!r}"
        )


def _rate(name: str, rate: float | None) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise GraphError(f"{name} is a number above 0, not {rate!r}")
    return float(rate)
