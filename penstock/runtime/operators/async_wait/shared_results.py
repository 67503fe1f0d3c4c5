"""Share results between requests with equal keys."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from penstock.dataflow.async_io import RequestCache
from penstock.runtime.operators.async_wait.request import Request


class SharedResults:
    """The results that are kept, and the requests in flight, by their keys.

    Arguments:
        cache: the settings.
    """

    def __init__(self, cache: RequestCache) -> None:
        self._key: Callable[[Any], Any] = cache.key or _itself
        self._most = cache.max_entries
        self._ttl = math.inf if cache.ttl_ms is None else cache.ttl_ms
        #: The results and the time until which they are valid, by their keys. Those that were used
        #: least recently are first.
        self._kept: OrderedDict[Any, tuple[list[Any], float]] = OrderedDict()
        #: The first request in flight of each key. The others wait for it.
        self._leaders: dict[Any, Request] = {}

    def find(self, request: Request, now: int) -> list[Any] | Request | None:
        """Return the results for a request, or the request in flight with the same key.

        Return None if there is neither. The request is then the one in flight.

        Arguments:
            request: the new request.
            now: the time, in milliseconds since the epoch.
        """
        key = self._key(request.record)
        kept = self._kept.get(key)
        if kept is not None:
            results, until = kept
            if now < until:
                self._kept.move_to_end(key)
                return results
            del self._kept[key]
        leader = self._leaders.get(key)
        if leader is None:
            request.key = key
            self._leaders[key] = request
        return leader

    def keep(self, request: Request, results: list[Any], now: int) -> None:
        """Keep the results of a request that was in flight."""
        self.forget(request)
        if not self._most:
            return
        self._kept[request.key] = results, now + self._ttl
        self._kept.move_to_end(request.key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def forget(self, request: Request) -> None:
        """Note that a request is no longer in flight."""
        if self._leaders.get(request.key) is request:
            del self._leaders[request.key]


def _itself(record: Any) -> Any:
    return record
