"""Define `AsyncOperation`: everything that an operator with asynchronous requests must know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.dataflow.async_io.request_cache import RequestCache
from penstock.dataflow.async_io.retry_strategies import AsyncRetryStrategy
from penstock.dataflow.functions import KeySelectorLike
from penstock.dataflow.type_variables import UserValue

#: Where the requests of an operator run.
RunIn = Literal["asyncio", "trio", "threads", "thread"]


@dataclass(frozen=True)
class Batching:
    """The settings of an operator that calls its function with many records at once.

    Arguments:
        size: the largest number of records of a call.
        wait_ms: the longest time that a record waits for others, in milliseconds.
        max_calls: the largest number of calls at the same time, in each subtask.
        flatten: whether the function returns a list of results for each record, and not one result.
        combine: returns the record to emit, given a record and its result; None to emit the result.
        cache: keeps results; None for no cache.
        records_per_second: the largest number of records in the calls of all subtasks; None for no
            limit.
        calls_per_second: the same for calls.
    """

    size: int
    wait_ms: int
    max_calls: int
    flatten: bool = False
    combine: Callable[[UserValue, UserValue], UserValue] | None = None
    cache: RequestCache | None = None
    records_per_second: float | None = None
    calls_per_second: float | None = None


@dataclass
class AsyncOperation:
    """The function and settings of an operator of `AsyncDataStream`.

    Arguments:
        function: an `AsyncFunction`, a `BatchedFunction` or a plain function.
        ordered: whether results leave the operator in the order of their records.
        timeout_ms: the longest time of a request with its repetitions, in milliseconds; 0 for no
            limit.
        capacity: the largest number of requests in flight in a subtask.
        strategy: decides when requests are repeated.
        run_in: where requests run.
        key_selector: returns the key of a record; None on a stream without keys.
        batching: the settings of calls with many records; None for one call for each record.
    """

    function: UserValue
    ordered: bool
    timeout_ms: int
    capacity: int
    strategy: AsyncRetryStrategy
    run_in: RunIn
    key_selector: KeySelectorLike | None = None
    batching: Batching | None = None
