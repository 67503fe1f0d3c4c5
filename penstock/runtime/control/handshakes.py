"""Admission of connections: strangers must not use up the descriptors of a process.

The job service, JobManagers and workers all accept connections through this. A connection has
`HANDSHAKE_SECONDS` to prove that it knows the token, and the number of those that have not yet
is limited: for a new one the oldest is closed. A peer that knows the token needs a few
milliseconds, so it gets in between any number of strangers.
"""

from __future__ import annotations

import contextlib
import resource
from collections import deque

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.control.framing import Frames, server_handshake

__all__ = ["HANDSHAKE_SECONDS", "Handshakes"]

#: A connection must prove within this time that it knows the token.
HANDSHAKE_SECONDS = 10.0
#: The number of steps in which that time is counted.
STEPS = 10
#: Bounds of the number of connections that have not proved it.
FEWEST, MOST = 16, 256


class Handshakes:
    """The connections of one listener that have not proved themselves.

    Arguments:
        token: the secret that both ends know.
        limit: how many of them there may be; None takes a quarter of the descriptors that this
            process may have.
    """

    def __init__(self, token: bytes, limit: int | None = None) -> None:
        self._token = token
        self._limit = limit
        self._expected = 0
        self._pending: deque[trio.CancelScope] = deque()

    def expect(self, count: int) -> None:
        """Leave room for `count` processes of the job that may all connect at the same time."""
        self._expected = count

    async def admit(self, stream: trio.abc.Stream) -> Frames | None:
        """Return the connection once it has proved itself; None if it does not, or breaks.

        The caller closes the stream.
        """
        limit = self._limit or _quarter_of_descriptors()
        if len(self._pending) >= limit + self._expected:
            self._pending.popleft().cancel()
        scope, frames = trio.CancelScope(), None
        self._pending.append(scope)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_expire, scope)
                # A stranger's behaviour is no failure of this process.
                with scope, contextlib.suppress(PenstockError, trio.BrokenResourceError, OSError):
                    frames = await server_handshake(stream, self._token)
                nursery.cancel_scope.cancel()
        finally:
            with contextlib.suppress(ValueError):
                self._pending.remove(scope)
        return frames


async def _expire(scope: trio.CancelScope) -> None:
    """Cancel a handshake when its time is over.

    While a function computes, such as an `open` that loads a model, the event loop stands still and
    no answer is read. That time does not count: it makes one of the steps longer.
    """
    for _ in range(STEPS):
        await trio.sleep(HANDSHAKE_SECONDS / STEPS)
    scope.cancel()


def _quarter_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return min(MOST, max(FEWEST, soft // 4))
