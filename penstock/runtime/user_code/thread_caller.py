"""Call plain functions one after the other, in one thread of the worker.

Some libraries want all calls from one thread: models, database connections, libraries in C. The
thread also runs `open` and `close`, so that what they create belongs to it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import trio

from penstock.runtime.user_code.async_caller import Outcome, outcome_of

logger = logging.getLogger("penstock")

#: The longest time for a call to end when the worker ends, in seconds.
CLOSE_SECONDS = 5.0


class OneThreadCaller:
    """Calls plain functions in one thread. (Implements `AsyncCaller`.)

    A call that is cancelled while it runs goes on, and the calls behind it wait. A call that is
    cancelled before never runs.
    """

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._jobs: SimpleQueue[tuple[Context, Callable[[], None]] | None] = SimpleQueue()
        self._outcomes: deque[tuple[Callable[[Outcome], None], Outcome]] = deque()
        #: Set if the call that runs was cancelled.
        self._current = threading.Event()
        self._thread = threading.Thread(target=self._work, name="penstock-calls", daemon=True)
        self._thread.start()

    # ---- in the worker's event loop

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Call a plain function with a value; see `AsyncCaller`."""
        cancelled = threading.Event()

        def job() -> None:
            if not cancelled.is_set():
                self._current = cancelled
                self._outcomes.append((done, outcome_of(function, value)))
                try:
                    self._token.run_sync_soon(self._deliver, idempotent=True)
                except trio.RunFinishedError:
                    pass  # the worker has ended

        self._jobs.put((copy_context(), job))
        return cancelled.set

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a plain function in the thread, and wait for it.

        Do not wait longer for a call that was cancelled and does not end.
        """
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        call = partial(outcome_of, lambda _: function(*arguments), None)
        self._jobs.put((copy_context(), lambda: outcomes.put(call())))
        while True:
            try:
                error = outcomes.get(timeout=CLOSE_SECONDS).error
            except Empty:
                if not self._current.is_set():
                    continue
                logger.warning("a call that has timed out still runs: %r is left out", function)
                return
            if error is not None:
                raise error
            return

    def close(self) -> None:
        """End the thread behind the calls that it has."""
        self._jobs.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _deliver(self) -> None:
        while self._outcomes:
            done, outcome = self._outcomes.popleft()
            done(outcome)

    # ---- in the thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            context, function = job
            context.run(function)
