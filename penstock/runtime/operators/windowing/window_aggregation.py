"""Read the functions that combine records from a `WindowOperation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import method_of
from penstock.dataflow.windows import AggregateFunction
from penstock.runtime.codegen import with_swapped_arguments


@dataclass(frozen=True)
class Aggregation:
    """Combines records of a window to an accumulator, and turns an accumulator into a result.

    An accumulator or a value that is None is none: the next record is the first one again, and the
    window has no result, as in PyFlink.

    Arguments:
        first: returns the accumulator for the first record.
        add: returns an accumulator, given the accumulator and one more record.
        merge: returns an accumulator, given two accumulators, of which the first is the earlier;
            None if the aggregate function does not merge.
        result: returns the result of an accumulator, or None.
        call: the method of the program, for the loops: `(value, record)` of a reduce function, or
            `(record, accumulator)` of an aggregate function. It never gets None.
        aggregate: the aggregate function; None for a reduce function.
    """

    first: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Any
    result: Callable[[Any], Any]
    call: Callable[[Any, Any], Any]
    aggregate: AggregateFunction | None = None

    @classmethod
    def of(cls, function: Any) -> Aggregation:
        """Return the aggregation of an aggregate function or a reduce function."""
        if not isinstance(function, AggregateFunction):
            combine = method_of(function, "reduce")
            own = _unless_none(combine)
            return cls(_same, own, own, _same, combine)
        create, add, result = function.create_accumulator, function.add, function.get_result
        return cls(
            lambda record: add(record, create()),
            lambda accumulator, record: add(
                record, create() if accumulator is None else accumulator
            ),
            None if function.merge is None else _unless_none(_merge_of(function)),
            lambda accumulator: None if accumulator is None else result(accumulator),
            add,
            function,
        )

    def loop_of(self, loop: Callable[..., None]) -> Callable[..., None]:
        """Return the variant of a loop that calls `call` with its arguments in the right order.

        Arguments:
            loop: a loop that calls `add(record, accumulator)`.
        """
        return with_swapped_arguments(loop, "add") if self.aggregate is None else loop

    def results_of(self, records: Sequence[Any]) -> list[Any]:
        """Return the result of records, in a list.

        Without records, a reduce function has no result. None is no result, either.
        """
        if records:
            result = self.result(reduce(self.add, records[1:], self.first(records[0])))
        else:
            aggregate = self.aggregate
            result = None if aggregate is None else self.result(aggregate.create_accumulator())
        return [] if result is None else [result]


def _merge_of(function: AggregateFunction) -> Callable[[Any, Any], Any]:
    """Return the method `merge`, which must return an accumulator.

    Programs for Flink often have a `merge` without a body, since Flink calls it for sessions only.
    Without this check, the records of both accumulators would be lost.
    """
    merge: Any = function.merge

    def merged(first: Any, second: Any) -> Any:
        accumulator = merge(first, second)
        if accumulator is None:
            raise JobError(
                f"{type(function).__name__}.merge returned None for two accumulators: return an "
                f"accumulator with the records of both"
            )
        return accumulator

    return merged


def _unless_none(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that combines two values, or returns the one that is not None."""

    def combined(first: Any, second: Any) -> Any:
        if first is None or second is None:
            return second if first is None else first
        return combine(first, second)

    return combined


def _same(value: Any) -> Any:
    return value
