"""The operator of `AsyncDataStream`, which sends a request for each record.

Requests run outside of the task. Their outcomes wait in a queue until the task handles them, in its
own steps. The state of the operator is the list of the records whose results are not emitted yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from penstock.dataflow.async_io import AsyncFunction, AsyncOperation
from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import Function, method_of
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.dataflow.types import Row
from penstock.runtime.network.elements import EndOfInput, LoopElement, TimeElement
from penstock.runtime.operators.async_wait.request import Request
from penstock.runtime.operators.async_wait.request_queues import (
    OrderedQueue,
    RequestQueue,
    UnorderedQueue,
)
from penstock.runtime.operators.async_wait.request_timers import RequestTimers
from penstock.runtime.operators.base import HOOK_BATCH, RunningOperator
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.requests import Held, OperatorRequests
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.async_caller import AsyncCaller, Outcome
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state import OperatorStateSnapshot

#: The name of the list state with the requests in flight.
REQUESTS = "penstock.requests_in_flight"

#: The number of records that the operator takes while it expects a barrier.
_UNLIMITED = 1 << 30
#: Iterable values that a function more likely returned as one record than as a list of records.
_RECORDS = (str, bytes, Mapping, Row)


class AsyncWaitOperator(RunningOperator):
    """Sends a request for each record, and emits the results. (Flink: `AsyncWaitOperator`.)

    Arguments:
        operation: the function of the user and its settings.
        context: the place of the operator in the job.
        caller: calls the function outside of the task.
        wake: wakes the task, because a request has ended.
    """

    emits = "async_invoke"

    def __init__(
        self,
        operation: AsyncOperation,
        context: OperatorContext,
        caller: AsyncCaller,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(operation.function, context)
        self._operation, self._caller, self._wake = operation, caller, wake
        self._invoke = method_of(operation.function, "async_invoke")
        rich = isinstance(operation.function, AsyncFunction)
        self._name = "async_invoke" if rich else "the function"
        self._queue: RequestQueue = OrderedQueue() if operation.ordered else UnorderedQueue()
        self._timers = RequestTimers(operation.timeout_ms)
        #: The requests whose results are not emitted, in the order of their records.
        self._in_flight: dict[Request, None] = {}
        #: The requests among them that have not begun, because others must end first.
        self._waiting: deque[Request] = deque()
        #: The outcomes of attempts that the task has not handled yet.
        self._outcomes: deque[tuple[Request, int, Outcome]] = deque()
        self._restored: list[tuple[Any, int]] = []
        #: The number of the snapshot whose barrier is on its way to the operator; 0 if none is.
        self._expected = 0
        #: The number of the newest snapshot that has the state of the operator.
        self._captured = 0

    @property
    def requests(self) -> OperatorRequests:
        """Return the operator itself."""
        return self

    # ---- the state of the operator

    def initialize_state(self) -> None:
        """Take the requests that were in flight at the snapshot."""
        super().initialize_state()
        backend = self.context.operator_state
        assert backend is not None
        if self._operation.key_selector is None:
            restored: Any = backend.list_state(REQUESTS, StateMode.SPLIT).values
            self._restored = restored
        else:
            # Records with the same key stay in one subtask, so that their order is kept.
            every: Any = backend.list_state(REQUESTS, StateMode.UNION).values
            self._restored = [entry for entry in every if self._is_own(entry[0])]

    def _is_own(self, record: Any) -> bool:
        key = method_of(self._operation.key_selector, "get_key")(record)
        groups = self.context.max_parallelism
        group = key_group(canonical(key), groups)
        return subtask_of_key_group(group, groups, self.context.parallelism) == self.context.subtask

    def capture_operator_state(self, number: int, timestamp: int) -> OperatorStateSnapshot | None:
        """Return the records in flight at the barrier of a snapshot."""
        backend = self.context.operator_state
        assert backend is not None
        mode = StateMode.SPLIT if self._operation.key_selector is None else StateMode.UNION
        requests = [(request.record, request.timestamp) for request in self._in_flight]
        backend.list_state(REQUESTS, mode).replace(requests)
        self._captured = number
        self.snapshot_over(number)
        return super().capture_operator_state(number, timestamp)

    def expect_barrier(self, number: int) -> None:
        """Take records without a limit until the barrier of a snapshot has arrived.

        Otherwise the barrier would wait behind records for which there is no room. The records
        become part of the snapshot, and their requests begin when others have ended.
        """
        if number > self._captured:
            self._expected = number

    def snapshot_over(self, number: int) -> None:
        """Note that the barrier of a snapshot has arrived, or will not come."""
        if number >= self._expected:
            self._expected = 0

    def requests_in_flight(self) -> int:
        """Return the number of records whose results are not emitted yet."""
        return len(self._in_flight)

    def open(self) -> None:
        """Open the function, and repeat the requests of the snapshot."""
        if isinstance(self.function, Function):
            self._caller.run(self.function.open, self.context)
        restored, self._restored = self._restored, []
        self._admit([record for record, _ in restored], [time for _, time in restored])

    def close(self) -> None:
        """Cancel all requests, and close the function."""
        for request in self._in_flight:
            request.cancel()
        if isinstance(self.function, Function):
            self._caller.run(self.function.close)

    # ---- requests

    @property
    def room(self) -> int:
        """Return the number of records that the operator takes now."""
        if self._expected:
            return _UNLIMITED
        return max(0, self._operation.capacity - len(self._in_flight))

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Begin a request for each record. Return no records: the task takes results later."""
        self._admit(batch.rows(), batch.times())
        return EMPTY

    def _admit(self, records: list[Any], timestamps: list[int]) -> None:
        mutable = not self.context.codec.is_immutable_batch(records)
        for record, timestamp in zip(records, timestamps, strict=True):
            request = Request(record, timestamp, mutable)
            self._in_flight[request] = None
            self._queue.add(request)
            self._waiting.append(request)
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        begun = len(self._in_flight) - len(self._waiting)
        for _ in range(min(len(self._waiting), self._operation.capacity - begun)):
            request = self._waiting.popleft()
            self._timers.started(request, self.context.now_ms())
            self._call(request)

    def _call(self, request: Request) -> None:
        done = partial(self._ended, request, request.begin())
        request.cancels_with(self._caller.call(self._invoke, self._value_of(request), done))

    def _value_of(self, request: Request) -> Any:
        """Return the record for the function, which may change it while a snapshot is taken."""
        return self._copied([request.record])[0] if request.mutable else request.record

    def _copied(self, records: list[Any]) -> list[Any]:
        return self.context.codec.copy_mutable(records)

    def _ended(self, request: Request, attempt: int, outcome: Outcome) -> None:
        """Handle the end of an attempt. The task may be in the middle of something else."""
        self._outcomes.append((request, attempt, outcome))
        self._wake()

    # ---- output

    @property
    def ready(self) -> bool:
        """Return whether `next_output` has something to do."""
        return bool(self._outcomes) or self._queue.ready

    @property
    def holds(self) -> bool:
        """Return whether an element that comes now must wait for requests before it."""
        return not self._queue.empty

    def hold(self, channel: Hashable, element: TimeElement | LoopElement | EndOfInput) -> None:
        """Let an element of a channel wait for the requests before it."""
        self._queue.hold(Held(channel, element))

    def next_output(self) -> RecordBatch | Held:
        """Handle all outcomes, and return the next results, or a held element whose turn it is.

        The results may be empty.

        Raises:
            JobError: if a request has failed.
        """
        self._handle_outcomes()
        taken = self._queue.take(HOOK_BATCH)
        if isinstance(taken, Held):
            return taken
        rows: list[Any] = []
        timestamps: list[int] = []
        for request in taken or ():
            del self._in_flight[request]
            results = request.results or []
            rows += results
            timestamps += [request.timestamp] * len(results)
            request.emitted()
        self._begin_waiting()
        timed = timestamps.count(NO_TIMESTAMP) < len(timestamps)
        # The function may keep what it has returned, for example in a cache.
        return RecordBatch(self._copied(rows), None, timestamps if timed else None)

    def _handle_outcomes(self) -> None:
        while self._outcomes:
            self._handle_outcome(*self._outcomes.popleft())

    def _handle_outcome(self, request: Request, attempt: int, outcome: Outcome) -> None:
        if request.results is not None or attempt != request.attempts:
            return  # the request has timed out meanwhile
        request.attempt_ended()
        error, results = outcome.error, list[Any]()
        try:
            if error is None:
                results = self._records_of(self._name, outcome.value)
            delay = self._delay(request, results, error)
            if delay is not None:
                self._timers.repeat_at(self.context.now_ms() + delay, request)
                return
            if error is not None:
                raise error
        except BaseException as failure:
            raise self._failure(failure, request) from failure
        self._end(request, results)

    def _delay(
        self, request: Request, results: list[Any], error: BaseException | None
    ) -> int | None:
        """Return the delay before a request is repeated, in milliseconds; None if it is not."""
        strategy = self._operation.strategy
        predicate = strategy.get_retry_predicate()
        if error is None:
            of_result = predicate.result_predicate()
            again = of_result is not None and of_result(results)
        else:
            of_error = predicate.exception_predicate()
            again = of_error is not None and isinstance(error, Exception) and of_error(error)
        if not again or not strategy.can_retry(request.attempts):
            return None
        return strategy.get_backoff_time_millis(request.attempts)

    def _end(self, request: Request, results: list[Any]) -> None:
        request.end(results)
        self._timers.ended()
        self._queue.ended(request)

    def _records_of(self, method: str, returned: Any) -> list[Any]:
        # One record that the user forgot to put into a list may be iterable, too.
        is_record = isinstance(returned, _RECORDS) or hasattr(returned, "_fields")
        if isinstance(returned, Iterable) and not is_record:
            return list(returned)
        kind = type(returned).__name__
        what = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        advice = "return a list of the records to emit, for example [result]"
        if returned is None:
            what, advice = "None", "it lacks a `return`, or must return [] to emit nothing"
        raise JobError(f"{method} returned {what}: {advice}")

    def _failure(self, error: BaseException, request: Request) -> JobError:
        # An iterator at its end stands for the last record of the list.
        self.iterator = iter(())
        return to_job_error(error, self, [request.record])

    # ---- timeouts and repetitions

    def next_processing_time(self) -> int | None:
        """Return the next time of a timeout or repetition, in milliseconds since the epoch."""
        return self._timers.next()

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Repeat the requests whose time has come, and end those that have timed out."""
        self._handle_outcomes()  # A request that has ended does not time out.
        while (request := self._timers.take_timed_out(now)) is not None:
            request.cancel()
            self._time_out(request)
        while (request := self._timers.take_repeated(now)) is not None:
            self._call(request)
        yield from ()

    @property
    def _defines_timeout(self) -> bool:
        own = getattr(type(self.function), "timeout", None)
        return isinstance(self.function, AsyncFunction) and own is not AsyncFunction.timeout

    def _time_out(self, request: Request) -> None:
        try:
            if not self._defines_timeout:
                raise JobError(
                    f"TimeoutError in operator {self.name!r}: the request has not ended within "
                    f"{self._operation.timeout_ms} ms; set a longer timeout, or define "
                    f"timeout(value) of an AsyncFunction"
                )
            results = self._records_of("timeout", self.function.timeout(self._value_of(request)))
        except BaseException as error:
            raise self._failure(error, request) from error
        self._end(request, results)


def build_async_wait(place: OperatorPlace) -> RunningOperator:
    """Build the operator of `AsyncDataStream`."""
    services, operation = place.services, place.function
    caller = services.create_caller(operation.run_in)
    return AsyncWaitOperator(operation, place.context, caller, services.wake)
