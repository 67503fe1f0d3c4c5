"""Add up the orders of a Redis stream, with a price that is looked up for each.

It writes a few orders into a stream, reads them once, and looks up the price of each product.

    redis-server --port 6379 &
    python examples/connectors/redis_orders.py redis://localhost:6379/0
"""

import sys
from contextlib import closing

from penstock import AsyncDataStream, StreamExecutionEnvironment, Time
from penstock.connectors.redis import RedisConnection, RedisLookup, RedisStreamSource


def fill(url):
    """Write a stream and the hashes of two products."""
    with closing(RedisConnection(url).client()) as client:
        client.delete("shop:orders")
        client.hset("shop:product:tea", mapping={"price": "4"})
        client.hset("shop:product:salt", mapping={"price": "1"})
        for product, quantity in (("tea", 2), ("salt", 1), ("tea", 3)):
            client.xadd("shop:orders", {"product": product, "quantity": quantity})


def main(url):
    fill(url)
    env = StreamExecutionEnvironment.get_execution_environment()
    orders = env.from_source(RedisStreamSource("shop:orders", url, bounded=True), None, "orders")
    prices = RedisLookup(
        lambda order: order["product"],
        lambda order, found: (order["product"], int(order["quantity"]) * int(found["price"])),
        url,
        value="hash",
        prefix="shop:product:",
    )
    paid = AsyncDataStream.ordered_wait(orders, prices, Time.seconds(60), 100)
    totals = paid.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    for product, total in totals.execute_and_collect("orders"):
        print(product, total)


if __name__ == "__main__":
    main(sys.argv[1])
