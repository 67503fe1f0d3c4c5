"""A program that defines the types of its records itself; `test_format_jobs.py` runs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec

from penstock import FileSource, StreamExecutionEnvironment
from penstock.connectors.formats import Json, MessageLines


class Pair(NamedTuple):
    """A named tuple."""

    amount: Decimal
    more: Pair | None = None


class Place(TypedDict):
    """A typed dict."""

    amount: Decimal


class Base(msgspec.Struct):
    """A struct."""

    amount: Decimal


class Struct(Base, frozen=True, kw_only=True, rename="camel", tag="struct"):
    """A struct with everything."""

    LIMIT = 7
    the_names: list[str] = msgspec.field(default_factory=list)
    number: int = 3
    other: Struct | None = None

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")

    def with_number(self, number: int) -> Struct:
        """Return another one."""
        return Struct(amount=self.amount, number=number)

    @classmethod
    def limit(cls) -> int:
        """Return a constant."""
        return cls.LIMIT


@dataclass
class Order:
    """A dataclass."""

    amount: Decimal
    pair: Pair
    place: Place
    struct: Struct
    parts: list[Order] = dataclass_field(default_factory=list)


LINE = """{"amount": "1.5", "pair": ["2.5", ["3.5", null]], "place": {"amount": "4.5"}, "struct":
{"type": "struct", "amount": "5.5", "theNames": ["x"], "other": {"type": "struct", "amount": "1"}},
"parts": []}""".replace("\n", " ")
BAD = LINE.replace('"theNames"', '"number": -1, "theNames"')


def total(order: Order) -> list[str]:
    """Use everything that a worker must have."""
    struct = order.struct.with_number(Struct.limit())
    assert struct == Struct(amount=Decimal("5.5"), number=7)
    assert order.struct.other == Struct(amount=Decimal(1))
    more = order.pair.more
    assert more is not None
    places = (order.amount, order.pair.amount, more.amount, order.place["amount"], struct.amount)
    return [str(sum(places)), *order.struct.the_names]


def main(folder: Path) -> None:
    """Read orders, and send them to other workers."""
    path = folder / "orders.jsonl"
    path.write_text(f"{LINE}\n{BAD}\n{LINE}\n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    source = FileSource(path, MessageLines(Json(Order, on_error="skip")))
    orders = env.from_source(source).rebalance()
    structs = orders.map(lambda order: order.struct).rebalance().map(lambda one: [one.number])
    for line in sorted(orders.map(total).union(structs).execute_and_collect(), key=repr):
        print(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
