"""Define `Server`, a server program that runs on this machine for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

#: The time that a server has to answer, in seconds. It is for a machine that stops for a while.
START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02


class ServerError(Exception):
    """Raised if a server does not start. The message has the end of its log."""


class Server(ABC):
    """Runs one server program. Used as a context manager, it starts and stops the server.

    A server keeps its port and its folder when it is stopped or killed, so that `start` brings it
    back with its data.

    Arguments:
        folder: a folder for its data and its log. It is created if it does not exist.
        port: the port on the loopback interface; None for a free one.

    Attributes:
        program: the name of the program.
        package: how to install the program, for the message if it is missing.
        stop_signal: the signal after which the program ends in order.
        run_as: the user to run as, if this process is run by root; None for the same user.
    """

    program: ClassVar[str]
    package: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    run_as: ClassVar[str | None] = None

    def __init__(self, folder: str | os.PathLike[str], port: int | None = None) -> None:
        self.folder = Path(folder)
        self.host = "127.0.0.1"
        self.port = free_port() if port is None else port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The host and the port, with a colon between them."""
        return f"{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        """The file with all that the program has printed."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if the server does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @classmethod
    def executable(cls) -> str | None:
        """Return the path of the program, or None if it is not installed."""
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
        return shutil.which(cls.program, path=path)

    @classmethod
    def missing(cls) -> str | None:
        """Return what to do if the program is not installed, or None if it is."""
        if cls.executable() is not None:
            return None
        return f"{cls.program} is not installed: {cls.package}"

    @abstractmethod
    def command(self) -> list[str]:
        """Return the program and its arguments."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server answers. It may raise an `OSError` if it does not."""

    def prepare(self) -> None:
        """Write the files that the program needs. It is called before each start."""

    def start(self) -> Self:
        """Start the server, and wait until it answers.

        Raises:
            ServerError: if the program is missing, ends at once, or does not answer.
        """
        if (advice := self.missing()) is not None:
            raise ServerError(advice)
        self.folder.mkdir(parents=True, exist_ok=True)
        user = self.run_as if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(self.folder, user)
        self.prepare()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None:
                self._process = None
                raise ServerError(f"{self.program} ended at once: {self._end_of_log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"{self.program} does not answer: {self._end_of_log()}")
            time.sleep(_POLL_SECONDS)
        return self

    def stop(self) -> None:
        """End the server in order. Nothing happens if it does not run."""
        self._signal(signal.SIGCONT)
        self._signal(self.stop_signal)
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """Kill the server and its child processes, as a crash of the machine does."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop the processes of the server, so that connections stay and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes of a paused server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            return self.is_ready()
        except OSError:
            return False

    def _end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-2000:].strip() or "it has printed nothing"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a port of the loopback interface that no program listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a program listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False
