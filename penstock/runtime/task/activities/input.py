"""Take elements from the input channels of a task, and read its source."""

from __future__ import annotations

from collections.abc import Callable

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, TimeElement
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.task.activities.activity import Activity
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.key_sampler import KeySampler
from penstock.runtime.task.slice_runner import SliceRunner
from penstock.runtime.task.snapshots.snapshot_driver import SnapshotDriver
from penstock.runtime.task.task_end import TaskEnd
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error


class ChannelInput(Activity):
    """Takes elements from the input channels, and replays logs of a restored snapshot.

    Arguments:
        gate: the input gate.
        chain: decodes batches.
        slices: processes batches.
        event_time: the event time of the task.
        snapshots: handles barriers.
        end: handles the other elements without records.
        outputs: the output channels of the task.
        keys: looks at the keys of some records.
    """

    def __init__(
        self,
        gate: InputGate,
        chain: ChainRunner,
        slices: SliceRunner,
        event_time: WatermarkTracker,
        snapshots: SnapshotDriver,
        end: TaskEnd,
        outputs: TaskOutputs,
        keys: KeySampler,
    ) -> None:
        self._gate, self._decode, self._requests = gate, chain.decode, chain.requests
        self._slices, self._event_time, self._snapshots = slices, event_time, snapshots
        self._end, self._outputs, self._keys = end, outputs, keys

    def ready(self) -> bool:
        """Return whether a channel has an element, or logs are replayed."""
        return self._gate.ready

    def step(self) -> bool:
        """Take an element and handle it."""
        taken = self._gate.take()
        if taken is not None:  # At the end of a replay, it is None once.
            self._receive(*taken)
        return True

    def _receive(self, channel: InputChannel | None, element: Element) -> None:
        """Handle an element of a channel; None for replayed records of the task's source."""
        if isinstance(element, EncodedBatch):
            begin, element = element.begin, self._decode(element.payload)
            if begin:
                element = element.slice(begin)
        if isinstance(element, RecordBatch):
            if self._keys.wanted and channel is not None:
                self._keys.sample(channel.id.link, element)
            self._slices.start(element, channel)
            self._outputs.send_full()
        elif channel is None and isinstance(element, TimeElement):
            self._event_time.add(element)
        elif channel is None:
            raise ProtocolError(f"{element} was replayed")
        elif isinstance(element, Barrier):
            self._snapshots.barrier_arrived(channel.id, element)
        elif self._requests is not None and self._requests.holds:
            self._requests.hold(channel.id, element)
        else:
            self._end.receive_marker(channel.id, element)


class SourceReading(Activity):
    """Reads the source of a task.

    Whether the source has records is known only when it is read. So the activity is ready whenever
    it may emit, and `is_certain` is False.

    Arguments:
        source_input: the splits of the task.
        chain: the operators of the task.
        slices: processes batches.
        snapshots: the snapshots of the task. After the final barrier, the source is not read.
        end: handles the end of the source.
        outputs: the output channels of the task.
        timer: a function that returns a precise time in seconds.
    """

    is_certain = False

    def __init__(
        self,
        source_input: SourceInput,
        chain: ChainRunner,
        slices: SliceRunner,
        snapshots: SnapshotDriver,
        end: TaskEnd,
        outputs: TaskOutputs,
        timer: Callable[[], float],
    ) -> None:
        self._source_input, self._operator = source_input, chain.root.operator
        #: Returns the next records of the source; see `SourceInput.read`.
        self._read: Callable[[int], RecordBatch | None] = source_input.read
        self._chain = chain
        self._slices, self._snapshots = slices, snapshots
        self._end, self._outputs, self._timer = end, outputs, timer

    def ready(self) -> bool:
        """Return whether the source may be read now."""
        return not self._end.ended and self._snapshots.may_emit

    def step(self) -> bool:
        """Read the source, and process the first slice of its records."""
        source_input, operator = self._source_input, self._operator
        if source_input.ended:
            self._end.input_over()
            return True
        operator_at_work.set(operator.context)
        began = self._timer()
        try:
            batch = self._read(self._slices.sizer.slice)
            if source_input.side_output:
                for tag, record in source_input.take_side_output():
                    operator.side_outputs.emit(tag.tag_id, record)
        except BaseException as error:
            raise to_job_error(error, operator, []) from error
        if operator.side_outputs:
            # The position in the split is behind these records, so they are emitted before anything
            # else can happen in the task.
            self._chain.emit_from(operator, EMPTY)
            self._outputs.send_full()
            if batch is None or not batch.count:
                return True
        if batch is None:
            return source_input.ended
        if batch.count:
            self._slices.start(batch, None, began)
            self._outputs.send_full()
            return True
        # The source has no records now. If it has returned no time to wait for, for example after
        # the end of a split, it is read again at once.
        return source_input.wake_at is None and not source_input.pumping

    def wake_at(self) -> float | None:
        """Return when the source has records again."""
        return self._source_input.wake_at if self.ready() else None
