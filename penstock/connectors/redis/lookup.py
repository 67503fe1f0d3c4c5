"""Look up keys of Redis for the records of a stream: `RedisLookup`."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal

from penstock.connectors.patience import Patience
from penstock.connectors.redis.connection import RedisConnection
from penstock.dataflow.async_io.async_function import AsyncFunction
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.functions import RuntimeContext
from penstock.dataflow.type_variables import IN_contra, OUT_co

#: How many keys are looked up with one request.
_LARGEST_REQUEST = 500
_COMMANDS = {"string": "GET", "hash": "HGETALL"}
NUM_CACHE_HITS = "numCacheHits"
NUM_CACHE_MISSES = "numCacheMisses"


class RedisLookup(AsyncFunction[IN_contra, OUT_co], Generic[IN_contra, OUT_co]):
    """Joins each record with the value that a key has in Redis.

    Pass it to `AsyncDataStream.ordered_wait` or `unordered_wait`. Keys that are requested at the
    same time go to the server in one request, and values stay in a cache for a while. The result of
    a lookup depends on its time: after a failure, it may be another one.

    Arguments:
        key: returns the key of a record, without `prefix`; None if there is nothing to look up.
        join: returns the record to emit, given the record and the value of its key: a str, a dict
            of str for a hash, or None if there is no such key.
        connection: the URL of the server, or a `RedisConnection`.
        value: the type of the values: "string" or "hash".
        prefix: the beginning of all keys.
        cache_records: the number of keys in the cache of each subtask; 0 is no cache.
        cache_seconds: how long a value is kept, in seconds.
        decode: returns the value to join, given a value in Redis as bytes. By default, it is
            decoded as text.
        patience_seconds: how long to try to reach the server, before the job restarts and tries
            again. The time-out of `AsyncDataStream` may end a request earlier.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> from penstock.connectors.redis import RedisLookup
        >>> lookup = RedisLookup(
        ...     lambda order: f"product:{order['product']}",
        ...     lambda order, product: {**order, "price": product and product["price"]},
        ...     value="hash",
        ... )
        >>> orders = env.from_collection([{"product": "tea"}])
        >>> priced = AsyncDataStream.ordered_wait(orders, lookup, Time.seconds(30), 1000)
    """

    def __init__(
        self,
        key: Callable[[IN_contra], str | None],
        join: Callable[[IN_contra, Any], OUT_co],
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        value: Literal["string", "hash"] = "string",
        prefix: str = "",
        cache_records: int = 10_000,
        cache_seconds: float = 60.0,
        decode: Callable[[bytes], Any] = bytes.decode,
        patience_seconds: float = 60.0,
    ) -> None:
        if value not in _COMMANDS:
            raise GraphError(f'the value of a RedisLookup is "string" or "hash", and got {value!r}')
        if cache_records < 0 or cache_seconds < 0:
            raise GraphError("cache_records and cache_seconds of a RedisLookup are not negative")
        self.key, self.join = key, join
        self.connection = RedisConnection.of(connection)
        self.value, self.prefix, self.decode = value, prefix, decode
        self.cache_records, self.cache_seconds = cache_records, cache_seconds
        self.patience_seconds = patience_seconds

    def open(self, runtime_context: RuntimeContext) -> None:
        """Make a client in the event loop of the requests."""
        metrics = runtime_context.get_metrics_group()
        self._hits = metrics.counter(NUM_CACHE_HITS)
        self._misses = metrics.counter(NUM_CACHE_MISSES)
        self._client = self.connection.async_client()
        #: Values by key, with the time until which each is kept; the oldest one first.
        self._cache: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._waiting: list[str] = []
        self._requests: set[asyncio.Task[None]] = set()

    async def async_invoke(self, value: IN_contra) -> Iterable[OUT_co]:
        """Return the record that `join` makes."""
        key = self.key(value)
        return [self.join(value, None if key is None else await self._find(self.prefix + key))]

    async def close(self) -> None:  # type: ignore[override]  # an AsyncFunction may do this
        """Close the connections."""
        for request in list(self._requests):
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._client.aclose()

    async def _find(self, key: str) -> Any:
        cached = self._cache.get(key)
        if cached is not None and cached[0] > time.monotonic():
            self._hits.inc()
            return cached[1]
        future = self._asked.get(key)
        if future is None:
            self._misses.inc()
            loop = asyncio.get_running_loop()
            future = self._asked[key] = loop.create_future()
            if not self._waiting:
                loop.call_soon(self._send)
            self._waiting.append(key)
        # Other records may wait for the same key, so a time-out of this one must not cancel it.
        return await asyncio.shield(future)

    def _send(self) -> None:
        keys, self._waiting = self._waiting, []
        for first in range(0, len(keys), _LARGEST_REQUEST):
            request = asyncio.ensure_future(self._request(keys[first : first + _LARGEST_REQUEST]))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _request(self, keys: list[str]) -> None:
        futures = [self._asked[key] for key in keys]
        try:
            answers = await self._ask(keys)
            values = list(map(self._decoded, keys, answers))
        except BaseException as error:
            for key, future in zip(keys, futures, strict=True):
                self._asked.pop(key, None)
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                elif not future.done():
                    future.set_exception(error)
                    future.exception()  # if its record has timed out, no task asks for it
            if not isinstance(error, Exception):
                raise
            return
        for key, future, value in zip(keys, futures, values, strict=True):
            self._asked.pop(key, None)
            self._keep(key, value)
            if not future.done():
                future.set_result(value)

    async def _ask(self, keys: list[str]) -> list[Any]:
        patience, command = Patience(self.connection, self.patience_seconds), _COMMANDS[self.value]
        while True:
            pipeline = self._client.pipeline(transaction=False)
            try:
                for key in keys:
                    pipeline.execute_command(command, key)
                answers: list[Any] = await pipeline.execute()
                patience.succeeded()
                return answers
            except Exception as error:
                await asyncio.sleep(patience.after(error, f"look up keys such as {keys[0]!r}"))

    def _decoded(self, key: str, answer: Any) -> Any:
        try:
            if self.value == "hash":
                return {name.decode(): self.decode(one) for name, one in answer.items()} or None
            return None if answer is None else self.decode(answer)
        except Exception as error:
            raise JobError(
                f"the value of the key {key!r} at {self.connection.place} cannot be decoded: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _keep(self, key: str, value: Any) -> None:
        if not self.cache_records:
            return
        self._cache[key] = (time.monotonic() + self.cache_seconds, value)
        self._cache.move_to_end(key)
        while len(self._cache) > self.cache_records:
            self._cache.popitem(last=False)
