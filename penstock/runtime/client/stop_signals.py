"""What SIGINT and SIGTERM do to a program whose job runs: stop the job, or kill it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["StopSignals", "kill_at_second_interrupt"]

_HINTS = {
    signal.SIGINT: "stopping the job; press Ctrl-C again to kill it",
    signal.SIGTERM: "stopping the job; a second signal kills it",
}


class StopSignals:
    """Stops a job at the first signal, and kills it at the second.

    Arguments:
        stop: asks the job to stop; may block.
        kill: kills it.
        progress: is called with an event when the job is being stopped; None writes a line to
            standard error.
    """

    def __init__(
        self,
        stop: Callable[[], None],
        kill: Callable[[], None],
        progress: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self._stop = stop
        self._kill = kill
        self._progress = progress
        self._received: list[int] = []

    @property
    def killed(self) -> bool:
        """Whether the job was killed."""
        return len(self._received) > 1

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in this block, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _HINTS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end_program(self) -> None:
        """Let the first signal do what it does to any program; nothing if there was none."""
        if not self._received:
            return
        if self._received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self._received[0])

    def _handle(self, number: int, _: Any) -> None:
        self._received.append(number)
        if self.killed:
            self._kill()
        else:
            # Not in the handler itself, which may have interrupted a send or a print.
            threading.Thread(target=self._begin_to_stop, args=(number,), daemon=True).start()

    def _begin_to_stop(self, number: int) -> None:
        self._stop()
        hint = _HINTS[signal.Signals(number)]
        if self._progress is not None:
            self._progress({"event": "stopping", "text": hint})
        else:
            print(hint, file=sys.stderr, flush=True)


@contextmanager
def kill_at_second_interrupt(kill: Callable[[], None]) -> Iterator[None]:
    """Call `kill` if a Ctrl-C interrupts this block, in which a job is waited for.

    The first one may have led to this block; then it is answered.
    """
    if isinstance(sys.exception(), KeyboardInterrupt):
        print(_HINTS[signal.SIGINT], file=sys.stderr, flush=True)
    try:
        yield
    except KeyboardInterrupt:
        kill()
        raise
