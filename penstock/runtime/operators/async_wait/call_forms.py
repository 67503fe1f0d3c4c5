"""Convert between records and the arguments and results of the user's function.

The function of `ordered_wait` and `unordered_wait` gets one record, and returns a list of the
records to emit. That of `batched` gets a list of records, and returns a list with a result for each
of them. To the operator, both are calls for a list of requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from penstock.dataflow.async_io import AsyncFunction, AsyncOperation, BatchedFunction
from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import method_of
from penstock.dataflow.types import Row

#: Iterable values that a function more likely returned as one record than as a list of records.
_RECORDS = (str, bytes, Mapping, Row)


class CallForm(ABC):
    """Prepares calls of a function, and reads what it has returned.

    Arguments:
        function: the user's function.
    """

    #: The method that the user's function object defines.
    method = ""
    #: The method that returns results after a timeout, as the error message names it.
    timeout_hint = ""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.invoke: Callable[[Any], Any] = method_of(function, self.method)
        self._name = self.method if self._is_object else "the function"

    @property
    @abstractmethod
    def _is_object(self) -> bool:
        """Whether the user's function is an object with methods."""

    @abstractmethod
    def argument(self, records: list[Any]) -> Any:
        """Return the argument of the function for the records of a call."""

    @abstractmethod
    def results_of(self, returned: Any, count: int) -> list[list[Any] | BaseException]:
        """Return the results of each record of a call, or the error of the record.

        Arguments:
            returned: the value that the function has returned.
            count: the number of records of the call.

        Raises:
            JobError: if the function has returned something else.
        """

    @abstractmethod
    def timed_out(self, records: list[Any]) -> list[list[Any] | BaseException]:
        """Return the results after a timeout, which `timeout` of the function defines."""

    @property
    @abstractmethod
    def defines_timeout(self) -> bool:
        """Whether the function defines the results after a timeout."""


class SingleForm(CallForm):
    """Calls a function with one record."""

    method = "async_invoke"
    timeout_hint = "timeout(value) of an AsyncFunction"

    @property
    def _is_object(self) -> bool:
        return isinstance(self._function, AsyncFunction)

    @property
    def defines_timeout(self) -> bool:
        """Whether the function defines the results after a timeout."""
        own = getattr(type(self._function), "timeout", None)
        return self._is_object and own is not AsyncFunction.timeout

    def argument(self, records: list[Any]) -> Any:
        """Return the only record."""
        return records[0]

    def results_of(self, returned: Any, count: int) -> list[list[Any] | BaseException]:
        """Return the list of records to emit, in a list."""
        del count
        return [_records_of(self._name, returned)]

    def timed_out(self, records: list[Any]) -> list[list[Any] | BaseException]:
        """Return the list of records to emit, in a list."""
        return [_records_of("timeout", self._function.timeout(value)) for value in records]


class BatchedForm(CallForm):
    """Calls a function with a list of records.

    Arguments:
        function: the user's function.
        flatten: whether each result is a list of records to emit.
    """

    method = "invoke_batch"
    timeout_hint = "timeout(values) of a BatchedFunction"

    def __init__(self, function: Any, flatten: bool) -> None:
        super().__init__(function)
        self._flatten = flatten

    @property
    def _is_object(self) -> bool:
        return isinstance(self._function, BatchedFunction)

    @property
    def defines_timeout(self) -> bool:
        """Whether the function defines the results after a timeout."""
        own = getattr(type(self._function), "timeout", None)
        return self._is_object and own is not BatchedFunction.timeout

    def argument(self, records: list[Any]) -> Any:
        """Return the list of records."""
        return records

    def results_of(self, returned: Any, count: int) -> list[list[Any] | BaseException]:
        """Return a list of records to emit, or an error, for each record."""
        return self._each_of(self._name, returned, count)

    def timed_out(self, records: list[Any]) -> list[list[Any] | BaseException]:
        """Return a list of records to emit, or an error, for each record."""
        return self._each_of("timeout", self._function.timeout(records), len(records))

    def _each_of(self, name: str, returned: Any, count: int) -> list[list[Any] | BaseException]:
        results = _listed(name, returned, "return a list with a result for each record")
        if len(results) != count:
            raise JobError(
                f"{name} got {count} records and returned {len(results)} results: return one "
                f"result for each record, in the same order"
            )
        return [self._one_of(name, result) for result in results]

    def _one_of(self, name: str, result: Any) -> list[Any] | BaseException:
        if isinstance(result, BaseException):
            return result
        return _records_of(f"a result of {name}", result, "is") if self._flatten else [result]


def call_form(operation: AsyncOperation) -> CallForm:
    """Return the form of the calls of an operator."""
    batching = operation.batching
    if batching is None:
        return SingleForm(operation.function)
    return BatchedForm(operation.function, batching.flatten)


def _records_of(name: str, returned: Any, verb: str = "returned") -> list[Any]:
    advice = "return a list of the records to emit, for example [result]"
    return _listed(name, returned, advice, verb)


def _listed(name: str, returned: Any, advice: str, verb: str = "returned") -> list[Any]:
    # One record that the user forgot to put into a list may be iterable, too.
    is_record = isinstance(returned, _RECORDS) or hasattr(returned, "_fields")
    if isinstance(returned, Iterable) and not is_record:
        return list(returned)
    kind = type(returned).__name__
    what = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if returned is None:
        what, advice = "None", "it lacks a `return`, or must return [] to emit nothing"
    elif isinstance(returned, Coroutine):
        returned.close()  # Python would also warn that it was never awaited.
        advice = "define the function with `async def`"
    raise JobError(f"{name} {verb} {what}: {advice}")
