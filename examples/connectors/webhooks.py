"""Accept orders as webhooks, and send a webhook when a customer has ordered for more than 100.

    python examples/connectors/webhooks.py --port 8080 --to http://localhost:9000/bonus

Send orders with

    curl localhost:8080/orders -H 'Authorization: Bearer example' -H "Idempotency-Key: $RANDOM" \\
        -d '{"customer": "ann", "amount": 70}'

An order that was answered with 202 counts once, whatever is killed, and each bonus is sent with a
key, so that the receiver can leave out what comes twice.
"""

import argparse
from pathlib import Path

from penstock import (
    Json,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from penstock.connectors.http import BearerToken, HttpSink, WebhookSource


class Bonus(KeyedProcessFunction):
    """Emits a bonus each time that the sum of a customer's orders is above 100."""

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.DOUBLE()))

    def process_element(self, order, ctx):
        total = (self.sum.value() or 0) + order["amount"]
        if total > 100:
            yield {"customer": order["customer"], "bonus_for": total}
            total = 0
        self.sum.update(total)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--to", default="http://localhost:9000/bonus")
    parser.add_argument("--folder", default="bonus", help="where the log and the snapshots are")
    parser.add_argument("--token", default="example")
    arguments = parser.parse_args()
    folder = Path(arguments.folder)

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(500)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    source = WebhookSource(
        folder / "log", arguments.port, Json(), verification=BearerToken(arguments.token)
    )
    orders = env.from_source(source).key_by(lambda order: order["customer"])
    orders.process(Bonus()).sink_to(HttpSink(arguments.to, Json()))
    env.execute("bonus")


if __name__ == "__main__":
    main()
