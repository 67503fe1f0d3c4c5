"""Define `PostgresServer`, a PostgreSQL server for tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import ClassVar

from penstock.testing.servers.server import Server, ServerError

#: The settings of the server. Logical replication is on, for change data capture.
_SETTINGS = {
    "wal_level": "logical",
    "max_connections": "200",
    "max_replication_slots": "100",
    "max_wal_senders": "100",
    "unix_socket_directories": "",
    "track_commit_timestamp": "on",
    "shared_buffers": "64MB",
    "log_line_prefix": "%m [%p] %a ",
}
#: Nothing is synced to the disk. A killed server still loses nothing, as the kernel has its writes.
_FAST = {"fsync": "off", "full_page_writes": "off"}
_GONE_SECONDS = 30.0


class PostgresServer(Server):
    """Runs PostgreSQL with logical replication, for tests.

    PostgreSQL refuses to run as root, and another user cannot reach a folder inside of one that
    only root may enter, such as those of pytest. So the server reaches its folder through an open
    file descriptor, which needs no access to the folders above.

    Arguments:
        folder: a folder for the database and its log.
        port: the port on the loopback interface; None for a free one.
        settings: further settings of the server, such as `{"max_slot_wal_keep_size": "16MB"}`.
        fsync: whether to sync to the disk, for tests that measure.

    Examples:
        >>> with PostgresServer("database") as server:  # doctest: +SKIP
        ...     connection = psycopg.connect(server.create_database())
    """

    program = "postgres"
    package = "apt-get install postgresql"
    # The "fast" way to stop: connections are ended, and the server does not wait for them.
    stop_signal = signal.SIGINT
    run_as = "postgres"

    #: Where Debian has the programs of PostgreSQL, which are not in the path.
    _places: ClassVar[str] = "/usr/lib/postgresql"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        port: int | None = None,
        settings: dict[str, str] | None = None,
        fsync: bool = False,
    ) -> None:
        super().__init__(folder, port)
        self.settings = _SETTINGS | ({} if fsync else _FAST) | (settings or {})

    @classmethod
    def executable(cls) -> str | None:
        """Return the path of the newest installed server, or None."""
        found = [
            path for path in Path(cls._places).glob("*/bin/postgres") if os.access(path, os.X_OK)
        ]
        if found:
            return str(max(found, key=lambda path: float(path.parts[-3])))
        return super().executable()

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        settings = {"listen_addresses": self.host, "port": str(self.port), **self.settings}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self._inside("postgres", *options)

    def prepare(self) -> None:
        """Create the database, if there is none yet."""
        if (self.folder / "data" / "PG_VERSION").exists():
            return
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
        result = subprocess.run(
            self._inside("initdb", *options, "--no-sync", "--no-instructions"),
            cwd=self.folder,
            user=self.run_as if os.geteuid() == 0 else None,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            raise ServerError(f"initdb failed: {result.stderr.strip()}")

    def _inside(self, program: str, *arguments: str) -> list[str]:
        """Return a command that finds the folder `data` by a descriptor of the current folder."""
        path = Path(self.executable() or program).with_name(program)
        script = 'exec 9<. && exec "$0" -D /proc/self/fd/9/data "$@"'
        return ["/bin/sh", "-c", script, str(path), *arguments]

    def is_ready(self) -> bool:
        """Return whether the server takes connections. During its recovery it does not."""
        import psycopg

        try:
            psycopg.connect(self.conninfo(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def conninfo(self, database: str = "postgres") -> str:
        """Return the connection string of a database, for the superuser."""
        return f"host={self.host} port={self.port} user=postgres dbname={database}"

    def create_database(self, prefix: str = "test") -> str:
        """Create an empty database with a new name, and return its connection string."""
        import psycopg

        name = f"{re.sub(r'[^a-z0-9_]+', '_', prefix.lower())[:40]}_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.conninfo(name)

    def kill(self) -> None:
        """Kill the server and the processes of its connections, as a crash of the machine does."""
        # Each of them has a session of its own, so the signal for the group does not reach them.
        children = self._children()
        super().kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        # Until they are gone, a new server finds their shared memory in use.
        deadline = time.monotonic() + _GONE_SECONDS
        while any(map(_runs, children)) and time.monotonic() < deadline:
            time.sleep(0.01)

    def pause(self) -> None:
        """Stop the processes of the server, so that connections stay and nothing answers."""
        super().pause()
        self._signal_children(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes of a paused server go on."""
        self._signal_children(signal.SIGCONT)
        super().resume()

    def stop(self) -> None:
        """End the server in order."""
        self._signal_children(signal.SIGCONT)
        super().stop()

    def _signal_children(self, number: int) -> None:
        for child in self._children():
            # A connection may end at any time, and its process with it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def _children(self) -> list[int]:
        pid = self.pid
        if pid is None:
            return []
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(part) for part in text.split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
