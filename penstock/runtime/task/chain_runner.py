"""Run the operators of a chain over the batches of its task."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dataflow.errors import StoreError
from penstock.dataflow.metrics import SIDE_OUTPUT_RECORDS_DROPPED
from penstock.dataflow.time.watermark import NO_TIMESTAMP, Watermark
from penstock.runtime.network.elements import TimeElement, WatermarkStatus
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.operators.time.watermark_operators import TimestampsOperator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.loop_watermarks import LoopPlace
from penstock.runtime.task.operator_chain import ChainNode, close_all
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.emitted_records import check_first_records, converted_batch
from penstock.runtime.user_code.errors import to_job_error
from penstock.runtime.user_code.hidden_state import HiddenState
from penstock.snapshot.state import KeyedBackend


class ChainRunner:
    """Passes records through the operators of a chain, and to its partitioners.

    Arguments:
        root: the node of the first operator of the chain.
        codec: the codec, which decodes batches, and copies records that have several consumers.
        end_of_input: the tracker that is notified if an end-of-input hook emits records into the
            task's own loop.
        second_input: the ids of the links to the second input of the first operator.
        loop: the place of the task in its loop; None if the task is in no loop.
    """

    def __init__(
        self,
        root: ChainNode,
        codec: Codec,
        end_of_input: EndOfInputTracker,
        second_input: frozenset[int] = frozenset(),
        loop: LoopPlace | None = None,
    ) -> None:
        self.root = root
        self.second_input = second_input
        #: The operators of the chain. Each operator comes after its parent.
        self.operators: list[RunningOperator] = [node.operator for node in root.walk()]
        #: A function that decodes the bytes of a batch.
        self.decode = codec.decode_record_batch
        self._codec = codec
        self._end_of_input = end_of_input
        #: The sinks among the operators, and those that must be flushed when the task is idle.
        self.sinks = [one for one in self.operators if isinstance(one, SinkOperator)]
        self.sinks_to_flush = [sink for sink in self.sinks if sink.flushes]
        #: The requests of the first operator; None if it has none.
        self.requests = root.operator.requests
        self.loop = loop
        #: Whether the watermarks of the task leave its loop later than they advance in the task.
        self._held = loop is not None and not loop.watermarks.own_time
        self._nodes = {node.operator: node for node in root.walk()}
        self._hidden: list[HiddenState] = []
        for operator in self.operators:
            if isinstance(operator, TimestampsOperator):
                operator.connect(self)

    @property
    def nodes(self) -> list[ChainNode]:
        """Return the consumers of all main and side outputs."""
        return [n for node in self.root.walk() for n in (node, *node.sides.values())]

    @property
    def uid(self) -> str:
        """Return the uid of the first operator of the chain."""
        return self.root.operator.context.uid

    def backends(self) -> dict[str, KeyedBackend]:
        """Return the keyed state of the operators, keyed by their uids."""
        contexts = [operator.context for operator in self.operators]
        return {one.uid: one.backend for one in contexts if one.backend is not None}

    def open(self) -> None:
        """Open all operators, the last one first, so that an operator can emit when it opens."""
        for operator in reversed(self.operators):
            operator_at_work.set(operator.context)
            try:
                operator.open_edge_functions()
                operator.initialize_state()
                operator.open()
            except BaseException as error:
                raise to_job_error(error, operator, []) from error
        operator_at_work.set(None)
        # All subtasks run the same functions, so the first ones tell enough.
        self._hidden = [
            HiddenState(one.function, one.context)
            for one in self.operators
            if one.context.subtask == 0 and not one.is_connector
        ]

    def report_hidden_state(self) -> None:
        """Log once for each function that it keeps data outside of its state."""
        self._hidden = [hidden for hidden in self._hidden if not hidden.report()]
        operator_at_work.set(None)

    def close(self, source_input: SourceInput | None, gate: InputGate) -> None:
        """Close all operators and their state, the source and the feedback channels.

        All are closed, even if some raise an error. The first error is raised at the end.
        """
        root = self.root.operator
        closers = [(root, self.report_hidden_state)]
        closers += [(operator, operator.close) for operator in self.operators]
        closers += [(operator, operator.close_edge_functions) for operator in self.operators]
        if source_input is not None:
            closers.append((root, source_input.close))
        closers += [(root, backend.close) for backend in self.backends().values()]
        closers += [(root, back_edge.close) for back_edge in gate.back_edges.values()]
        close_all(closers)

    def end_sinks(self) -> None:
        """Write the records that sinks have gathered, because there are no more records."""
        for sink in self.sinks:
            operator_at_work.set(sink.context)
            sink.end()

    def select_input(self, link: int) -> None:
        """Set the link from which the next batches come, if the first operator has two inputs."""
        self.root.operator.select_input(1 if link in self.second_input else 0)

    def emit_from(self, operator: RunningOperator, out: RecordBatch) -> None:
        """Pass records that an operator has emitted, without any input, to its consumers."""
        node = self._nodes[operator]
        if operator.side_outputs:
            self._emit_side_outputs(node)
        if out.count:
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
        if out.count:
            self.emit(node, out)

    def _emit_side_outputs(self, node: ChainNode) -> None:
        for tag, batch in node.operator.side_outputs.take():
            consumers = node.sides.get(tag)
            if consumers is not None:
                self.emit(consumers, batch)
            else:  # no operator reads the side output
                counter = node.operator.context.metrics.counter(SIDE_OUTPUT_RECORDS_DROPPED)
                counter.inc(batch.count)

    def emit(self, node: ChainNode, out: RecordBatch) -> None:
        """Pass the output of an operator to its child operators and partitioners."""
        operator = node.operator
        count = out.count
        if not operator.records_out and out.arrow is None:
            check_first_records(
                out.rows(),
                operator.name,
                self._codec.why_unsupported,
                leave_chain=bool(node.partitioners),
            )
        operator.records_out += count
        # A consumer may change its records, and the other consumers must not see the change.
        # An Arrow batch never changes, and each consumer makes rows of its own.
        copies = (
            node.shared and out.arrow is None and not self._codec.is_immutable_batch(out.rows())
        )
        for child in node.children:
            self.process(child, self._copy(out) if copies else out, count)
        if node.partitioners:
            # Key selectors and custom partition functions run in a partitioner.
            operator_at_work.set(operator.context)
        for partitioner in node.partitioners:
            routed = self._copy(out) if copies else out
            if node.inner and partitioner in node.inner:
                self._record_emission(routed, partitioner in node.back_edges)
            try:
                if routed.arrow is None:
                    partitioner.route(routed)
                else:
                    partitioner.route_arrow(routed)
            except BaseException as error:
                operator.follow(partitioner.iterator)
                raise to_job_error(error, operator, routed, partitioner.place) from error

    def _record_emission(self, batch: RecordBatch, back: bool) -> None:
        """Record that the task has emitted records into its own loop.

        Arguments:
            batch: the records.
            back: whether they are sent over a back-edge.
        """
        if self._end_of_input.running:
            self._end_of_input.record_emission()
        if back and batch.timestamps is not None and self.loop is not None:
            times = [time for time in batch.timestamps if time != NO_TIMESTAMP]
            if times:
                self.loop.watermarks.sent_back(min(times))

    # ---- event time

    def advance(self, watermark: Watermark) -> Iterator[None]:
        """Handle a new watermark in the chain, and send it to all outputs.

        The work is done in pieces; this generator yields after each piece.
        """
        root = self.root
        if root.operator.lets_pass(watermark):
            yield from self._fire(root, watermark)
            self._emit_time(root, watermark, self._held)

    def pass_on(self, watermark: Watermark) -> None:
        """Pass on a watermark for which the first operator has fired already."""
        if self.root.operator.lets_pass(watermark):
            self._emit_time(self.root, watermark, self._held)

    @property
    def must_fire(self) -> bool:
        """Return whether timers or windows wait for a watermark."""
        return any(operator.waits_for_watermark() for operator in self.operators)

    def set_status(self, status: WatermarkStatus) -> None:
        """Handle a new watermark status in the chain, and send it to all outputs."""
        if self.root.operator.lets_pass(status):
            self._emit_time(self.root, status, self._held)

    def emit_time_from(self, operator: RunningOperator, element: TimeElement) -> None:
        """Pass a watermark or status that an operator has emitted to its consumers."""
        if isinstance(element, Watermark):
            operator.context.set_watermark(element.timestamp)
        self._emit_time(self._nodes[operator], element)

    def release(self, element: TimeElement) -> None:
        """Send an element of event time to the outputs that leave the task's loop.

        The outputs of an operator that emits its own watermarks do not get the element.
        """
        if self._held:
            self._release(self.root, element)

    def _release(self, node: ChainNode, element: TimeElement) -> None:
        if not node.operator.lets_pass(element):
            return
        for consumers in (node, *node.sides.values()):
            for child in consumers.children:
                self._release(child, element)
            for output in consumers.outputs:
                output.mark(element)

    def _emit_time(self, node: ChainNode, element: TimeElement, held: bool = False) -> None:
        """Pass an element of event time to the consumers of a node.

        The element follows all records that the node has emitted.

        Arguments:
            node: the node.
            element: the element.
            held: whether the element stays in the task's loop for now.
        """
        for consumers in (node, *node.sides.values()):
            for child in consumers.children:
                if child.operator.lets_pass(element):
                    if isinstance(element, Watermark):
                        for _ in self._fire(child, element):
                            pass
                    self._emit_time(child, element, held)
            for output in consumers.outputs_inside:
                output.mark(element)
            if not held:
                for output in consumers.outputs:
                    output.mark(element)

    def _fire(self, node: ChainNode, watermark: Watermark) -> Iterator[None]:
        """Fire the timers and windows of a node; yield after each piece of output."""
        operator = node.operator
        operator.context.set_watermark(watermark.timestamp)
        operator_at_work.set(operator.context)
        pieces = operator.advance_watermark(watermark.timestamp)
        while True:
            try:
                piece = next(pieces, None)
            except StoreError:
                raise
            except BaseException as error:
                raise to_job_error(error, operator, []) from error
            if piece is None:
                return
            self.emit_from(operator, piece)
            yield
            operator_at_work.set(operator.context)

    def _copy(self, batch: RecordBatch) -> RecordBatch:
        return batch.with_rows(self._codec.copy_mutable(batch.rows()))


class TypedChainRunner(ChainRunner):
    """Runs a chain in which the type of some operators' records is declared."""

    def emit(self, node: ChainNode, out: RecordBatch) -> None:
        """Convert the output of an operator to its declared type, and pass it on."""
        if node.result_type is not None:
            out = converted_batch(out, node.result_type, node.operator.name)
        super().emit(node, out)
