"""Send heartbeats from a thread, and end the worker when its JobManager has ended.

The event loop cannot send heartbeats, because it does not run while a function of the user
computes. The thread also ensures that a worker does not continue to run after its job has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

from penstock.runtime.control import messages as m
from penstock.runtime.control.framing import send_blocking
from penstock.runtime.control.handshake import AuthenticationError, client_handshake_blocking
from penstock.runtime.system.launcher import EXIT_JOBMANAGER_LOST, WorkerSpec
from penstock.runtime.system.unix_sockets import socket_name

#: The time to wait before the process of a worker without JobManager is ended by force, in seconds.
GRACE_SECONDS = 0.5


def start_heartbeat(spec: WorkerSpec, ended: threading.Event | None = None) -> None:
    """Start the heartbeat thread, which has a separate connection to the JobManager.

    Arguments:
        spec: the specification of the worker.
        ended: an event that is set when the worker has ended but its process continues to run;
            None if the process ends with the worker.
    """
    over = ended or threading.Event()
    threading.Thread(target=_run, args=(spec, over), daemon=True, name="heartbeat").start()


def _run(spec: WorkerSpec, ended: threading.Event) -> None:
    with contextlib.suppress(OSError, AuthenticationError), _connect(spec.address) as connection:
        client_handshake_blocking(connection, spec.token)
        closed = select.poll()
        closed.register(connection, select.POLLIN)
        # The JobManager sends nothing, so the connection is readable only when it has ended.
        while not ended.is_set():
            send_blocking(connection, m.encode(m.Heartbeat(spec.worker, spec.attempt)))
            if closed.poll(spec.heartbeat_seconds * 1000):
                break
    # The event loop usually ends the process in time. It cannot while a function of the user runs.
    if not ended.wait(GRACE_SECONDS):
        os._exit(EXIT_JOBMANAGER_LOST)


def _connect(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(socket_name(rest))
        return connection
    host, _, port = rest.rpartition(":")
    return socket.create_connection((host, int(port)))
