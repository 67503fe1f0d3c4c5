"""Add up the orders in a stream of NATS, and write each total to another stream.

It makes both streams and writes a few orders.

    nats-server -js -p 4222 &
    python examples/connectors/nats_orders.py nats://localhost:4222
"""

import asyncio
import sys

import nats

from penstock import StreamExecutionEnvironment
from penstock.connectors.formats import Json
from penstock.connectors.nats import NatsStreamSink, NatsStreamSource


async def fill(url):
    """Make the streams, and write orders."""
    client = await nats.connect(url)
    streams = client.jetstream()
    for name, subject in (("ORDERS", "orders.*"), ("TOTALS", "totals.*")):
        await streams.add_stream(name=name, subjects=[subject])
        await streams.purge_stream(name)
    for product, quantity in (("tea", 2), ("salt", 1), ("tea", 3)):
        await streams.publish(f"orders.{product}", b"%d" % quantity)
    await client.close()


async def show(url):
    """Print the totals."""
    client = await nats.connect(url)
    totals = await client.jetstream().subscribe("totals.*", ordered_consumer=True)
    for _ in range(3):
        message = await totals.next_msg(timeout=30)
        print(message.subject, message.data.decode())
    await client.close()


def main(url):
    asyncio.run(fill(url))
    env = StreamExecutionEnvironment.get_execution_environment()
    source = NatsStreamSource(
        "ORDERS",
        url,
        decode=lambda message: (message.subject.partition(".")[2], int(message.data)),
        bounded=True,
    )
    orders = env.from_source(source, None, "orders")
    totals = orders.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    totals.sink_to(NatsStreamSink("TOTALS", lambda pair: f"totals.{pair[0]}", url, schema=Json()))
    env.execute("orders")
    asyncio.run(show(url))


if __name__ == "__main__":
    main(sys.argv[1])
