"""The operator of `map_batches`."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.columns.batch_function import BatchOperation
from penstock.dataflow.columns.column_key import column_named
from penstock.dataflow.columns.column_times import milliseconds_of_column
from penstock.dataflow.errors import JobError
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.columns.batch_formats import (
    arrow_batch_of,
    input_converter,
    to_batch,
)
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.arrow_batch import packed_times
from penstock.runtime.serialization.record_batch import RecordBatch


class BatchOperator(RunningOperator):
    """Calls a batch function for each batch of records.

    Arguments:
        function: the batch function, and how it is called.
        context: the operator's place in the job.
    """

    is_columnar = True

    def __init__(self, function: BatchOperation, context: OperatorContext) -> None:
        super().__init__(function, context)
        self._operation = function
        self._convert = input_converter(function.format, function.schema)

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Return the rows that the function returns for a batch.

        Raises:
            JobError: if the function returned no batch, or a wrong number of rows.
        """
        operation = self._operation
        out = to_batch(operation.call(self._convert(batch)))
        if operation.keep_rows:
            if out.count != batch.count:
                raise JobError(
                    f"the batch function returned {out.count} rows for {batch.count}: with "
                    f"keep_rows=True, it must return one row for each row, in their order"
                )
            times: Any = batch.timestamps
            return out.with_timestamps(
                times if out.arrow is not None or times is None else list(times)
            )
        if operation.timestamps is not None and out.count:
            column = column_named(arrow_batch_of(out), operation.timestamps)
            found = milliseconds_of_column(column, operation.timestamps)
            return out.with_timestamps(
                packed_times(found) if out.arrow is not None else found.tolist()
            )
        return out
