"""Creates, fills and reads streams, beside the connectors that are tested."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from penstock.connectors.rabbitmq import RabbitBroker
from penstock.connectors.rabbitmq.amqp_body import decode_message, encode_body
from penstock.connectors.rabbitmq.stream_connection import _connect, close_client

T = TypeVar("T")


def with_client(broker: RabbitBroker, use: Callable[[Any], Awaitable[T]]) -> T:
    """Run an async function of a connected client."""

    async def run() -> T:
        client = await _connect(broker, (broker.host, broker.stream_port))
        try:
            return await use(client)
        finally:
            await close_client(client)

    return asyncio.run(run())


def create_stream(broker: RabbitBroker, stream: str | None = None, **arguments: Any) -> str:
    """Create a stream and return its name."""
    name = stream or f"test{uuid.uuid4().hex}"
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    with_client(broker, lambda client: client.create_stream(name, named))
    return name


def delete_stream(broker: RabbitBroker, stream: str) -> None:
    with_client(broker, lambda client: client.delete_stream(stream))


def publish(
    broker: RabbitBroker, stream: str, contents: Sequence[bytes], *, at_once: int = 100
) -> None:
    """Publish without a name, `at_once` messages in one frame, and wait until they are stored."""
    from rstream import schema

    async def use(client: Any) -> None:
        await client.declare_publisher(stream, "", 0)
        confirmed: set[int] = set()
        changed = asyncio.Event()

        def on_confirm(frame: Any) -> None:
            confirmed.update(frame.publishing_ids)
            changed.set()

        client.add_handler(schema.PublishConfirm, on_confirm, name="test")
        for first in range(0, len(contents), at_once):
            messages = [
                schema.Message(publishing_id=first + index + 1, filter_value=None, data=data)
                for index, data in enumerate(contents[first : first + at_once])
            ]
            await client.send_publish_frame(schema.Publish(publisher_id=0, messages=messages))
            while len(confirmed) < first + len(messages):
                changed.clear()
                await asyncio.wait_for(changed.wait(), 60)

    with_client(broker, use)


def bodies(broker: RabbitBroker, stream: str) -> list[str]:
    """Return the bodies of all messages of a stream, as text."""
    from rstream import OffsetType, schema

    mark = uuid.uuid4().hex
    publish(broker, stream, [encode_body(f"mark {mark}".encode())])

    async def use(client: Any) -> list[str]:
        found: list[str] = []
        ended = asyncio.Event()

        async def deliver(frame: Any) -> None:
            found.extend(decode_message(bytes(data))[0].decode() for data in frame.get_messages())
            if f"mark {mark}" in found:
                ended.set()
            await client.credit(0, 1)

        client.add_handler(schema.Deliver, deliver, name="0")
        await client.run_queue_listener_task(0, deliver)
        await client.subscribe(stream, 0, schema.OffsetSpec.from_params(OffsetType.FIRST, None))
        await asyncio.wait_for(ended.wait(), 120)
        return found

    return [body for body in with_client(broker, use) if not body.startswith("mark ")]
