"""Count the orders of each shop and hour, and correct a count when late orders come.

    python examples/time/hourly_counts.py [--output DIR] [--parallelism N]

The count of an hour is emitted when the hour has passed. If a shop's line was down, its orders come
later. Up to 4 hours after the end of the hour, each of them makes a new revision of the count. The
revision is kept in the state of the window. Orders that come still later are written to the side
output `too late`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replay import environment, options, replay, write
from simulated_data import orders

from penstock import (
    AggregateFunction,
    DataStream,
    OutputTag,
    ProcessWindowFunction,
    Time,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)

TOO_LATE = OutputTag("too late")
REVISION = ValueStateDescriptor("revision")
OUT_OF_ORDERNESS = 10_000


class CountAndSum(AggregateFunction):
    """Counts orders and sums up their values."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value["cents"]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class Revised(ProcessWindowFunction):
    """Adds the shop, the hour and the number of the revision, which is 0 at first."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[dict[str, Any]]:
        [(count, cents)] = elements
        revision = context.window_state().get_state(REVISION)
        number = revision.value() or 0
        revision.update(number + 1)
        hour = context.window().start
        yield {"shop": key, "hour": hour, "orders": count, "cents": cents, "revision": number}

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        context.window_state().get_state(REVISION).clear()


def hourly_counts(stream: DataStream) -> DataStream:
    """Return the counts of a stream of orders, with the side output `TOO_LATE`."""
    return (
        stream.key_by(lambda order: order["shop"])
        .window(TumblingEventTimeWindows.of(Time.hours(1)))
        .allowed_lateness(Time.hours(4))
        .side_output_late_data(TOO_LATE)
        .aggregate(CountAndSum(), Revised())
        .uid("counts")
    )


def main() -> None:
    given = options(__doc__)
    env = environment(given)
    stream = replay(env, "orders", orders(given.seed), OUT_OF_ORDERNESS)
    counts = hourly_counts(stream)
    write(counts, "counts", given)
    write(counts.get_side_output(TOO_LATE), "too late", given)
    env.execute("hourly counts")


if __name__ == "__main__":
    main()
