"""Fuse a map or flat map and its partitioner into one loop that makes columns.

`penstock.runtime.codegen` generates the loop from the user's function and the key selector. If it
cannot generate one, the operator and the partitioner run their own loops.

If the fused loop raises an error, the operator and the partitioner process that record again. Then
one of them raises the error, so the message and the traceback are the same as without fusion.
"""

from __future__ import annotations

from penstock.dataflow.errors import JobError
from penstock.runtime import codegen
from penstock.runtime.network.partitioners import HashPartitioner, StreamPartitioner
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.stateless import FlatMapOperator, MapOperator
from penstock.runtime.serialization.record_batch import EMPTY, WIDEST, RecordBatch
from penstock.runtime.user_code.errors import current_index, to_job_error


class FusedOperator(RunningOperator):
    """A map or flat map operator that also routes the records that it emits.

    Arguments:
        made_by: the map or flat map operator.
        partitioner: the partitioner, which takes all output of the operator. Its output channels
            are still empty.
        loop: the generated loop, which does the work of the operator and the partitioner.
    """

    def __init__(
        self,
        made_by: RecordLoopOperator,
        partitioner: HashPartitioner,
        loop: codegen.RoutingLoop,
    ) -> None:
        super().__init__(made_by.function, made_by.context)
        self._made_by, self._partitioner = made_by, partitioner
        self._route, self._timed_route = loop.run, loop.run_timed
        self._pending = partitioner.by_column(loop.layout)
        self.outputs = partitioner.outputs
        #: Whether a batch with event times has been processed.
        self._timed = False

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Process a batch and route the resulting records; return an empty batch."""
        before = sum([len(output.buffer) for output in self.outputs])
        self.iterator = iterator = iter(batch.rows())
        try:
            if batch.timestamps is None and not self._timed:
                self._route(iterator, self._pending)
            else:
                self._timed = True
                self._partitioner.start_timestamps()
                self._timed_route(iterator, self._pending, batch.times())
        except BaseException as error:
            if codegen.raised_by_generated_code(error) or isinstance(error, JobError):
                self._raise_as_two(batch)
            raise
        self.records_out += sum([len(output.buffer) for output in self.outputs]) - before
        return EMPTY

    def _raise_as_two(self, batch: RecordBatch) -> None:
        """Process the current record again, so that the operator or partitioner raises."""
        index = current_index(self.iterator, batch)
        if index is None:
            return
        try:
            out = self._made_by.call_functions(batch[index])
        except BaseException as error:
            raise error from error.__cause__
        before, self.iterator = self.iterator, iter(out)
        for record in self.iterator:
            try:
                self._partitioner.refuse(record)
            except BaseException as error:
                raise to_job_error(error, self, out, self._partitioner.place) from None
        self.iterator = before


def fused(operator: RunningOperator, partitioner: StreamPartitioner) -> FusedOperator | None:
    """Return an operator that also routes records, or None if that is impossible.

    Arguments:
        operator: an operator that sends its output to the partitioner only.
        partitioner: a partitioner whose output channels are still empty.
    """
    if not isinstance(partitioner, HashPartitioner) or not isinstance(
        operator, MapOperator | FlatMapOperator
    ):
        return None
    many = isinstance(operator, FlatMapOperator)
    loop = codegen.specialize_routing(operator.called, partitioner.selector, many, WIDEST)
    return None if loop is None else FusedOperator(operator, partitioner, loop)
