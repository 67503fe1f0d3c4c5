"""Streams over HTTP: server-sent events, WebSockets, and webhooks in and out.

This package needs the extra `penstock[http]` (urllib3 and websockets), apart from `WebhookSource`,
which needs no other package. Each public name is imported at its first use. The user guide is
`docs/guides/connectors/http.md`.

* `push_reader.py`: what `SseSource` and `WebSocketSource` share, connecting again and again.
* `webhook_log.py`: the durable log of a `WebhookSource`. It knows nothing of HTTP.
* `webhook_endpoint.py`: the HTTP server that writes to the log.
* `http_sink.py`: webhooks out, staged with the snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.http.http_sink import HttpSink
    from penstock.connectors.http.server_sent_events import ServerSentEvent, SseSource
    from penstock.connectors.http.web_socket import WebSocketSource
    from penstock.connectors.http.webhook_endpoint import (
        BearerToken,
        HmacSignature,
        WebhookRequest,
    )
    from penstock.connectors.http.webhook_source import WebhookSource
    from penstock.connectors.tls import Tls

_WHERE = {
    "BearerToken": "penstock.connectors.http.webhook_endpoint",
    "HmacSignature": "penstock.connectors.http.webhook_endpoint",
    "HttpSink": "penstock.connectors.http.http_sink",
    "ServerSentEvent": "penstock.connectors.http.server_sent_events",
    "SseSource": "penstock.connectors.http.server_sent_events",
    "Tls": "penstock.connectors.tls",
    "WebSocketSource": "penstock.connectors.http.web_socket",
    "WebhookRequest": "penstock.connectors.http.webhook_endpoint",
    "WebhookSource": "penstock.connectors.http.webhook_source",
}

__all__ = [
    "BearerToken",
    "HmacSignature",
    "HttpSink",
    "ServerSentEvent",
    "SseSource",
    "Tls",
    "WebSocketSource",
    "WebhookRequest",
    "WebhookSource",
]

__getattr__ = lazy_names(__name__, _WHERE)
