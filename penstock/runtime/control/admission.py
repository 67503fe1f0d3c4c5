"""Admission of connections: peers without the token must not use up a process's descriptors.

The job service, JobManagers and workers accept connections through an `Admission`. A connection
has `HANDSHAKE_SECONDS` to complete the handshake, and the number of pending handshakes is limited:
the oldest one is closed for a new one. A peer that knows the token needs a few milliseconds, so it
is admitted however many other connections are opened.
"""

from __future__ import annotations

import contextlib
import resource
from collections import deque

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import server_handshake

__all__ = ["HANDSHAKE_SECONDS", "Admission"]

#: The time within which a connection must complete the handshake.
HANDSHAKE_SECONDS = 10.0
#: The number of steps in which that time is counted; see `_expire`.
STEPS = 10
#: The limits of the number of pending handshakes.
MIN_PENDING, MAX_PENDING = 16, 256


class Admission:
    """Does the handshakes of one listener's connections.

    Arguments:
        token: the secret that both ends know.
        limit: the maximum number of pending handshakes; None takes a quarter of the descriptors
            that this process may have.
    """

    def __init__(self, token: bytes, limit: int | None = None) -> None:
        self._token = token
        self._limit = limit
        self._expected = 0
        self._pending: deque[trio.CancelScope] = deque()

    def expect(self, count: int) -> None:
        """Raise the limit by `count` processes of the job that may all connect at once."""
        self._expected = count

    async def admit(self, stream: trio.abc.Stream) -> Frames | None:
        """Return the connection after its handshake; None if that fails.

        Arguments:
            stream: a connection that was just accepted. The caller closes it.
        """
        limit = self._limit or _quarter_of_descriptors()
        if len(self._pending) >= limit + self._expected:
            self._pending.popleft().cancel()
        scope, frames = trio.CancelScope(), None
        self._pending.append(scope)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_expire, scope)
                # A peer without the token may do anything; that is no failure of this process.
                with scope, contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                    frames = await server_handshake(stream, self._token)
                nursery.cancel_scope.cancel()
        finally:
            with contextlib.suppress(ValueError):
                self._pending.remove(scope)
        return frames


async def _expire(scope: trio.CancelScope) -> None:
    """Cancel a handshake when its time is over.

    A user function may hold the event loop, such as an `open` that loads a model, and then no
    answer is read. That time does not count: it makes only one of the steps longer.
    """
    for _ in range(STEPS):
        await trio.sleep(HANDSHAKE_SECONDS / STEPS)
    scope.cancel()


def _quarter_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_PENDING
    return min(MAX_PENDING, max(MIN_PENDING, soft // 4))
