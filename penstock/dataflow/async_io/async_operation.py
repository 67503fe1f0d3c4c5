"""Define `AsyncOperation`: everything that an operator with asynchronous requests must know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.dataflow.async_io.retry_strategies import AsyncRetryStrategy
from penstock.dataflow.functions import KeySelectorLike
from penstock.dataflow.type_variables import UserValue

#: Where the requests of an operator run.
RunIn = Literal["asyncio", "trio", "threads"]


@dataclass
class AsyncOperation:
    """The function and settings of an operator of `AsyncDataStream`.

    Arguments:
        function: an `AsyncFunction` or a plain function.
        ordered: whether results leave the operator in the order of their records.
        timeout_ms: the longest time of a request with its repetitions, in milliseconds; 0 for no
            limit.
        capacity: the largest number of requests in flight in a subtask.
        strategy: decides when requests are repeated.
        run_in: where requests run.
        key_selector: returns the key of a record; None on a stream without keys.
    """

    function: UserValue
    ordered: bool
    timeout_ms: int
    capacity: int
    strategy: AsyncRetryStrategy
    run_in: RunIn
    key_selector: KeySelectorLike | None = None
