"""Run the processing-time work of the operators of a task.

An operator returns the time of its next work: a timer to fire, or a periodic watermark to emit. The
task is woken at that time. The work is done in pieces, and the task handles barriers between the
pieces. The task processes no records meanwhile.

After a restore, the timers that were due while the job was down are due at once. Timers that are
not due at the end of the input never fire, as in Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.dataflow.errors import StoreError
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error


class ProcessingTime:
    """Runs the processing-time work of the operators of a task.

    Arguments:
        chain: the operators of the task.
        clock: returns the time in seconds, for waiting.
        wall_clock: returns the time of day, in milliseconds since the epoch.
    """

    def __init__(
        self, chain: ChainRunner, clock: Callable[[], float], wall_clock: Callable[[], int]
    ) -> None:
        self._chain = chain
        self._clock, self._wall_clock = clock, wall_clock
        never = RunningOperator.next_processing_time
        self._operators = [o for o in chain.operators if type(o).next_processing_time is not never]
        self._running: Iterator[None] | None = None

    @property
    def is_needed(self) -> bool:
        """Return whether an operator works by processing time."""
        return bool(self._operators)

    @property
    def is_running(self) -> bool:
        """Return whether work has begun that is not done."""
        return self._running is not None

    def is_due(self) -> bool:
        """Return whether there is something to do now."""
        if self.is_running:
            return True
        first = self._next()
        return first is not None and first <= self._wall_clock()

    def wake_at(self) -> float | None:
        """Return the time on `clock` at which there is something to do; None if never."""
        first = self._next()
        return None if first is None else self._clock() + (first - self._wall_clock()) / 1000

    def begin(self, now: int) -> None:
        """Begin the work that is due at a time of day, in milliseconds since the epoch."""
        self._running = self._run(now)

    def step(self) -> None:
        """Do one piece of the work that is due, and emit the records."""
        if self._running is None:
            self.begin(self._wall_clock())
        assert self._running is not None
        if next(self._running, self) is self:
            self._running = None

    def _next(self) -> int | None:
        times = [operator.next_processing_time() for operator in self._operators]
        return min((time for time in times if time is not None), default=None)

    def _run(self, now: int) -> Iterator[None]:
        for operator in self._operators:
            first = operator.next_processing_time()
            if first is None or first > now:
                continue
            pieces = operator.advance_processing_time(now)
            while True:
                operator_at_work.set(operator.context)
                try:
                    piece = next(pieces, None)
                except StoreError:
                    raise
                except BaseException as error:
                    raise to_job_error(error, operator, []) from error
                if piece is None:
                    break
                if isinstance(piece, RecordBatch):
                    self._chain.emit_from(operator, piece)
                else:
                    self._chain.emit_time_from(operator, piece)
                yield
