"""Capture the state of a task at a barrier."""

from __future__ import annotations

from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.slice_runner import SliceRunner
from penstock.runtime.task.snapshots.in_flight_data import InFlightRecorder
from penstock.runtime.task.snapshots.task_snapshot import TaskSnapshot
from penstock.runtime.task.task_settings import TaskSettings
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.protocols.events import SnapshotKind


class StateCapture:
    """Captures the state of a task as a task snapshot.

    Capturing is fast and happens between two slices. Afterwards the task processes records again,
    and the checkpoint writer writes the captured state.

    Arguments:
        chain: the operators. Sinks among them may have staged output.
        gate: the input gate.
        source_input: the source's splits; None if the chain begins with no source.
        end_of_input: the tracker that counts the rounds of end-of-input hooks.
        slices: the slice runner, which has the current batch.
        event_time: the tracker of the task's watermark.
        in_flight: the recorder that logs the current batch; None if no barrier overtakes records.
        settings: the clocks and settings of the task.
    """

    def __init__(
        self,
        chain: ChainRunner,
        gate: InputGate,
        source_input: SourceInput | None,
        end_of_input: EndOfInputTracker,
        slices: SliceRunner,
        event_time: WatermarkTracker,
        in_flight: InFlightRecorder | None,
        settings: TaskSettings,
    ) -> None:
        self._chain = chain
        self._backends = chain.backends()
        self._gate = gate
        self._source_input = source_input
        self._end_of_input = end_of_input
        self._slices = slices
        self._event_time = event_time
        self._in_flight = in_flight
        self.keep_state, self._wall_ms = settings.keep_state, settings.wall_clock
        #: Whether functions were not yet examined for data outside of their state. One look is
        #: enough for an endless job; another one follows when the task is closed.
        self._unexamined = True

    def capture(self, number: int, kind: SnapshotKind, aligned_seconds: float) -> TaskSnapshot:
        """Capture the state of the task now, and return it as a task snapshot.

        Arguments:
            number: the number of the snapshot.
            kind: the kind of the snapshot.
            aligned_seconds: the time since the first barrier of the snapshot arrived, in seconds.
        """
        if self._unexamined and self._chain.root.operator.records_in:
            self._unexamined = False
            self._chain.report_hidden_state()
        end, uid = self._end_of_input, self._chain.uid
        channels = self._gate.channels.values()
        snapshot = TaskSnapshot(
            number,
            kind,
            uid,
            end.hooked,
            ended=end.rounds,
            emitted=end.emitted,
            outside_ended=end.over if end.in_loop else None,
            pending_timers=any(operator.has_pending_timers() for operator in self._chain.operators),
            requests=sum(operator.requests_in_flight() for operator in self._chain.operators),
            must_fire=end.in_loop and self._chain.must_fire,
            aligned_seconds=aligned_seconds,
            blocked_seconds=[channel.blocked_seconds for channel in channels],
        )
        if self.keep_state:
            # This comes first, because a function may also change its keyed state here.
            self._capture_operator_state(snapshot)
            for operator in self._chain.operators:
                operator.write_state()
            snapshot.captures.update(
                (uid, backend.capture(number)) for uid, backend in self._backends.items()
            )
            if self._source_input is not None:
                snapshot.small[uid] = self._source_input.capture(number)
            snapshot.event_times.update(self._event_time.capture())
        for operator in self._chain.operators:
            if isinstance(operator, SinkOperator):
                operator_at_work.set(operator.context)
                staged = operator.prepare(number)
                if staged is not None:
                    snapshot.staged[operator.context.uid] = staged
        operator_at_work.set(None)
        if self._in_flight is not None:
            # The barrier may have arrived in the middle of a batch, or of a replay.
            read = [(None, element) for element in self._event_time.in_hand()]
            in_hand = [*self._slices.unprocessed(), *read, *self._gate.rest_of_replay()]
            snapshot.logs.extend(self._in_flight.in_hand(in_hand))
        return snapshot

    def _capture_operator_state(self, snapshot: TaskSnapshot) -> None:
        for operator in self._chain.operators:
            if not operator.context.keeps_operator_state:
                continue
            operator_at_work.set(operator.context)
            try:
                captured = operator.capture_operator_state(snapshot.number, self._wall_ms())
            except BaseException as error:
                raise to_job_error(error, operator, []) from error
            if captured is not None:
                snapshot.operator_states[operator.context.uid] = captured
        operator_at_work.set(None)
