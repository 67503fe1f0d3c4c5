"""Limit the file descriptors that connections without the token can use up.

The job service, JobManagers and workers accept connections through an `Admission`. A connection
must complete the handshake within `HANDSHAKE_SECONDS`. The number of pending handshakes is limited:
at the limit, a new connection closes the oldest pending one. A peer that knows the token completes
the handshake within a few milliseconds. So the server admits it, even while a peer without the
token opens many connections.
"""

from __future__ import annotations

import contextlib
import resource
from collections import deque

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.framing import Frames
from penstock.runtime.control.handshake import server_handshake

#: The time within which a connection must complete the handshake, in seconds.
HANDSHAKE_SECONDS = 10.0
#: The number of parts into which `_expire` divides `HANDSHAKE_SECONDS`.
STEPS = 10
#: The lower and the upper bound of the default limit of pending handshakes.
MIN_PENDING, MAX_PENDING = 16, 256


class Admission:
    """Does the server's part of the handshake for the connections of one listener.

    Arguments:
        token: the secret that both ends know.
        limit: the maximum number of pending handshakes. None means a quarter of the file
            descriptors that this process may open, between `MIN_PENDING` and `MAX_PENDING`.
    """

    def __init__(self, token: bytes, limit: int | None = None) -> None:
        self._token = token
        self._limit = limit
        self._expected = 0
        self._pending: deque[trio.CancelScope] = deque()

    def expect(self, count: int) -> None:
        """Allow `count` more pending handshakes, since workers may connect at the same time."""
        self._expected = count

    async def admit(self, stream: trio.abc.Stream) -> Frames | None:
        """Return the connection after its handshake, or None if the handshake fails.

        Arguments:
            stream: a new connection, from which nothing has been read. The caller closes it.
        """
        limit = self._limit or _quarter_of_descriptors()
        if len(self._pending) >= limit + self._expected:
            self._pending.popleft().cancel()
        scope, frames = trio.CancelScope(), None
        self._pending.append(scope)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_expire, scope)
                # A peer without the token may cause these errors. They must not end this process.
                with scope, contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                    frames = await server_handshake(stream, self._token)
                nursery.cancel_scope.cancel()
        finally:
            with contextlib.suppress(ValueError):
                self._pending.remove(scope)
        return frames


async def _expire(scope: trio.CancelScope) -> None:
    """Cancel a handshake after `HANDSHAKE_SECONDS`.

    A user function may block the event loop, for example while `open` loads a model. Meanwhile this
    process cannot read the answer of the peer. So the time is divided into `STEPS` sleeps: a block
    of any length uses up at most one of them.
    """
    for _ in range(STEPS):
        await trio.sleep(HANDSHAKE_SECONDS / STEPS)
    scope.cancel()


def _quarter_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_PENDING
    return min(MAX_PENDING, max(MIN_PENDING, soft // 4))
