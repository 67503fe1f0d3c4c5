"""The aggregations of a keyed stream, which emit the updated result for each record."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from penstock.dataflow.functions import ReduceFunction, check_function
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.streams.aggregations import FieldAggregation, FieldChoice
from penstock.dataflow.streams.building import add_count, add_reduce
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.type_variables import S_co, T_co
from penstock.dataflow.types import check_type_info

__all__ = ["RollingAggregations"]


class RollingAggregations(Generic[T_co, S_co]):
    """Adds the methods that combine the records of each key."""

    def reduce(
        self, func: Callable[[T_co, T_co], T_co] | ReduceFunction[T_co], output_type: Any = None
    ) -> S_co:
        """Combine the records of each key with `func`, and emit the result after each record.

        stream.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
        """
        check_type_info("output_type", output_type)
        return declare_type(
            self._reduce("Reduce", check_function(func, ReduceFunction, "reduce")), output_type
        )

    def sum(self, position_to_sum: int | str | None = 0) -> S_co:
        """Sum up one field for each key, and emit the updated sum for each record.

        The other fields of an emitted record are taken from the first record of the key.

        Arguments:
            position_to_sum: the position or name of the field. If the records are numbers, it is
                left out, or None.
        """
        return self._reduce("Sum", FieldAggregation(position_to_sum, operator.add))

    def min(self, position_to_min: int | str | None = 0) -> S_co:
        """Emit, for each record, the smallest value of a field among the records of the key.

        The other fields of an emitted record are taken from the first record of the key.
        """
        return self._reduce("Min", FieldAggregation(position_to_min, min))

    def max(self, position_to_max: int | str | None = 0) -> S_co:
        """Emit, for each record, the largest value of a field among the records of the key.

        The other fields of an emitted record are taken from the first record of the key.
        """
        return self._reduce("Max", FieldAggregation(position_to_max, max))

    def min_by(self, position_to_min_by: int | str | None = 0) -> S_co:
        """Emit, for each record, the record of its key that has the smallest field so far.

        If two records have equal fields, the first record is emitted. Without a position, field 0
        of a tuple, list or `Row` is compared, and other records as a whole. None always compares
        whole records.
        """
        return self._reduce("Min By", FieldChoice(position_to_min_by, operator.lt))

    def max_by(self, position_to_max_by: int | str | None = 0) -> S_co:
        """Emit, for each record, the record of its key that has the largest field so far.

        If two records have equal fields, the first record is emitted. Without a position, field 0
        of a tuple, list or `Row` is compared, and other records as a whole. None always compares
        whole records.
        """
        return self._reduce("Max By", FieldChoice(position_to_max_by, operator.gt))

    def count(self) -> Any:
        """Count the records of each key, and emit a pair (key, count so far) for each record."""
        return self._transform(add_count)

    def _reduce(self, name: str, function: Any) -> S_co:
        stream: S_co = self._transform(add_reduce, name, function)
        return stream

    @abstractmethod
    def _transform(self, add: Callable[..., OperatorOutput], *arguments: Any) -> Any:
        """Add an operator that reads this stream, and return a stream with its output."""
