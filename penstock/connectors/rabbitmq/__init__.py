"""RabbitMQ streams as sources and sinks of a job, exactly once.

This package needs the extra `penstock[rabbitmq]` (rstream). Each public name is imported at its
first use. `stream_connection.py` connects to a broker, in the event loop of an `AsyncioBridge`;
`publishing_ids.py` has the idea of the sink, and knows no network. The user guide is
`docs/guides/connectors/rabbitmq.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.rabbitmq.stream_connection import RabbitBroker
    from penstock.connectors.rabbitmq.stream_sink import RabbitStreamSink
    from penstock.connectors.rabbitmq.stream_source import RabbitMessage, RabbitStreamSource
    from penstock.connectors.tls import Tls

_WHERE = {
    "RabbitBroker": "penstock.connectors.rabbitmq.stream_connection",
    "RabbitMessage": "penstock.connectors.rabbitmq.stream_source",
    "RabbitStreamSink": "penstock.connectors.rabbitmq.stream_sink",
    "RabbitStreamSource": "penstock.connectors.rabbitmq.stream_source",
    "Tls": "penstock.connectors.tls",
}

__all__ = ["RabbitBroker", "RabbitMessage", "RabbitStreamSink", "RabbitStreamSource", "Tls"]

__getattr__ = lazy_names(__name__, _WHERE)
