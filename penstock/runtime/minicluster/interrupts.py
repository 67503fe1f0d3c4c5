"""Handle a Ctrl-C while the event loop runs inside the program's own thread.

By default, Python raises `KeyboardInterrupt` at the line that the thread is executing. If this line
is in the event loop itself, the loop breaks. So this module raises the exception only between two
steps of the loop, or in a function of the program that the engine has called.
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

_PENSTOCK = str(Path(__file__).parents[2])
_TRIO = str(Path(trio.__file__).parent)
#: The paths of the code that handles signals: this folder and the module `stop_signals`.
_HANDLERS = (str(Path(__file__).parent) + os.sep, stop_signals.__file__)


@contextmanager
def interrupted_between_steps(add_step: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Handle a Ctrl-C while the block runs steps of the event loop.

    The first Ctrl-C raises `KeyboardInterrupt` after the current step. A second Ctrl-C also
    interrupts a function that the engine has called. The context manager does nothing outside the
    main thread, or if the program has installed its own handler of SIGINT.

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
    """Return whether the signal interrupted a function that the engine has called.

    In this case, the signal handler may raise an exception without breaking the event loop.
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
