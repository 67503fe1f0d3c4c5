"""Add up orders that come as JSON lines, and keep the lines that are no orders.

It writes a few lines into a folder, reads them as `Order`s, and adds up the amounts of a customer.
The lines that do not fit come out of the source at a side output, with the reason and the place.

    python examples/connectors/typed_orders.py
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock import BAD_MESSAGES, FileSource, StreamExecutionEnvironment
from penstock.connectors.formats import Json, MessageLines

LINES = """\
{"customer": "ann", "amount": 3.5}
{"customer": "bob", "amount": "a lot"}
{"customer": "ann", "amount": 4, "note": "a field that orders do not have"}
{"customer": "bob", "amount": 2.25}
{"customer": "eve"
"""


@dataclass
class Order:
    """What a line says, if it is an order."""

    customer: str
    amount: float


def main(folder):
    path = Path(folder) / "orders.jsonl"
    path.write_text(LINES)
    env = StreamExecutionEnvironment.get_execution_environment()
    format = MessageLines(Json(Order, on_error="side_output"))
    orders = env.from_source(FileSource(path, format), None, "orders")
    bad = orders.get_side_output(BAD_MESSAGES).map(
        lambda one: ("not an order", f"{one.message.decode()}: {one.reason}")
    )
    totals = (
        orders.map(lambda order: (order.customer, order.amount))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    for name, value in totals.union(bad).execute_and_collect("orders"):
        print(name, value)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
