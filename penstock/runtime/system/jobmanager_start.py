"""Start JobManagers: as new processes, or as forks of a process that has imported the runtime.

A new interpreter needs 0.3 s of processor time to import what a JobManager needs, and the fork
server of the JobManager 0.1 s for what workers need. A program that executes a second job is likely
to execute more, as notebooks and tests do. So it starts a process that imports all of this once
(`penstock.runtime.jobmanager.forks`), and lets it fork the JobManagers. A program with one job has
no such process. The job service has one from its start on.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from penstock.runtime.system.children import child_command
from penstock.runtime.system.fork_requests import ask
from penstock.runtime.system.limits import how_ended
from penstock.runtime.system.surroundings import read_at_start, surroundings

logger = logging.getLogger("penstock.jobmanager")


@dataclass(frozen=True)
class JobManagerStart:
    """Describes the start of a JobManager process.

    Arguments:
        words: its first arguments.
        descriptors: file descriptors that it inherits. Their numbers are its last arguments.
        output: the file for its standard output and error; None for those of this process.
        folder: its working directory; None for that of this process.
        environment: its environment; None for that of this process.
    """

    words: Sequence[str]
    descriptors: Sequence[int]
    output: Any = None
    folder: str | None = None
    environment: Mapping[str, str] | None = None


class JobManagerHandle:
    """A handle to a JobManager process that this program has started.

    Arguments:
        pid: the process id.
        exit_code: waits for the exit code of the process, or the negative number of the signal that
            ended it, and returns it; None if it is not known. Until then the kernel keeps the
            process id, so that a signal never reaches another process.
    """

    def __init__(self, pid: int, exit_code: Callable[[], int | None]) -> None:
        self.pid = pid
        #: A file descriptor that is readable when the process has ended.
        self.descriptor = os.pidfd_open(pid)
        self._find_exit_code = exit_code
        self._known = False
        self._exit_code: int | None = None
        self._lock = threading.Lock()

    def running(self) -> bool:
        """Return whether the process has not ended."""
        if self._poll(0):
            self.end()
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to the process, or do nothing if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def end(self) -> tuple[int | None, str]:
        """Wait until the process has ended, and return its exit code and a text about the end.

        The code is None if it is not known.
        """
        self._poll(None)
        with self._lock:
            if not self._known:
                self._exit_code, self._known = self._find_exit_code(), True
        code = self._exit_code
        return code, "has ended" if code is None else how_ended(code)

    def _poll(self, milliseconds: int | None) -> bool:
        """Return whether the process ends within a time; None waits until it has ended."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def __del__(self) -> None:
        os.close(self.descriptor)


class ForkFailedError(Exception):
    """Raised if the process that forks JobManagers is gone."""


class _Forks:
    """The connection to the process that forks JobManagers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: What of the environment a fork would not read again.
        self._read_at_start = read_at_start(os.environ)
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                child_command("penstock.runtime.jobmanager.forks", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a fork is like a new process, which reads the environment at its start."""
        return self._read_at_start == read_at_start(environment)

    def fork(self, start: JobManagerStart) -> JobManagerHandle:
        """Fork a JobManager. Raise `ForkFailedError` if the process that forks is gone."""
        with ExitStack() as stack:
            place = os.open(start.folder or ".", os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, place)
            go, permit = os.pipe()
            # Without the permit, such as after an error here, the fork ends at once.
            stack.callback(os.close, permit)
            stack.callback(os.close, go)
            outputs = (1, 2) if start.output is None else (start.output.fileno(),) * 2
            files = [go, place, *outputs, *start.descriptors]
            try:
                pid = self._ask(["fork", surroundings(start.environment), [*start.words]], files)
                handle = JobManagerHandle(pid, lambda: self._exit_code(pid))
            except OSError as error:
                raise ForkFailedError(str(error)) from error
            os.write(permit, b"1")
            return handle

    def _exit_code(self, pid: int) -> int | None:
        with suppress(OSError):
            return os.waitstatus_to_exitcode(self._ask(["status", pid]))
        return None

    def _ask(self, request: list[Any], files: Sequence[int] = ()) -> int:
        with self._lock:
            try:
                return ask(self._connection, request, files)
            except BaseException:
                # The answer may still come, and must not be taken for that to the next request.
                self._connection.close()
                raise

    def close(self) -> None:
        """End the process, but not those that it has forked."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class JobManagerStarter:
    """Starts the JobManagers of one program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._forks: _Forks | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def expect(self) -> None:
        """Prepare to fork all JobManagers, also the first one."""
        with self._lock:
            self._forks = self._forks or _Forks()

    def start(self, start: JobManagerStart) -> JobManagerHandle:
        """Start a JobManager. Raise `OSError` if that fails."""
        with self._lock:
            if self._count and self._forks is None:
                self._forks = _Forks()
            self._count += 1
            forks = self._forks
        environment = os.environ if start.environment is None else start.environment
        if forks is not None and forks.suits(environment):
            try:
                return forks.fork(start)
            except ForkFailedError as error:
                logger.warning("the JobManager is a new process and no fork: %s", error)
                self._drop(forks)
        return _start_child(start)

    def close(self) -> None:
        """End the process that forks, but no JobManager. The next job is the first one again."""
        self._count = 0
        if self._forks is not None:
            self._drop(self._forks)

    def _drop(self, forks: _Forks) -> None:
        with self._lock:
            if self._forks is forks:
                self._forks = None
        forks.close()

    def _forget(self) -> None:
        """Begin as a new program in a forked child of this one."""
        self._lock = threading.Lock()
        self._count = 0
        self._forks = None


def _start_child(start: JobManagerStart) -> JobManagerHandle:
    """Start a JobManager as a new process. Raise `OSError` if that fails."""
    module = "penstock.runtime.jobmanager.process"
    process = subprocess.Popen(
        child_command(module, *start.words, *map(str, start.descriptors)),
        stdin=subprocess.DEVNULL,
        stdout=start.output,
        stderr=start.output,
        pass_fds=start.descriptors,
        # A Ctrl-C at the terminal must reach only this process, which stops the job.
        start_new_session=True,
        cwd=start.folder,
        env=start.environment,
    )
    return JobManagerHandle(process.pid, process.wait)


#: That of this process.
jobmanager_starter = JobManagerStarter()
