"""Handle a Ctrl-C while the event loop runs inside the program's own thread.

Python raises `KeyboardInterrupt` wherever the thread is. In a step of the event loop itself that
would break the loop. Between two steps, or in a function that the engine calls, it does not.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio

from penstock.runtime.client import stop_signals

__all__ = ["in_called_function", "in_event_loop", "interrupted_between_steps"]

_PENSTOCK = str(Path(__file__).parents[2])
_TRIO = str(Path(trio.__file__).parent)
#: Where the handlers of signals are: this package, and the client's module.
_HANDLERS = (str(Path(__file__).parent) + os.sep, stop_signals.__file__)


@contextmanager
def interrupted_between_steps(add_step: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Let a Ctrl-C interrupt this block, which runs steps of the event loop.

    The interrupt is raised after the current step. A second one also interrupts a function that the
    engine calls. The block is left alone in other threads, and where the program has a handler of
    its own.

    Arguments:
        add_step: queues a callable as a step.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    received = 0

    def interrupt() -> None:
        raise KeyboardInterrupt

    def handle(*_: object) -> None:
        nonlocal received
        received += 1
        add_step(interrupt)
        if received > 1 and in_called_function():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def in_event_loop() -> bool:
    """Return whether the caller runs inside an event loop of the program."""
    asyncio = sys.modules.get("asyncio")
    in_asyncio = asyncio is not None and asyncio._get_running_loop() is not None
    return in_asyncio or trio.lowlevel.in_trio_run()


def in_called_function() -> bool:
    """Return whether the current signal has interrupted a function of the program.

    An exception may be raised there.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HANDLERS):
        frame = frame.f_back
    called_by_engine = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TRIO):
            return called_by_engine
        called_by_engine = called_by_engine or name.startswith(_PENSTOCK)
        frame = frame.f_back
    return False
