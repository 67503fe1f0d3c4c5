"""Sources, transformations, keys and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, reveal_type

from penstock import (
    DataStream,
    FeedbackStream,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    Row,
    SinkFunction,
    StreamExecutionEnvironment,
    Types,
)
from tests.typing.samples.records import Customer, Order, customers, orders

env = StreamExecutionEnvironment.get_execution_environment()

# ---- sources

reveal_type(env.from_collection([Order("a", 1, 0)]))  # R: DataStream[Order]
reveal_type(env.from_collection([(1,)], Types.ROW([Types.INT()])))  # R: DataStream[Row]
reveal_type(env.from_sequence(1, 9))  # R: DataStream[int]
reveal_type(env.from_generator(lambda i: Order(str(i), i, i)))  # R: DataStream[Order]
reveal_type(env.from_iterable(lambda subtask, parallelism: ["a"]))  # R: DataStream[str]
reveal_type(env.read_text_file("lines.txt"))  # R: DataStream[str]
again: FeedbackStream[int] = env.create_feedback("again")
reveal_type(again.map(lambda n: n - 1))  # R: DataStream[int]

# ---- lambdas

reveal_type(orders().map(lambda order: order.amount))  # R: DataStream[int]
orders().map(lambda order: order.amuont)  # E: "Order" has no attribute "amuont"
orders().filter(lambda order: order.amuont > 3)  # E: "Order" has no attribute "amuont"
reveal_type(orders().filter(lambda order: order.amount > 3))  # R: DataStream[Order]
reveal_type(orders().flat_map(lambda order: [order.customer] * 2))  # R: DataStream[str]
orders().flat_map(lambda order: order.amount)  # E: got "int", expected "Iterable[
reveal_type(orders().map(lambda order: (order.customer, order)))  # R: DataStream[tuple[str, Order]]
orders().map(lambda order: order.amount).map(lambda n: n.customer)  # E: "int" has no attribute
reveal_type(env.read_text_file("numbers.txt").map(int))  # R: DataStream[int]
reveal_type(orders().project(0, 1))  # R: DataStream[tuple[Any, ...]]

# ---- keys and rolling aggregations

by_customer = orders().key_by(lambda order: order.customer)
reveal_type(by_customer)  # R: KeyedStream[str, Order]
orders().key_by(lambda order: order.custmer)  # E: "Order" has no attribute "custmer"
reveal_type(by_customer.count())  # R: DataStream[tuple[str, int]]
reveal_type(by_customer.sum("amount"))  # R: DataStream[Order]
reveal_type(by_customer.reduce(lambda a, b: a if a.time > b.time else b))  # R: DataStream[Order]
by_customer.reduce(lambda a, b: a.amount + b.amount)  # E: expected "Order"
by_customer.reduce(lambda a, b: a if a.amuont else b)  # E: "Order" has no attribute "amuont"
reveal_type(by_customer.map(lambda order: order.time))  # R: DataStream[int]
reveal_type(orders().rebalance())  # R: DataStream[Order]
reveal_type(orders().key_by("customer"))  # R: KeyedStream[Any, Order]
times = by_customer.map_with_state(lambda n, order: (n + 1, order.time), 0)
reveal_type(times)  # R: DataStream[int]
by_customer.map_with_state(lambda n, order: (n + 1, order.tme), 0)  # E: "Order" has no attribute
by_customer.track(lambda key, order: order.tme, lambda key, n, order: n)  # E: attribute "tme"
reveal_type(by_customer.top_k(3))  # R: DataStream[tuple[str, list[Order]]]
reveal_type(by_customer.join_history(5))  # R: DataStream[tuple[Order, list[Order]]]
reveal_type(by_customer.join_history(5, lambda o, past: len(past)))  # R: DataStream[int]
reveal_type(orders().distinct().sample(0.5))  # R: DataStream[Order]
orders().partition_custom(lambda key, n: len(key) % n, lambda order: order.customer)
orders().partition_custom(lambda key, n: key % n, lambda order: order.cust)  # E: attribute "cust"

# ---- batches and tables

rows = orders().map_batches(lambda batch: [order.amount for order in batch], format="rows")
reveal_type(rows)  # R: DataStream[int]
reveal_type(orders().map_batches(lambda batch: batch))  # R: DataStream[Any]
reveal_type(orders().take(3))  # R: list[Order]
named = orders().join_table({"a": Customer("a", "Ann")}, lambda order: order.customer)
reveal_type(named)  # R: DataStream[tuple[Order, Any]]

# ---- unions and loops

reveal_type(orders().union(orders()))  # R: DataStream[Order]
reveal_type(orders().union(customers()))  # R: DataStream[Order | Customer]
loop = env.from_sequence(1, 9).iterate()
reveal_type(loop)  # R: IterativeStream[int]
loop.close_with(loop.map(str))  # E: incompatible type "type[str]"
loop.close_with(loop.map(lambda n: n - 1))

# ---- function classes


class Name(MapFunction[Customer, str]):
    def map(self, value: Customer) -> str:
        return value.name


class Letters(FlatMapFunction[str, str]):
    def flat_map(self, value: str) -> Iterator[str]:
        yield from value


class Long(FilterFunction[str]):
    def filter(self, value: str) -> bool:
        return len(value) > 3


class Latest(ReduceFunction[Order]):
    def reduce(self, value1: Order, value2: Order) -> Order:
        return max(value1, value2, key=lambda order: order.time)


class Show(SinkFunction[str]):
    def invoke(self, value: str) -> None:
        print(value)


LATE: OutputTag[Order] = OutputTag("late")
COUNT = OutputTag("count", int)


class Split(ProcessFunction[Order, str]):
    def process_element(
        self, value: Order, ctx: ProcessFunction.Context
    ) -> Iterator[str | tuple[OutputTag[Any], Any]]:
        if value.time < ctx.timer_service().current_watermark():
            yield LATE, value
        yield value.customer


class Untyped(MapFunction):  # types are optional
    def map(self, value):  # type: ignore[no-untyped-def]
        return value


reveal_type(customers().map(Name()).flat_map(Letters()).filter(Long()))  # R: DataStream[str]
orders().map(Name())  # E: incompatible type "Name"
reveal_type(by_customer.reduce(Latest()))  # R: DataStream[Order]
split = orders().process(Split())
reveal_type(split)  # R: DataStream[str]
reveal_type(split.get_side_output(LATE))  # R: DataStream[Order]
reveal_type(split.get_side_output(COUNT))  # R: DataStream[int]
customers().process(Split())  # E: incompatible type "Split"
reveal_type(orders().map(Untyped()))  # R: DataStream[Any]

# ---- results

split.add_sink(Show())
split.add_sink(lambda word: print(word.upper()))
split.add_sink(lambda word: print(word.uper()))  # E: "str" has no attribute "uper"
orders().add_sink(Show())  # E: incompatible type "Show"
reveal_type(split.execute_and_collect(limit=3))  # R: list[str]
with split.execute_and_collect("words") as words:
    reveal_type(next(words))  # R: str


def doubled(numbers: DataStream[int]) -> DataStream[int]:
    return numbers.map(lambda n: n * 2)


def anything(records: DataStream) -> DataStream:  # a bare stream has records of any type
    return records.map(lambda record: record.anything)


doubled(orders())  # E: expected "DataStream[int]"
anything(orders())
row: Row
for row in env.from_collection([(1,)], Types.ROW([Types.INT()])).execute_and_collect():
    print(row.name)
