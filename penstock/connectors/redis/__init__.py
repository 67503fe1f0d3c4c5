"""Redis and Valkey: streams as sources and sinks, materialised views, and a lookup.

This package needs the extra `penstock[redis]` and a server of version 7 or newer, or Valkey. Each
public name is imported at its first use. To learn the code, begin with `stream_source.py`. The
guide is `docs/guides/connectors/redis.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.redis.connection import RedisConnection
    from penstock.connectors.redis.lookup import RedisLookup
    from penstock.connectors.redis.offsets import RedisOffsets
    from penstock.connectors.redis.stream_entry import RedisEntry
    from penstock.connectors.redis.stream_sink import RedisStreamSink
    from penstock.connectors.redis.stream_source import RedisStreamSource
    from penstock.connectors.redis.view_sinks import RedisHashSink, RedisSortedSetSink

_WHERE = {
    "RedisConnection": "connection",
    "RedisEntry": "stream_entry",
    "RedisHashSink": "view_sinks",
    "RedisLookup": "lookup",
    "RedisOffsets": "offsets",
    "RedisSortedSetSink": "view_sinks",
    "RedisStreamSink": "stream_sink",
    "RedisStreamSource": "stream_source",
}

__all__ = [
    "RedisConnection",
    "RedisEntry",
    "RedisHashSink",
    "RedisLookup",
    "RedisOffsets",
    "RedisSortedSetSink",
    "RedisStreamSink",
    "RedisStreamSource",
]

__getattr__ = lazy_names(__name__, _WHERE)
