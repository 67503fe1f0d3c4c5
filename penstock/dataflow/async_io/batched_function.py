"""Define the functions of `AsyncDataStream.batched`, and check those that a program passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from typing import Generic

from penstock.dataflow.arguments.callables import check_argument_count, is_async, name_of
from penstock.dataflow.async_io.async_function import AsyncFunction, is_generator
from penstock.dataflow.async_io.async_operation import RunIn
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions.function import Function, check_methods
from penstock.dataflow.type_variables import R, T, UserValue


class BatchedFunction(Function, ABC, Generic[T, R]):
    """Handles many records in one call, for `AsyncDataStream.batched`.

    `open` and `close` run where the calls run. They may be `async def`, too, if that is an asyncio
    loop.

    Examples:
        >>> class Embed(BatchedFunction):
        ...     def open(self, runtime_context):
        ...         self.model = len  # or load a model
        ...     def invoke_batch(self, values):
        ...         return [(text, self.model(text)) for text in values]
        >>> texts = env.from_collection(["a", "bc"])
        >>> list(AsyncDataStream.batched(texts, Embed(), 5_000).execute_and_collect())
        [('a', 1), ('bc', 2)]
    """

    _may_be_async = frozenset({"open", "invoke_batch", "close"})

    @abstractmethod
    def invoke_batch(self, values: list[T]) -> Iterable[R] | Awaitable[Iterable[R]]:
        """Return a result for each of the records, in their order. It may be `async def`.

        A result that is an exception is the error of its record. A call may be repeated with the
        same or other records after a restart.
        """

    def timeout(self, values: list[T]) -> Iterable[R]:
        """Return a result for each of the records whose call has taken too long.

        By default, the job fails with a `TimeoutError`.
        """
        raise TimeoutError(f"the call with {len(values)} records has timed out")


def check_batched_function(function: object, run_in: RunIn | None) -> tuple[UserValue, RunIn]:
    """Check the function that a program passes to `batched`, and return it and where it runs.

    Arguments:
        function: a `BatchedFunction` or a plain function of a list of records.
        run_in: where calls run; None for "asyncio" if the function is async, else "threads".

    Raises:
        GraphError: if the function cannot run there.
    """
    called = function.invoke_batch if isinstance(function, BatchedFunction) else function
    if isinstance(called, AsyncFunction):
        raise GraphError(
            f"batched calls its function with a list of records, and {type(called).__name__} is an "
            f"AsyncFunction, which gets one: derive it from BatchedFunction"
        )
    if isinstance(called, type | Function) or not callable(called):
        forgotten = isinstance(called, type) and issubclass(called, Function)
        hint = "an instance, not the class" if forgotten else "of a list of records"
        raise GraphError(
            f"batched takes a function or a BatchedFunction ({hint}), and got {function!r}"
        )
    check_argument_count("batched", called, 1, "(values)")
    if is_generator(called):
        raise GraphError(
            f"batched got {name_of(called)}, which yields: return a list with a result for each "
            f"record"
        )
    if run_in is None:
        run_in = "asyncio" if is_async(called) else "threads"
    in_threads = run_in in ("threads", "thread")
    if in_threads and is_async(called):
        raise GraphError(
            f'batched got the async function {name_of(called)}: functions that run in "{run_in}" '
            f'are plain ones; leave out run_in="{run_in}"'
        )
    if not in_threads and not is_async(called):
        raise GraphError(
            f'batched got run_in="{run_in}", where functions are async, and {name_of(called)} is '
            f"none: define it with `async def`, or leave out run_in"
        )
    if isinstance(function, BatchedFunction):
        check_methods(function)
        for name in () if run_in == "asyncio" else ("open", "close"):
            if is_async(getattr(function, name)):
                raise GraphError(
                    f"batched: {type(function).__name__}.{name} is an async function, and must be "
                    f"a plain one with run_in={run_in!r}"
                )
    return function, run_in
