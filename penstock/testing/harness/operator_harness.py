"""The harness that runs an operator in a test: `OperatorHarness`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import find_metric
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import MapStateDescriptor
from penstock.dataflow.time.watermark import NO_TIMESTAMP, Watermark
from penstock.runtime.jobmanager.reporting.metric_totals import MetricTotals
from penstock.runtime.operators.time.operator_timers import EVENT, PROCESSING
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager.reports import metrics_of
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.testing.harness.captured_output import Capture
from penstock.testing.harness.harness_lifecycle import HarnessLifecycle
from penstock.testing.harness.harness_program import (
    HarnessInput,
    HarnessSettings,
    build_code,
)
from penstock.testing.harness.harness_snapshot import HarnessSnapshot
from penstock.testing.timed_record import TimedRecord


class OperatorHarness(HarnessLifecycle):
    """Runs a function or a piece of a program in a test, without a cluster.

    The test passes records, watermarks and processing time to the harness. Each call returns when
    the operators have processed its input completely. The operators, their state and their
    snapshots are those of a job. (Flink: `KeyedOneInputStreamOperatorTestHarness` and
    `TwoInputStreamOperatorTestHarness`.)

    A piece is a callable that takes one or two streams, and returns a stream or a sink.

    An exception of a function is raised as it is. The functions run in this thread, so breakpoints
    and coverage work. If `parallelism` is 1, the operator runs a shallow copy of the function
    object, as in a program. Otherwise each subtask has a copy of its own, as in a worker.

    Arguments:
        function: an object of a function class, or a piece of a program.
        key_selector: a function that returns the key of a record. The input is then keyed.
        second_key_selector: the key selector of the second input; by default `key_selector`.
        broadcast_states: the descriptors of the broadcast states of a function that reads a
            broadcast stream as its second input.
        side_outputs: the tags of the side outputs to capture.
        parallelism: the number of subtasks.
        max_parallelism: the number of key groups.
        types: record classes that the functions do not mention.
        snapshot: a snapshot of another harness to start from. Its program may be an older version
            of this one.
        allow_dropped: whether state of the snapshot that the program no longer has is dropped, as
            with `penstock run --allow-dropped`.

    Raises:
        GraphError: if the program cannot be built, or does not fit the snapshot.

    Examples:
        >>> harness = OperatorHarness(lambda words: words.key_by(str).count())
        >>> harness.process_element("a")
        >>> harness.process_element("a")
        >>> harness.extract_output_values()
        [('a', 1), ('a', 2)]
    """

    def __init__(
        self,
        function: Any,
        key_selector: Any = None,
        *,
        second_key_selector: Any = None,
        broadcast_states: Sequence[MapStateDescriptor] = (),
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int = 1,
        max_parallelism: int = 128,
        types: Sequence[type] = (),
        snapshot: HarnessSnapshot | None = None,
        allow_dropped: bool = False,
    ) -> None:
        settings = HarnessSettings(
            key_selector,
            second_key_selector,
            broadcast_states,
            side_outputs,
            parallelism,
            max_parallelism,
            types,
        )
        super().__init__(build_code(function, settings), snapshot, allow_dropped=allow_dropped)

    # ---- input

    def process_element(
        self, value: Any, timestamp: int | None = None, *, input: int = 0, subtask: int = 0
    ) -> None:
        """Process a record.

        Arguments:
            value: the record.
            timestamp: its event time, in milliseconds since the epoch; None if it has none.
            input: the index of the input, 0 or 1.
            subtask: the subtask of the input from which the record comes. A keyed operator
                processes it in the subtask of its key.
        """
        self.process_elements([(value, timestamp)], input=input, subtask=subtask)

    def process_element1(self, value: Any, timestamp: int | None = None) -> None:
        """Process a record of the first input."""
        self.process_element(value, timestamp)

    def process_element2(self, value: Any, timestamp: int | None = None) -> None:
        """Process a record of the second input, which may be a broadcast stream."""
        self.process_element(value, timestamp, input=1)

    process_broadcast_element = process_element2

    def process_elements(
        self, records: Iterable[tuple[Any, int | None]], *, input: int = 0, subtask: int = 0
    ) -> None:
        """Process records in one batch.

        Arguments:
            records: the records, each with its event time in milliseconds or None.
            input: the index of the input, 0 or 1.
            subtask: the subtask of the input from which the records come.
        """
        values, times = [], []
        for value, timestamp in records:
            values.append(value)
            times.append(NO_TIMESTAMP if timestamp is None else timestamp)
        timed = any(time != NO_TIMESTAMP for time in times)
        if values:
            batch = RecordBatch(values, None, times if timed else None)
            self._tasks.process(self._input(input, subtask), batch)

    def process_watermark(self, timestamp: int, *, input: int | None = None) -> None:
        """Advance the watermark: event-time timers and windows up to it fire.

        Arguments:
            timestamp: the watermark, in milliseconds since the epoch.
            input: the index of the input that has this watermark; None for all inputs. The
                watermark of the operator is the smallest of its inputs.

        Raises:
            GraphError: if an input had a higher watermark before.
        """
        for number in self._numbers if input is None else [input]:
            if timestamp < self._watermarks.get(number, timestamp):
                raise GraphError(
                    f"a watermark never goes back: input {number} had "
                    f"{self._watermarks[number]} before, and now {timestamp}"
                )
            self._watermarks[number] = timestamp
            for task in self._inputs(number):
                task.event_time.add(Watermark(timestamp))
        self._tasks.run()

    def process_watermark1(self, timestamp: int) -> None:
        """Advance the watermark of the first input."""
        self.process_watermark(timestamp, input=0)

    def process_watermark2(self, timestamp: int) -> None:
        """Advance the watermark of the second input."""
        self.process_watermark(timestamp, input=1)

    def set_processing_time(self, timestamp: int) -> None:
        """Set the processing time, in milliseconds since the epoch: timers before it fire.

        It is 0 at first. As in a job, a timer for a time fires when that millisecond is over, so
        a timer for 100 fires at `set_processing_time(101)`.

        Raises:
            GraphError: if the time is earlier than the current one.
        """
        if timestamp < self._tasks.now:
            raise GraphError(
                f"the processing time of a harness never goes back: it was {self._tasks.now} "
                f"before, and now {timestamp}"
            )
        self._tasks.set_time(timestamp)
        self._tasks.run()

    def get_processing_time(self) -> int:
        """Return the processing time, in milliseconds since the epoch."""
        return self._tasks.now

    def end_input(self) -> None:
        """End all inputs: the last watermark fires timers, and then `end_input` hooks run."""
        for number in self._numbers:
            for task in self._inputs(number):
                task.no_more_splits()
        self._tasks.run()

    @property
    def _numbers(self) -> list[int]:
        return sorted({input.number for task in self._tasks if (input := _input_of(task))})

    def _inputs(self, number: int) -> list[Task]:
        found = [
            task
            for task in self._tasks
            if (input := _input_of(task)) is not None and input.number == number
        ]
        if not found:
            raise GraphError(f"the harness has no input {number}")
        return found

    def _input(self, number: int, subtask: int) -> Task:
        tasks = self._inputs(number)
        if not 0 <= subtask < len(tasks):
            raise GraphError(f"the harness has {len(tasks)} subtasks, and no subtask {subtask}")
        return next(task for task in tasks if task.id[1] == subtask)

    # ---- output

    def extract_output_values(self) -> list[Any]:
        """Return the records that were emitted since the last call, in order.

        The harness does not keep the records that it has returned. (In Flink, it does.)
        """
        return [record.value for record in self.extract_output_records()]

    def extract_output_records(self) -> list[TimedRecord]:
        """Return the records that were emitted since the last call, with their event times."""
        return self._take(None)

    def get_side_output(self, tag: OutputTag) -> list[Any]:
        """Return the records that were emitted to a side output since the last call.

        Raises:
            GraphError: if the harness was not created with this tag in `side_outputs`.
        """
        return [record.value for record in self._take(tag.tag_id)]

    @property
    def output_watermark(self) -> int:
        """The watermark of the output, in milliseconds since the epoch."""
        return min(
            operator.context.watermark
            for operator in self._tasks.operators
            if isinstance(operator.function, Capture) and operator.function.tag is None
        )

    def _take(self, tag: str | None) -> list[TimedRecord]:
        captures = [
            operator.function
            for operator in self._tasks.operators
            if isinstance(operator.function, Capture) and operator.function.tag == tag
        ]
        if not captures:
            what = "output" if tag is None else f"side output {tag!r}"
            raise GraphError(f"the harness captures no {what}: add its tag to side_outputs")
        return [record for capture in captures for record in capture.take()]

    # ---- metrics

    def metric(self, name: str, operator: str | None = None) -> Any:
        """Return the value of a metric over all subtasks; see `JobExecutionResult.metric`.

        Arguments:
            name: the name of the metric, with the names of its groups before it: `parser.invalid`.
            operator: the name or the uid of its operator; needed only if several have this metric.

        Raises:
            GraphError: if there is no such metric, or if several operators have it.
        """
        totals = MetricTotals()
        for running in self._tasks.operators:
            totals.update(metrics_of(running.context))
        names = {info.uid: info.name for info in self._tasks.plan.operators}
        return find_metric(totals.rows(names), name, operator)

    # ---- state

    def num_event_time_timers(self) -> int:
        """Return the number of event-time timers that have not fired."""
        return self._count(lambda name, _: name == EVENT)

    def num_processing_time_timers(self) -> int:
        """Return the number of processing-time timers that have not fired."""
        return self._count(lambda name, _: name == PROCESSING)

    def num_keyed_state_entries(self, name: str | None = None) -> int:
        """Return the number of entries of keyed state, without timers.

        A value counts as one entry, and so does each entry of a map or list.

        Arguments:
            name: the name of the state; None for all states.
        """
        return self._count(
            lambda own, kind: own == name if name is not None else kind is not StateKind.TIMER
        )

    def _count(self, wanted: Any) -> int:
        return sum(
            sum(1 for _ in backend.scan(table.name))
            for task in self._tasks
            for backend in task.backends.values()
            for table in backend.tables
            if wanted(table.name, table.kind)
        )


def _input_of(task: Task) -> HarnessInput | None:
    function = task.chain.root.operator.function
    return function if isinstance(function, HarnessInput) else None
