"""Sum the orders of each product from one RabbitMQ stream into another, exactly once.

Both streams must exist. An order is a JSON object, such as `{"product": "tea", "quantity": 2}`.

    python examples/connectors/rabbitmq_totals.py --orders orders --totals totals
"""

import argparse

from penstock import Json, StreamExecutionEnvironment
from penstock.connectors.rabbitmq import RabbitBroker, RabbitStreamSink, RabbitStreamSource


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=5552)
    parser.add_argument("--orders", default="orders")
    parser.add_argument("--totals", default="totals")
    parser.add_argument("--folder", default="totals-job", help="where the snapshots are")
    arguments = parser.parse_args()
    broker = RabbitBroker(arguments.host, arguments.port)

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(500)
    env.get_checkpoint_config().set_checkpoint_storage_dir(arguments.folder)
    orders = env.from_source(RabbitStreamSource(broker, arguments.orders, Json()))
    quantities = orders.map(lambda order: (order["product"], order["quantity"]))
    totals = quantities.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    named = totals.map(lambda pair: {"product": pair[0], "total": pair[1]})
    named.sink_to(RabbitStreamSink(broker, arguments.totals, Json()))
    env.execute("totals")


if __name__ == "__main__":
    main()
