"""Define `AsyncDataStream`: operators that have many requests to other services in flight.

`async_function.py` and `batched_function.py` have the functions, `retry_strategies.py` decides when
a request is repeated, and `request_cache.py` keeps results. `async_operation.py` has the
specification of the operator. (Flink: asynchronous I/O.)
"""

from __future__ import annotations

from penstock.dataflow.async_io import async_retry_predicates
from penstock.dataflow.async_io.async_function import AsyncFunction
from penstock.dataflow.async_io.async_operation import AsyncOperation, Batching, RunIn
from penstock.dataflow.async_io.batched_function import BatchedFunction
from penstock.dataflow.async_io.request_cache import RequestCache
from penstock.dataflow.async_io.retry_strategies import AsyncRetryPredicate, AsyncRetryStrategy

__all__ = [
    "AsyncFunction",
    "AsyncOperation",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BatchedFunction",
    "Batching",
    "RequestCache",
    "RunIn",
    "async_retry_predicates",
]
