"""A client for tests: makes streams, publishes and reads, without the connectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import nats
from nats.js.api import StreamConfig

from penstock.connectors.asyncio_bridge import AsyncioBridge


class Streams:
    """A connection to a server, for tests."""

    def __init__(self, url: str) -> None:
        self._bridge = AsyncioBridge("test")
        self._client = self._bridge.call(nats.connect(url))
        self.js = self._client.jetstream(timeout=60)

    def call(self, coroutine: Any) -> Any:
        return self._bridge.call(coroutine)

    def make(self, name: str, subjects: list[str] | None = None, **config: Any) -> str:
        """Make a stream."""
        subjects = [f"{name}.>"] if subjects is None else subjects
        self.call(self.js.add_stream(StreamConfig(name=name, subjects=subjects, **config)))
        return name

    def publish(self, subject: str, numbers: Iterable[Any]) -> list[int]:
        """Publish numbers as text, and return their sequences."""

        async def run() -> list[int]:
            waiting = [
                await self.js.publish_async(subject, str(number).encode()) for number in numbers
            ]
            return [(await one).seq for one in waiting]

        found: list[int] = self.call(run())
        return found

    def messages(self, stream: str) -> list[Any]:
        """Return all messages of a stream, in order."""

        async def run() -> list[Any]:
            info = await self.js.stream_info(stream)
            if not info.state.messages:
                return []
            config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
            sub = await self.js.pull_subscribe("", stream=stream, config=config)
            found: list[Any] = []
            while len(found) < info.state.messages:
                found += await sub.fetch(min(500, info.state.messages - len(found)), timeout=30)
            await sub.unsubscribe()
            return found

        found: list[Any] = self.call(run())
        return found

    def close(self) -> None:
        self._bridge.close(self._client.close)

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
