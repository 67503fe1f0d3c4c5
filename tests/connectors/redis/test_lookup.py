"""Lookups join records with values, in few requests, and outlive a restart of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncDataStream, MetricGroup, StreamExecutionEnvironment, Time
from penstock.connectors.redis import RedisLookup
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.testing.servers.redis import RedisServer

redis = pytest.importorskip("redis")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


class Context:
    """What `open` gets."""

    def __init__(self) -> None:
        self.group = MetricGroup()

    def get_metrics_group(self) -> Any:
        return self.group


def pair(value: Any, found: Any) -> Any:
    return value, found


def commands(client: Any, name: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])


def test_a_job_joins_records_with_hashes(client: Any, tmp_path: Path, redis_server: RedisServer):
    prefix = f"{tmp_path}:product:"
    for name, price in (("tea", "4"), ("salt", "1")):
        client.hset(prefix + name, mapping={"price": price, "name": name})
    env = StreamExecutionEnvironment.get_execution_environment()
    orders = env.from_collection([{"product": name} for name in ("tea", "cup", "salt", "tea")])
    lookup = RedisLookup(
        lambda order: order["product"],
        lambda order, product: (order["product"], product and int(product["price"])),
        redis_server.url,
        value="hash",
        prefix=prefix,
    )
    priced = AsyncDataStream.ordered_wait(orders, lookup, Time.seconds(120), 100)
    with priced.execute_and_collect() as results:
        assert list(results) == [("tea", 4), ("cup", None), ("salt", 1), ("tea", 4)]


def test_requests_at_the_same_time_share_a_round_trip_and_values_are_kept(
    client: Any, tmp_path: Path, redis_server: RedisServer
):
    prefix = f"{tmp_path}:"
    client.mset({f"{prefix}{i}": i for i in range(10)})

    async def run() -> None:
        lookup: Any = RedisLookup(
            lambda i: None if i is None else str(i % 20), pair, redis_server.url, prefix=prefix
        )
        context = Context()
        lookup.open(context)
        before = commands(client, "get")
        found = await asyncio.gather(*(lookup.async_invoke(i) for i in [*range(60), None]))
        expected = [[(i, str(i % 20) if i % 20 < 10 else None)] for i in range(60)]
        assert found == [*expected, [(None, None)]]
        assert commands(client, "get") - before == 20
        assert await lookup.async_invoke(5) == [(5, "5")]
        assert commands(client, "get") - before == 20
        assert context.group.counter("numCacheHits").get_count() == 1
        await lookup.close()

    asyncio.run(run())


def test_a_value_in_the_cache_expires_and_the_oldest_one_leaves(
    client: Any, tmp_path: Path, redis_server: RedisServer
):
    prefix = f"{tmp_path}:"
    client.mset({f"{prefix}{i}": "old" for i in range(3)})

    async def run(**options: Any) -> list[Any]:
        lookup: Any = RedisLookup(str, pair, redis_server.url, prefix=prefix, **options)
        lookup.open(Context())
        for i in range(3):
            await lookup.async_invoke(i)
        client.mset({f"{prefix}{i}": "new" for i in range(3)})
        found = [(await lookup.async_invoke(i))[0][1] for i in (2, 1, 0)]
        client.mset({f"{prefix}{i}": "old" for i in range(3)})
        await lookup.close()
        return found

    assert asyncio.run(run()) == ["old", "old", "old"]
    assert asyncio.run(run(cache_records=2)) == ["old", "old", "new"]
    assert asyncio.run(run(cache_records=0)) == ["new", "new", "new"]
    assert asyncio.run(run(cache_seconds=0)) == ["new", "new", "new"]


def test_a_lookup_outlives_a_restart_of_the_server(tmp_path: Path):
    async def run(server: RedisServer) -> None:
        lookup: Any = RedisLookup(str, pair, server.url, cache_records=0)
        lookup.open(Context())
        assert await lookup.async_invoke(1) == [(1, "one")]
        await asyncio.to_thread(server.kill)
        asking = asyncio.ensure_future(lookup.async_invoke(1))
        while not lookup._requests:
            await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        assert await asking == [(1, "one")]
        await lookup.close()

    with RedisServer(tmp_path) as server, redis.Redis(port=server.port) as client:
        client.set("1", "one")
        asyncio.run(run(server))


def test_a_time_out_of_one_record_does_not_cancel_the_request_of_another(
    client: Any, tmp_path: Path, redis_server: RedisServer
):
    key = f"{tmp_path}"
    client.set(key, "x")

    async def run() -> None:
        lookup: Any = RedisLookup(lambda _: key, pair, redis_server.url)
        lookup.open(Context())
        first = asyncio.ensure_future(lookup.async_invoke(1))
        second = asyncio.ensure_future(lookup.async_invoke(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == [(2, "x")]
        await lookup.close()

    asyncio.run(run())


def test_wrong_values_arguments_and_servers_are_said(
    client: Any, tmp_path: Path, redis_server: RedisServer
):
    client.set(f"{tmp_path}:text", b"\xff")

    async def run(url: str = redis_server.url, **options: Any) -> None:
        lookup: Any = RedisLookup(lambda _: f"{tmp_path}:text", pair, url, **options)
        lookup.open(Context())
        try:
            await lookup.async_invoke(1)
        finally:
            await lookup.close()

    with pytest.raises(JobError, match=r"the value of the key .* cannot be decoded"):
        asyncio.run(run())
    with pytest.raises(JobError, match="a value of another type") as caught:
        asyncio.run(run(value="hash"))
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    away = RedisServer(tmp_path)
    with pytest.raises(JobError, match=f"cannot look up keys .* at {away.address}") as caught:
        asyncio.run(run(away.url, patience_seconds=0))
    assert caught.value.recoverability is Recoverability.ENVIRONMENT
    with pytest.raises(GraphError, match='"string" or "hash"'):
        RedisLookup(str, pair, value="set")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="not negative"):
        RedisLookup(str, pair, cache_seconds=-1)
