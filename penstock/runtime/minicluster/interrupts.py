"""Handle a Ctrl-C while the event loop runs inside the program's own thread.

By default, Python raises `KeyboardInterrupt` in whatever code the thread runs. If that is the event
loop itself, the loop breaks. So this module raises the exception only between two steps of the
loop, or in a function of the program that the engine calls.
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
#: The paths of the code with signal handlers: this folder, and the client's `stop_signals` module.
_HANDLERS = (str(Path(__file__).parent) + os.sep, stop_signals.__file__)


@contextmanager
def interrupted_between_steps(add_step: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Let a Ctrl-C interrupt this block, which runs steps of the event loop.

    The first Ctrl-C raises `KeyboardInterrupt` after the current step. A second Ctrl-C also
    interrupts a function that the engine calls. Nothing is changed in threads other than the main
    thread, or if the program has its own handler of SIGINT.

    Arguments:
        add_step: a function that adds a callable to the queue of steps.
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
    """Return whether the caller runs inside an event loop of asyncio or trio."""
    asyncio = sys.modules.get("asyncio")
    in_asyncio = asyncio is not None and asyncio._get_running_loop() is not None
    return in_asyncio or trio.lowlevel.in_trio_run()


def in_called_function() -> bool:
    """Return whether the current signal has interrupted a function of the program.

    If so, the signal handler may raise an exception without breaking the event loop.
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
