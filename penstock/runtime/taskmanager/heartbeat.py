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
import time
from enum import Enum

from penstock.runtime.control import messages as m
from penstock.runtime.control.framing import send_blocking
from penstock.runtime.control.handshake import AuthenticationError, client_handshake_blocking
from penstock.runtime.system.launcher import (
    EXIT_JOBMANAGER_LOST,
    REJOIN_PAUSE_SECONDS,
    WorkerSpec,
)
from penstock.runtime.system.unix_sockets import socket_name

#: The time to wait before the process of a worker without JobManager is ended by force, in seconds.
GRACE_SECONDS = 0.5


class _Outcome(Enum):
    """How a connection for heartbeats has ended.

    LOST and UNANSWERED mean that its JobManager has died: after the handshake, or before. OVER
    means that the worker must end: the JobManager has ordered this, or no process listens any more.
    """

    LOST = "lost"
    UNANSWERED = "unanswered"
    OVER = "over"


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
    outcome, until = _send_heartbeats(spec, ended, spec.address, spec.token), 0.0
    while spec.rejoin_address is not None and not ended.is_set():
        # The event loop offers the tasks to the next JobManager meanwhile.
        if outcome is _Outcome.LOST:
            until = time.monotonic() + spec.rejoin_seconds
        elif outcome is _Outcome.OVER or time.monotonic() >= until:
            break
        else:
            ended.wait(REJOIN_PAUSE_SECONDS)
        outcome = _send_heartbeats(
            spec,
            ended,
            spec.rejoin_address,
            spec.rejoin_token,
            max(REJOIN_PAUSE_SECONDS, until - time.monotonic()),
        )
    # The event loop usually ends the process in time. It cannot while a function of the user runs.
    if not ended.wait(GRACE_SECONDS):
        os._exit(EXIT_JOBMANAGER_LOST)


def _send_heartbeats(
    spec: WorkerSpec,
    ended: threading.Event,
    address: str,
    token: bytes,
    handshake_seconds: float | None = None,
) -> _Outcome:
    """Send heartbeats to one JobManager until its connection has ended."""
    outcome = _Outcome.OVER
    with contextlib.suppress(OSError, AuthenticationError), _connect(address) as connection:
        outcome = _Outcome.UNANSWERED
        connection.settimeout(handshake_seconds)
        client_handshake_blocking(connection, token)
        connection.settimeout(None)
        outcome = _Outcome.LOST
        closed = select.poll()
        closed.register(connection, select.POLLIN)
        # The connection is readable only when it has ended, or if the worker must end.
        while not ended.is_set():
            send_blocking(connection, m.encode(m.Heartbeat(spec.worker, spec.attempt)))
            if closed.poll(spec.heartbeat_seconds * 1000):
                return _Outcome.OVER if connection.recv(1) else _Outcome.LOST
    return outcome


def _connect(address: str) -> socket.socket:
    kind, _, rest = address.partition(":")
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(socket_name(rest))
        return connection
    host, _, port = rest.rpartition(":")
    return socket.create_connection((host, int(port)))
