"""Stops or kills a job when its program receives SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_HINTS = {
    signal.SIGINT: "stopping the job; press Ctrl-C again to kill it",
    signal.SIGTERM: "stopping the job; a second signal kills it",
}


class StopSignals:
    """Stops a job at the first signal, and kills it at the second.

    Arguments:
        stop: a function that requests the job to stop. It may block.
        kill: a function that kills the job.
        progress: a function that is called with an event when the job is being stopped. If it is
            None, a line is written to standard error instead.
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
        """Whether a second signal has killed the job."""
        return len(self._received) > 1

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM in this block, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with handling_signals(tuple(_HINTS), self._handle):
            yield

    def end_program(self) -> None:
        """End the program if it has received a signal; see `end_program`."""
        end_program(self._received[0] if self._received else None)

    def _handle(self, number: int, _: Any) -> None:
        self._received.append(number)
        if self.killed:
            self._kill()
        else:
            # A thread stops the job, since this handler may have interrupted a send or a print.
            threading.Thread(target=self._begin_to_stop, args=(number,), daemon=True).start()

    def _begin_to_stop(self, number: int) -> None:
        self._stop()
        hint = _HINTS[signal.Signals(number)]
        if self._progress is not None:
            self._progress({"event": "stopping", "text": hint})
        else:
            print(hint, file=sys.stderr, flush=True)


def end_program(number: int | None) -> None:
    """End the program because a signal has stopped its job; do nothing if `number` is None.

    Raises `KeyboardInterrupt` if the signal is SIGINT, and `SystemExit` for any other signal.
    """
    if number is None:
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


@contextmanager
def handling_signals(numbers: Sequence[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle these signals in this block, and restore the former handlers after it.

    A handler that C code has installed, such as a program that embeds Python, is not replaced,
    since Python could not restore it.

    Arguments:
        numbers: the numbers of the signals.
        handler: a function that is called with the signal's number and the interrupted frame.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    restorable = {number: former for number, former in before.items() if former is not None}
    for number in restorable:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in restorable.items():
            signal.signal(number, former)


@contextmanager
def kill_at_second_interrupt(kill: Callable[[], None]) -> Iterator[None]:
    """Call `kill` if a Ctrl-C interrupts this block, which waits for a job to stop.

    If the block is entered because of a first Ctrl-C, a hint is printed on standard error.
    """
    if isinstance(sys.exception(), KeyboardInterrupt):
        print(_HINTS[signal.SIGINT], file=sys.stderr, flush=True)
    try:
        yield
    except KeyboardInterrupt:
        kill()
        raise
