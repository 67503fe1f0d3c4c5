"""Share one running server among all tests of a run, also those in other processes.

The first test that needs the server starts a *guard*: a process that runs the server until the
process that owns the run has ended, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from penstock.testing.servers.server import START_SECONDS, Server, ServerError

S = TypeVar("S", bound=Server)


def shared_server(kind: type[S], folder: Path, owner: int) -> S:
    """Return the shared server of a class, and start it if no other test has.

    The result is a view: `stop` and `kill` have no effect on the server.

    Arguments:
        kind: the class of the server.
        folder: a folder that all tests of the run share.
        owner: the id of the process with which the server ends.

    Raises:
        ServerError: if the server does not start.
    """
    if (advice := kind.missing()) is not None:
        raise ServerError(advice)
    place = folder / kind.__name__
    place.mkdir(parents=True, exist_ok=True)
    ready = place / "ready.json"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _start_guard(kind, place, owner)
        found = json.loads(ready.read_text())
    if "error" in found:
        raise ServerError(found["error"])
    return kind(place / "data", found["port"])


def _start_guard(kind: type[Server], place: Path, owner: int) -> None:
    # The guard leaves this process at once, so that this process need not wait for its end.
    command = [sys.executable, "-m", __name__, kind.__module__, kind.__qualname__]
    with (place / "guard.log").open("wb") as log:
        subprocess.run(
            [*command, place, str(owner)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )
    deadline = time.monotonic() + 2 * START_SECONDS
    while not (place / "ready.json").exists():
        if time.monotonic() > deadline:
            raise ServerError((place / "guard.log").read_text(errors="replace")[-2000:])
        time.sleep(0.02)


def _guard(module: str, name: str, place: Path, owner: int) -> None:
    """Run a server until a process has ended."""
    if os.fork():
        os._exit(0)
    unfinished = place / "ready.tmp"
    ending = os.pidfd_open(owner)
    try:
        server: Server = getattr(import_module(module), name)(place / "data")
        with server:
            unfinished.write_text(json.dumps({"port": server.port}))
            unfinished.rename(place / "ready.json")
            select.select([ending], [], [])
    except Exception as error:
        unfinished.write_text(json.dumps({"error": str(error)}))
        unfinished.rename(place / "ready.json")
    shutil.rmtree(place / "data", ignore_errors=True)


if __name__ == "__main__":
    _guard(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
