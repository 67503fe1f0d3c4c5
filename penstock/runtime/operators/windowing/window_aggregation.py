"""Read the functions that combine records from a `WindowOperation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.dataflow.windows import AggregateFunction

__all__ = ["Aggregation"]


@dataclass(frozen=True)
class Aggregation:
    """How records of a window are combined to an accumulator, and an accumulator to a result.

    Arguments:
        first: returns the accumulator for the first record.
        add: returns an accumulator, given the accumulator and one more record.
        merge: returns an accumulator, given two accumulators, of which the first is the earlier;
            None if the aggregate function does not merge.
        result: returns the result of an accumulator.
        aggregate: the aggregate function; None for a reduce function.
    """

    first: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Any
    result: Callable[[Any], Any]
    aggregate: AggregateFunction | None = None

    @classmethod
    def of(cls, function: Any) -> Aggregation:
        """Return the aggregation of an aggregate function or a reduce function."""
        if not isinstance(function, AggregateFunction):
            combine = method_of(function, "reduce")
            return cls(_same, combine, combine, _same)
        create, add = function.create_accumulator, function.add
        return cls(
            lambda record: add(record, create()),
            lambda accumulator, record: add(record, accumulator),
            function.merge,
            function.get_result,
            function,
        )

    def results_of(self, records: Sequence[Any]) -> list[Any]:
        """Return the result of records, in a list.

        Without records, a reduce function has no result.
        """
        if records:
            return [self.result(reduce(self.add, records[1:], self.first(records[0])))]
        aggregate = self.aggregate
        return [] if aggregate is None else [self.result(aggregate.create_accumulator())]


def _same(value: Any) -> Any:
    return value
