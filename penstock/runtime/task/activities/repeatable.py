"""Take elements from the input channels, and fire timers, so that the steps can be repeated.

After a restart the task first repeats the steps of its predecessor. It takes as many records from
each channel as the predecessor has taken, and fires the same timers at the same places. Watermarks
come from the log meanwhile: a sender that has restarted may send them at other places.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.network.elements import (
    Element,
    EncodedBatch,
    WatermarkStatus,
)
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.step_logs import (
    BARRIER,
    EVENT_TIME,
    FIRED,
    MARKED,
    RESULTS,
    TAKEN,
    Step,
    element_of,
)
from penstock.runtime.operators.requests import Held
from penstock.runtime.serialization.arrow_batch import merged
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.activities.by_clock import RequestResults
from penstock.runtime.task.activities.input import ChannelInput
from penstock.runtime.task.processing_time import ProcessingTime
from penstock.runtime.task.task_steps import TaskSteps


class RepeatableTime(ProcessingTime):
    """Runs processing-time work, logs when it begins, and begins it only if it is its turn.

    Arguments:
        steps: the steps of the task.
        arguments: the arguments of `ProcessingTime`.
    """

    def __init__(self, steps: TaskSteps, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._steps = steps

    def begin(self, now: int) -> None:
        """Begin the work that is due at a time of day, in milliseconds since the epoch."""
        super().begin(self._steps.fired(now))

    def begin_again(self, now: int) -> None:
        """Begin the work of a step that is repeated, which has its own time of day."""
        super().begin(now)

    def is_due(self) -> bool:
        """Return whether there is something to do now."""
        return self.is_running or (self._steps.next is None and super().is_due())

    def wake_at(self) -> float | None:
        """Return the time on `clock` at which there is something to do; None if never."""
        return None if self._steps.next is not None else super().wake_at()


class RepeatableResults(RequestResults):
    """Emits the results of requests, and logs them; those of a log if steps are repeated.

    Arguments:
        steps: the steps of the task.
        arguments: the arguments of `RequestResults`.
    """

    def __init__(self, steps: TaskSteps, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._steps = steps
        self._requests.log_results(steps.results)
        if steps.next is not None:
            self._requests.begin_repetition()

    def ready(self) -> bool:
        """Return whether there are results, or an element has waited long enough."""
        return self._steps.next is None and super().ready()

    def step(self) -> bool:
        """Emit and log the next results, or handle and log the next element."""
        self._steps.emits_results()
        return super().step()

    def _release(self, held: Held) -> None:
        if isinstance(held.element, Watermark | WatermarkStatus):
            assert isinstance(held.channel, ChannelId)
            self._steps.marked(held.channel, held.element)
        super()._release(held)

    def repeat(self, places: list[int], results: bytes) -> None:
        """Emit the results of a step that is repeated."""
        self._emit(self._requests.repeat_results(places, results))


class RepeatableInput(ChannelInput):
    """Takes elements from the input channels, logs that, and repeats steps after a restart.

    While it repeats steps, it takes all elements from the gate at once. Otherwise a sender could
    wait for this task, while this task waits for another channel, whose sender waits for yet
    another task that repeats steps. The elements wait here until it is their turn.

    Arguments:
        steps: the steps of the task.
        timers: runs the processing-time work of the task.
        arguments: the arguments of `ChannelInput`.
    """

    def __init__(
        self,
        steps: TaskSteps,
        timers: RepeatableTime,
        results: RepeatableResults | None,
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._steps, self._timers, self._results = steps, timers, results
        #: The elements that were taken from each channel and wait for their turn. A channel without
        #: such elements is not here.
        self._waiting: dict[ChannelId, deque[Element]] = {}
        #: The elements of event time between records that are processed already.
        self._passed: dict[ChannelId, list[Element]] = {}
        #: The number of records of the current step that are still to come; None between steps.
        self._missing: int | None = None
        #: The parts of the batch of the current step that have come, if they are merged.
        self._parts: list[RecordBatch] = []

    def ready(self) -> bool:
        """Return whether a channel has an element, or steps or waiting elements are left."""
        step = self._steps.next
        if step is None:
            return bool(self._waiting) or self._gate.ready
        return self._gate.ready or step[0] != TAKEN or self._place(step) in self._waiting

    def step(self) -> bool:
        """Take an element and handle it, or repeat a step, or a part of it."""
        step = self._steps.next
        if step is not None:
            self._continue(step)
        elif self._waiting:
            self._receive_waiting()
        else:
            super().step()
        return True

    def _receive(self, channel: InputChannel | None, element: Element) -> None:
        """Log that an element is taken, and handle it."""
        assert channel is not None
        if isinstance(element, EncodedBatch | RecordBatch):
            if not self._slices.is_logged:
                self._steps.taken(channel.id, element.count)
        elif isinstance(element, Watermark | WatermarkStatus) and not (
            self._requests is not None and self._requests.holds
        ):
            self._steps.marked(channel.id, element)  # that of a held one is logged when it leaves
        super()._receive(channel, element)

    # ---- steps to repeat

    def _place(self, step: Step) -> ChannelId:
        """Return the channel of a step."""
        subtask = next(iter(self._gate.channels)).target
        return ChannelId(step[1], step[2], subtask)

    def _continue(self, step: Step) -> None:
        """Repeat a step as far as its records have come, or take one more element."""
        if step[0] != TAKEN:
            self._steps.repeat(step)
            self._repeat_other(step)
            self._steps.done()
        elif self._place(step) in self._waiting:
            self._repeat_batch(step)
        else:
            channel, element = self._gate.take() or (None, None)
            assert channel is not None and element is not None
            self._waiting.setdefault(channel.id, deque()).append(element)
        if self._steps.next is None:
            self._put_back_passed()
            if self._requests is not None:
                self._requests.end_repetition(self._steps.later_now())

    def _repeat_batch(self, step: Step) -> None:
        """Process the next element of the channel of a `TAKEN` step, or a part of it."""
        place = self._place(step)
        element = self._next_waiting(place)
        if isinstance(element, Watermark | WatermarkStatus):
            self._passed.setdefault(place, []).append(element)
            return
        if not isinstance(element, EncodedBatch | RecordBatch):
            raise ProtocolError(
                f"{element} on {place} comes before records that were processed before a restart: "
                f"functions upstream are not deterministic"
            )
        if self._missing is None:
            self._steps.repeat(step)
            self._missing = step[3]
        if isinstance(element, EncodedBatch):
            begin, element = element.begin, self._decode(element.payload)
            if begin:
                element = element.slice(begin)
        if element.count > self._missing:
            self._waiting.setdefault(place, deque()).appendleft(element.slice(self._missing))
            element = element.slice(0, self._missing)
        self._missing -= element.count
        if self._slices.is_logged:
            # The operators depend on where a batch begins and ends.
            self._parts.append(element)
            if self._missing:
                return
            element, self._parts = merged(self._parts), []
        super()._receive(self._gate.channels[place], element)
        if not self._missing:
            self._missing = None
            self._steps.done()

    def _repeat_other(self, step: Step) -> None:
        """Repeat a step without records."""
        match step:
            case [kind, *_] if kind == MARKED:
                super()._receive(self._gate.channels[self._place(step)], element_of(step))
            case [kind, now] if kind == FIRED:
                self._timers.begin_again(now)
            case [kind, places, results, _] if kind == RESULTS and self._results is not None:
                self._results.repeat(places, results)
            case [kind, captured] if kind == EVENT_TIME:
                self._event_time.continue_from(captured)
            case [kind, _] if kind == BARRIER:
                pass  # a snapshot that was not complete had no effect on the steps
            case _:
                raise ProtocolError(f"{step} is no step")

    # ---- elements that wait

    def _next_waiting(self, place: ChannelId) -> Element:
        elements = self._waiting[place]
        element = elements.popleft()
        if not elements:
            del self._waiting[place]
        return element

    def _put_back_passed(self) -> None:
        """Put the elements of event time that were passed before the others that wait.

        A channel may have been idle in the log. Its sender has restarted, and reports that only if
        it is idle again.
        """
        for place in self._gate.channels:
            passed = [WatermarkStatus(idle=False), *self._passed.get(place, ())]
            self._waiting.setdefault(place, deque()).extendleft(reversed(passed))
        self._passed = {}

    def _receive_waiting(self) -> None:
        """Handle an element that waits. The channels take turns."""
        place = next(iter(self._waiting))
        element = self._next_waiting(place)
        if place in self._waiting:
            self._waiting[place] = self._waiting.pop(place)
        self._receive(self._gate.channels[place], element)
