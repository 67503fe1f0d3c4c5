"""The process from which a program or the service forks JobManagers.

It has imported the runtime, and it has one thread and no event loop. It never runs code of a user.
So a JobManager begins as in a new interpreter. See `penstock.runtime.system.jobmanager_start`.
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
from functools import partial
from importlib import import_module
from typing import Any

from penstock.runtime.jobmanager import process
from penstock.runtime.system.fork_requests import answer, receive_request
from penstock.runtime.system.fork_server import ends_here
from penstock.runtime.system.surroundings import enter


def main() -> None:
    """Fork JobManagers until the program has ended.

    The argument is the file descriptor of a socket that is connected to the program.
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    # With the modules of workers, the fork servers of the JobManagers need not import them.
    import_module(process.WORKER_MODULE)
    gc.freeze()
    while (received := receive_request(connection)) is not None:
        request, files = received
        match request:
            case ["fork", around, words]:
                number = os.fork()
                if number == 0:
                    connection.close()
                    ends_here(partial(_run, around, words, *files))
            case ["status", pid]:
                _, number = os.waitpid(pid, 0)
        for descriptor in files:
            os.close(descriptor)
        answer(connection, number)


def _run(
    around: list[Any],
    words: list[str],
    go: int,
    folder: int,
    output: int,
    errors: int,
    *descriptors: int,
) -> None:
    """Become a JobManager.

    Arguments:
        around: the surroundings of the program.
        words: the first arguments of the process.
        go: the end of a pipe. If the program does not write to it, it has started another process
            instead, or has ended.
        folder: the working directory of the JobManager.
        output: its standard output.
        errors: its standard error.
        descriptors: the file descriptors that it inherits.
    """
    if not os.read(go, 1):
        return
    # A Ctrl-C at the terminal must reach only the program, which stops the job.
    os.setsid()
    # First of all, since the program must see the errors of the rest.
    os.dup2(output, 1)
    os.dup2(errors, 2)
    enter(around)
    os.fchdir(folder)
    # As in a new process, a line that a function prints appears at once on a terminal.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
    for descriptor in (go, folder, output, errors):
        os.close(descriptor)
    sys.argv[1:] = [*words, *map(str, descriptors)]
    process.main()
