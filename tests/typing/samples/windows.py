"""Event time, windows and their functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import reveal_type

from penstock import (
    AggregateFunction,
    CountTrigger,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from tests.typing.samples.records import Order, customers, orders

timed = orders().assign_timestamps_and_watermarks(
    WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda o, _: o.time)
)
reveal_type(timed)  # R: DataStream[Order]
orders().assign_timestamps_and_watermarks(
    WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda o, _: o.tme  # E: "Order" has no attribute "tme"
    )
)
hours = TumblingEventTimeWindows.of(Time.hours(1))
windowed = timed.key_by(lambda order: order.customer).window(hours)
reveal_type(windowed)  # R: WindowedStream[str, Order, TimeWindow]
thirds = windowed.allowed_lateness(5).trigger(PurgingTrigger.of(CountTrigger.of(3)))
reveal_type(thirds)  # R: WindowedStream[str, Order, TimeWindow]
timed.key_by(lambda order: order.customer).window(
    EventTimeSessionWindows.with_dynamic_gap(
        lambda order: order.gap  # E: "Order" has no attribute "gap"
    )
)


class Mean(AggregateFunction[Order, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Order, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.amount, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Named(ProcessWindowFunction[float, tuple[str, int, float], str, TimeWindow]):
    def process(
        self,
        key: str,
        context: ProcessWindowFunction.Context[TimeWindow],
        elements: Iterable[float],
    ) -> Iterator[tuple[str, int, float]]:
        for mean in elements:
            yield key, context.window().start, mean


reveal_type(windowed.aggregate(Mean()))  # R: DataStream[float]
reveal_type(windowed.aggregate(Mean(), Named()))  # R: DataStream[tuple[str, int, float]]
windowed.process(Named())  # E: incompatible type "Named"
reveal_type(windowed.reduce(lambda a, b: a if a.time > b.time else b))  # R: DataStream[Order]
windowed.reduce(lambda a, b: a if a.tme > b.time else b)  # E: "Order" has no attribute "tme"
reveal_type(windowed.sum("amount"))  # R: DataStream[Order]
counts = windowed.apply(lambda key, window, records: [(key, window.start, len(list(records)))])
reveal_type(counts)  # R: DataStream[tuple[str, int, int]]
windowed.apply(lambda key, window, records: [window.strat])  # E: "TimeWindow" has no attribute
windowed.apply(lambda key, window, records: [r.amuont for r in records])  # E: no attribute "amuont"
largest = windowed.reduce(lambda a, b: a, lambda key, window, records: [(key, window.end)])
reveal_type(largest)  # R: DataStream[tuple[str, int]]
windowed.reduce(lambda a, b: a, lambda key, window, records: [key.amount])  # E: "str" has no
every = timed.window_all(hours)
reveal_type(every)  # R: AllWindowedStream[Order, TimeWindow]
reveal_type(every.apply(lambda window, records: [window.end]))  # R: DataStream[int]
reveal_type(every.aggregate(Mean()))  # R: DataStream[float]
five = timed.key_by(lambda order: order.time).count_window(5)
reveal_type(five)  # R: WindowedStream[int, Order, CountWindow]

# ---- joins

pair = orders().join(customers()).where(lambda o: o.customer)
reveal_type(pair)  # R: JoinedStreamsWhere[Order, Customer, str]
joined = pair.equal_to(lambda c: c.id).window(hours)
reveal_type(joined)  # R: JoinedStreamsInWindows[Order, Customer, TimeWindow]
amounts = joined.apply(lambda order, customer: (customer.name, order.amount))
reveal_type(amounts)  # R: DataStream[tuple[str, int]]
joined.apply(lambda order, customer: customer.nam)  # E: "Customer" has no attribute "nam"
pair.equal_to(lambda c: c.key)  # E: "Customer" has no attribute "key"
groups = orders().co_group(customers()).where("customer").equal_to("id").window(hours)
reveal_type(groups.apply(lambda left, right: [len(list(left))]))  # R: DataStream[int]
ids = customers().key_by(lambda c: c.id)
near = orders().key_by(lambda o: o.customer).interval_join(ids).between(0, 5)
reveal_type(near.process(lambda order, customer: customer.name))  # R: DataStream[str]
near.process(lambda order, customer: order.name)  # E: "Order" has no attribute "name"
