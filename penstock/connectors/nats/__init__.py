"""NATS JetStream: streams as sources by sequence, and as sinks, exactly once.

This package needs the extra `penstock[nats]`. Each public name is imported at its first use. To
learn the code, begin with `stream_source.py`. The guide is `docs/guides/connectors/nats.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.nats.connection import NatsConnection
    from penstock.connectors.nats.message import NatsMessage
    from penstock.connectors.nats.offsets import NatsOffsets
    from penstock.connectors.nats.stream_sink import NatsStreamSink
    from penstock.connectors.nats.stream_source import NatsStreamSource

_WHERE = {
    "NatsConnection": "connection",
    "NatsMessage": "message",
    "NatsOffsets": "offsets",
    "NatsStreamSink": "stream_sink",
    "NatsStreamSource": "stream_source",
}

__all__ = [
    "NatsConnection",
    "NatsMessage",
    "NatsOffsets",
    "NatsStreamSink",
    "NatsStreamSource",
]

__getattr__ = lazy_names(__name__, _WHERE)
