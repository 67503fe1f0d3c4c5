"""A keyed operator with state as another package defines it: the running median of each key."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from penstock import DataStream, KeyedStream
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.runtime.operators.batch.final_aggregations import FinalResults
from penstock.runtime.operators.building import keyed
from penstock.runtime.operators.keyed import KeyedOperator
from penstock.runtime.serialization.record_batch import RecordBatch


class MedianOperator(KeyedOperator):
    """Emits (key, number of its values, their median) for each record."""

    def open(self) -> None:
        super().open()
        self._values = self.backend.table(self.STATE)

    def process(self, batch: RecordBatch) -> RecordBatch:
        results = []
        # If a record causes an error, the message names it: the iterator says how far it came.
        self.iterator = iter(batch.rows())
        for record in self.iterator:
            key = self._key_of(record)
            values = list(self._values.get(key, ()))
            insort(values, self.function(record))
            self._values.put(key, values)
            results.append(self.result(key, values))
        return RecordBatch(results, None, batch.timestamps)

    def result(self, key: Any, values: list[Any]) -> Any:
        return key, len(values), values[len(values) // 2]


class FinalMedianOperator(FinalResults, MedianOperator):
    """Emits the same for each key, when the input has ended."""

    def _result(self, key: Any, value: Any) -> Any:
        return self.result(key, value)


MEDIAN = OperatorSpec(
    "example.median",
    keyed=True,
    build=keyed(MedianOperator),
    build_final=keyed(FinalMedianOperator),
)


def running_median(stream: KeyedStream[Any, Any], value: Callable[[Any], Any]) -> DataStream[Any]:
    return stream.transform("Running Median", MEDIAN, value)
