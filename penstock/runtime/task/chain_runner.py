"""Run the operators of a chain over the batches of its task."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.errors import StoreError
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.operator_chain import ChainNode
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error

__all__ = ["ChainRunner"]


class ChainRunner:
    """Passes records through the operators of a chain, and to its partitioners.

    Arguments:
        root: the node of the first operator of the chain.
        codec: the codec, which decodes batches, and copies records that have several consumers.
        end_of_input: the tracker that is notified if an end-of-input hook emits records into the
            task's own loop.
    """

    def __init__(self, root: ChainNode, codec: Codec, end_of_input: EndOfInputTracker) -> None:
        self.root = root
        #: The operators of the chain. Each operator comes after its parent.
        self.operators: list[RunningOperator] = [node.operator for node in root.walk()]
        #: A function that decodes the bytes of a batch.
        self.decode = codec.decode_record_batch
        self._codec = codec
        self._end_of_input = end_of_input
        self._nodes = {node.operator: node for node in root.walk()}

    @property
    def uid(self) -> str:
        """Return the uid of the first operator of the chain."""
        return self.root.operator.context.uid

    def open(self) -> None:
        """Open all operators, the last one first, so that an operator can emit when it opens."""
        for operator in reversed(self.operators):
            operator_at_work.set(operator.context)
            try:
                operator.initialize_state()
                operator.open()
            except BaseException as error:
                raise to_job_error(error, operator, []) from error
        operator_at_work.set(None)

    def run(self, batch: RecordBatch, count: int) -> None:
        """Process a batch of `count` records with the whole chain."""
        self.process(self.root, batch, count)

    def emit_from(self, operator: RunningOperator, out: list[Any]) -> None:
        """Pass the output of an operator's end-of-input hook to the operator's consumers."""
        node = self._nodes[operator]
        if operator.side_outputs:
            self._emit_side_outputs(node)
        if out:
            self.emit(node, out)

    def process(self, node: ChainNode, batch: RecordBatch, count: int) -> None:
        """Process `count` records with a node's operator and the operators behind it."""
        operator = node.operator
        operator.records_in += count
        operator_at_work.set(operator.context)
        try:
            out = operator.process(batch)
        except StoreError:
            raise  # The error concerns state that cannot be read, not the current record.
        except BaseException as error:
            raise to_job_error(error, operator, batch) from error
        if operator.side_outputs:
            self._emit_side_outputs(node)
        if out:
            self.emit(node, out)

    def _emit_side_outputs(self, node: ChainNode) -> None:
        for tag, batch in node.operator.side_outputs.take():
            consumers = node.sides.get(tag)
            # Without consumers, no operator reads the side output, and its records are dropped.
            if consumers is not None:
                self.emit(consumers, batch.rows())

    def emit(self, node: ChainNode, out: list[Any]) -> None:
        """Pass the output of an operator to its child operators and partitioners."""
        operator = node.operator
        count = len(out)
        operator.records_out += count
        # A consumer may change its records, and the other consumers must not see the change.
        copies = node.consumers > 1 and not self._codec.is_immutable_batch(out)
        for child in node.children:
            rows = self._codec.copy_mutable(out) if copies else out
            self.process(child, RecordBatch(rows), count)
        if node.partitioners:
            # Key selectors and custom partition functions run in a partitioner.
            operator_at_work.set(operator.context)
        for partitioner in node.partitioners:
            routed = self._codec.copy_mutable(out) if copies else out
            if self._end_of_input.running and partitioner in node.inner:
                self._end_of_input.record_emission()
            try:
                partitioner.route(routed)
            except BaseException as error:
                operator.follow(partitioner.iterator)
                raise to_job_error(error, operator, routed, partitioner.place) from error
