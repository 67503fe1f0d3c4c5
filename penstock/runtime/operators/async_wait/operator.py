"""The operator of `AsyncDataStream`, which sends requests for the records.

A *request* is one record whose results are not emitted. A *call* of the function is for one
request, or for many if the program uses `batched`. Calls run outside of the task. Their outcomes
wait in a queue until the task handles them, in its own steps. The state of the operator is the list
of the records of the requests (decision record 050).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from penstock.dataflow.async_io import AsyncOperation, Batching
from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import Function, method_of
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.metrics import (
    CACHE_HITS,
    CALLS,
    CALLS_REPEATED,
    CALLS_TIMED_OUT,
    RECORDS_IN_CALLS,
    MetricGroup,
)
from penstock.dataflow.time.watermark import NO_TIMESTAMP
from penstock.runtime.network.elements import EndOfInput, LoopElement, TimeElement
from penstock.runtime.operators.async_wait.call_forms import call_form
from penstock.runtime.operators.async_wait.call_pacer import CallPacer
from penstock.runtime.operators.async_wait.call_timers import CallTimers
from penstock.runtime.operators.async_wait.request import Call, Request
from penstock.runtime.operators.async_wait.request_queues import (
    OrderedQueue,
    RequestQueue,
    UnorderedQueue,
)
from penstock.runtime.operators.async_wait.shared_results import SharedResults
from penstock.runtime.operators.base import HOOK_BATCH, RunningOperator
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.requests import Held, OperatorRequests
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.runtime.user_code.async_caller import AsyncCaller, Outcome
from penstock.runtime.user_code.errors import rendered, to_job_error
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.state.operator_state import OperatorStateSnapshot

#: The name of the list state with the requests in flight.
REQUESTS = "penstock.requests_in_flight"

#: The number of records that the operator takes while it expects a barrier.
_UNLIMITED = 1 << 30


class AsyncWaitOperator(RunningOperator):
    """Sends requests for records, and emits the results. (Flink: `AsyncWaitOperator`.)

    Arguments:
        operation: the function of the user and its settings.
        context: the place of the operator in the job.
        caller: calls the function outside of the task.
        wake: wakes the task, because a request has ended.
    """

    def __init__(
        self,
        operation: AsyncOperation,
        context: OperatorContext,
        caller: AsyncCaller,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(operation.function, context)
        self._operation, self._caller, self._wake = operation, caller, wake
        batching = operation.batching or Batching(1, 0, operation.capacity)
        self._size, self._wait, self._most_calls = (
            batching.size,
            batching.wait_ms,
            batching.max_calls,
        )
        self._combine = batching.combine
        self._form = call_form(operation)
        predicate = operation.strategy.get_retry_predicate()
        self._of_result = predicate.result_predicate()
        self._of_error = predicate.exception_predicate()
        self._queue: RequestQueue = OrderedQueue() if operation.ordered else UnorderedQueue()
        self._shared = SharedResults(batching.cache) if batching.cache is not None else None
        context.refuse_random_numbers("requests overlap, so it is not determined which draws first")
        self._timers = CallTimers(operation.timeout_ms)
        self._pacer = CallPacer.of_subtask(batching, context.parallelism)
        # Each call of `ordered_wait` has one record, so its metrics would show nothing new.
        metrics = MetricGroup() if operation.batching is None else context.metrics
        self._calls, self._records_in_calls = (
            metrics.counter(CALLS),
            metrics.counter(RECORDS_IN_CALLS),
        )
        self._cache_hits, self._repeats = (
            metrics.counter(CACHE_HITS),
            metrics.counter(CALLS_REPEATED),
        )
        self._timeouts = metrics.counter(CALLS_TIMED_OUT)
        #: The requests whose results are not emitted, in the order of their records.
        self._in_flight: dict[Request, None] = {}
        #: The number of them that were part of a call.
        self._sent = 0
        #: The requests among them that no call has yet.
        self._waiting: deque[Request] = deque()
        #: The calls that run, and those that are due for another attempt.
        self._running: dict[Call, None] = {}
        self._repeated: deque[Call] = deque()
        #: The outcomes of attempts that the task has not handled yet.
        self._outcomes: deque[tuple[Call, int, Outcome]] = deque()
        self._restored: list[tuple[Any, int]] = []
        #: The number of the snapshot whose barrier is on its way to the operator; 0 if none is.
        self._expected = 0
        #: The number of the newest snapshot that has the state of the operator.
        self._captured = 0
        #: Logs the results that leave; None if the task need not repeat its steps.
        self._log: Callable[[list[int], bytes], None] | None = None
        #: Whether the results come from a log. No requests are in the queue meanwhile.
        self._repeating = False

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
        """Cancel all calls, and close the function."""
        for call in self._running:
            call.cancel()
        if isinstance(self.function, Function):
            self._caller.run(self.function.close)

    # ---- requests

    @property
    def room(self) -> int:
        """Return the number of records that the operator takes now."""
        if self._expected or self._repeating:
            return _UNLIMITED
        return max(0, self._operation.capacity - len(self._in_flight))

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Take the records as requests. Return no records: the task takes results later."""
        self._admit(batch.rows(), batch.times())
        return EMPTY

    def _admit(self, records: list[Any], timestamps: list[int]) -> None:
        mutable, now = not self.context.codec.is_immutable_batch(records), self.context.now_ms()
        for record, timestamp in zip(records, timestamps, strict=True):
            request = Request(record, timestamp, mutable, now)
            self._in_flight[request] = None
            if not self._repeating:
                self._enqueue(request, now)
        self._begin_calls()

    def _enqueue(self, request: Request, now: int) -> None:
        self._queue.add(request)
        if self._shared is None or not self._finds_results(self._shared, request, now):
            self._waiting.append(request)

    def _finds_results(self, shared: SharedResults, request: Request, now: int) -> bool:
        """Return whether a request needs no call, because another one has or gets its results."""
        try:
            found = shared.find(request, now)
        except BaseException as error:
            raise self._failure(error, [request]) from error
        if found is None:
            return False
        self._cache_hits.count += 1
        if isinstance(found, Request):
            request.follow(found)
        else:
            self._emit(request, found)
        return True

    # ---- calls

    def _next_call_at(self) -> int | None:
        """Return the time from which the next call may begin; None if there is none."""
        if not self._waiting and not self._repeated:
            return None
        if len(self._running) >= self._most_calls:
            return None
        while self._repeated and not self._repeated[0].requests:
            self._repeated.popleft()  # it has timed out meanwhile
        if self._repeated:
            return self._pacer.next_at
        most = min(len(self._waiting), self._operation.capacity - self._sent)
        if most <= 0:
            return None
        if most >= self._size:
            return self._pacer.next_at
        return max(self._waiting[0].arrived + self._wait, self._pacer.next_at)

    def _begin_calls(self) -> None:
        if self._waiting or self._repeated:
            self._begin_calls_at(self.context.now_ms())

    def _begin_calls_at(self, now: int) -> None:
        while (at := self._next_call_at()) is not None and at <= now:
            self._begin(self._repeated.popleft() if self._repeated else self._new_call(now), now)

    def _new_call(self, now: int) -> Call:
        most = min(self._size, len(self._waiting), self._operation.capacity - self._sent)
        waiting = self._waiting
        call = Call([waiting.popleft()] if most == 1 else [waiting.popleft() for _ in range(most)])
        self._sent += most
        self._timers.started(call, now)
        return call

    def _begin(self, call: Call, now: int) -> None:
        count = len(call.requests)
        self._pacer.began(count, now)
        self._calls.count += 1
        self._records_in_calls.count += count
        self._running[call] = None
        done = partial(self._ended, call, call.begin())
        argument = self._form.argument(self._values_of(call.requests))
        call.cancels_with(self._caller.call(self._form.invoke, argument, done))

    def _values_of(self, requests: list[Request]) -> list[Any]:
        """Return the records for the function, which may change them while a snapshot is taken."""
        records = [request.record for request in requests]
        for request in requests:
            if request.mutable:
                return self._copied(records)
        return records

    def _copied(self, records: list[Any]) -> list[Any]:
        return self.context.codec.copy_mutable(records)

    def _ended(self, call: Call, attempt: int, outcome: Outcome) -> None:
        """Handle the end of an attempt. The task may be in the middle of something else."""
        self._outcomes.append((call, attempt, outcome))
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
        if isinstance(element, EndOfInput):
            for request in self._waiting:
                request.hurry()  # it is unlikely that other records come

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
        places = self._places(taken) if taken and self._log is not None else []
        for request in taken or ():
            del self._in_flight[request]
            self._sent -= request.sent
            results = request.results or []
            rows += results
            timestamps += [request.timestamp] * len(results)
            request.emitted()
        self._begin_calls()
        timed = timestamps.count(NO_TIMESTAMP) < len(timestamps)
        # The function may keep what it has returned, for example in a cache.
        batch = RecordBatch(self._copied(rows), None, timestamps if timed else None)
        if taken and self._log is not None:
            self._log(places, self.context.codec.encode_record_batch(batch))
        return batch

    def _places(self, requests: list[Request]) -> list[int]:
        """Return the places of requests among those in flight, in ascending order."""
        left = set(requests)
        places = []
        for place, request in enumerate(self._in_flight):
            if request in left:
                places.append(place)
                left.remove(request)
                if not left:  # as a rule, these are among the first ones
                    break
        return places

    # ---- repetition

    def log_results(self, log: Callable[[list[int], bytes], None]) -> None:
        """Call `log` with the places of requests that leave, and their results."""
        self._log = log

    def begin_repetition(self) -> None:
        """Begin no calls: the results come from a log."""
        self._repeating = True

    def repeat_results(self, places: list[int], results: bytes) -> RecordBatch:
        """Let the requests at some places leave, and return their logged results."""
        in_flight = list(self._in_flight)
        for place in places:
            del self._in_flight[in_flight[place]]
        return self.context.codec.decode_record_batch(results)

    def end_repetition(self, now: int) -> None:
        """Begin calls for the requests whose results were not in the log."""
        self._repeating = False
        for request in list(self._in_flight):
            self._enqueue(request, now)
        self._begin_calls_at(now)

    def _handle_outcomes(self) -> None:
        while self._outcomes:
            self._handle_outcome(*self._outcomes.popleft())

    def _handle_outcome(self, call: Call, attempt: int, outcome: Outcome) -> None:
        if not call.requests or attempt != call.attempts:
            return  # the call has timed out meanwhile
        del self._running[call]
        try:
            if outcome.error is None:
                results = self._form.results_of(outcome.value, len(call.requests))
            elif self._is_repeated(call, outcome.error):
                results = None
            else:
                raise outcome.error
        except BaseException as failure:
            raise self._failure(failure, call.requests) from failure
        again = call.requests if results is None else self._end_requests(call, results)
        call.attempt_ended(again)
        if again:
            self._repeats.count += 1
            delay = self._operation.strategy.get_backoff_time_millis(call.attempts)
            self._timers.repeat_at(self.context.now_ms() + delay, call)
        else:
            self._timers.ended()

    def _end_requests(self, call: Call, results: list[list[Any] | BaseException]) -> list[Request]:
        """End the requests of a call, and return those that must be repeated."""
        again: list[Request] = []
        for request, result in zip(call.requests, results, strict=True):
            if isinstance(result, BaseException) or self._of_result is not None:
                try:
                    if self._is_repeated(call, result):
                        again.append(request)
                        continue
                    if isinstance(result, BaseException):
                        raise result
                except BaseException as failure:
                    raise self._failure(failure, [request]) from failure
            if self._shared is None:
                self._emit(request, result)
            else:
                self._share(self._shared, request, result)
        return again

    def _is_repeated(self, call: Call, result: list[Any] | BaseException) -> bool:
        """Return whether a request with this result, or this error, is repeated."""
        if isinstance(result, BaseException):
            of_error = self._of_error
            again = of_error is not None and isinstance(result, Exception) and of_error(result)
        else:
            again = self._of_result is not None and self._of_result(result)
        return again and self._operation.strategy.can_retry(call.attempts)

    def _share(self, shared: SharedResults, request: Request, results: list[Any]) -> None:
        """Emit the results of a request of a call, and those of the requests that wait for it."""
        shared.keep(request, results, self.context.now_ms())
        self._emit(request, results)
        for follower in request.take_followers():
            self._emit(follower, results)

    def _emit(self, request: Request, results: list[Any]) -> None:
        if self._combine is not None:
            results = self._combined(self._combine, request, results)
        request.end(results)
        self._queue.ended(request)

    def _combined(
        self, combine: Callable[[Any, Any], Any], request: Request, results: list[Any]
    ) -> list[Any]:
        try:
            (record,) = self._values_of([request])
            return [combine(record, result) for result in self._copied(results)]
        except BaseException as failure:
            raise self._failure(failure, [request]) from failure

    def _failure(self, error: BaseException, requests: list[Request]) -> JobError:
        # An iterator at its end stands for the last record of the list.
        self.iterator = iter(()) if len(requests) == 1 else None
        failure = to_job_error(error, self, [request.record for request in requests])
        if failure.record is None:
            failure.record = f"{rendered(requests[0].record)}, the first of {len(requests)}"
        return failure

    # ---- timeouts and repetitions

    def next_processing_time(self) -> int | None:
        """Return the time of the next call or timeout, in milliseconds since the epoch."""
        call_at, timer_at = self._next_call_at(), self._timers.next()
        if call_at is None or timer_at is None:
            return timer_at if call_at is None else call_at
        return min(call_at, timer_at)

    def advance_processing_time(self, now: int) -> Iterator[RecordBatch | TimeElement]:
        """Begin the calls whose time has come, and end those that have timed out."""
        self._handle_outcomes()  # A call that has ended does not time out.
        while (call := self._timers.take_timed_out(now)) is not None:
            call.cancel()
            self._running.pop(call, None)
            self._time_out(call)
        while (call := self._timers.take_repeated(now)) is not None:
            self._repeated.append(call)
        self._begin_calls()
        yield from ()

    def _time_out(self, call: Call) -> None:
        self._timeouts.count += 1
        requests = call.requests
        # Requests with the same key have waited, too.
        requests = [one for each in requests for one in (each, *each.take_followers())]
        try:
            if not self._form.defines_timeout:
                raise JobError(
                    f"TimeoutError in operator {self.name!r}: the request has not ended within "
                    f"{self._operation.timeout_ms} ms; set a longer timeout, or define "
                    f"{self._form.timeout_hint}"
                )
            results = self._form.timed_out(self._values_of(requests))
        except BaseException as error:
            raise self._failure(error, requests) from error
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, BaseException):
                raise self._failure(result, [request]) from result
            if self._shared is not None:
                self._shared.forget(request)
            self._emit(request, result)
        call.attempt_ended([])
        self._timers.ended()


def build_async_wait(place: OperatorPlace) -> RunningOperator:
    """Build the operator of `AsyncDataStream`."""
    services, operation = place.services, place.function
    caller = services.create_caller(operation.run_in)
    return AsyncWaitOperator(operation, place.context, caller, services.wake)
