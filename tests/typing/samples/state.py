"""Keyed state, process functions, connected and broadcast streams."""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from typing import reveal_type

from penstock import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CoMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    Types,
    ValueState,
    ValueStateDescriptor,
)
from tests.typing.samples.records import Customer, Order, customers, orders

by_customer = orders().key_by(lambda order: order.customer)


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Total(KeyedProcessFunction[str, Order, tuple[str, int]]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.INT()))
        self.last: ValueState[Order] = runtime_context.get_state(ValueStateDescriptor("last"))
        self.names = runtime_context.get_list_state(ListStateDescriptor("names", str))
        self.by_name = runtime_context.get_map_state(
            MapStateDescriptor("by name", Types.STRING(), Types.LONG())
        )
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", add, int))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("m", Mean()))
        self.any = runtime_context.get_state(ValueStateDescriptor("any"))
        reveal_type(self.total)  # R: ValueState[int]
        reveal_type(self.names)  # R: ListState[str]
        reveal_type(self.by_name)  # R: MapState[str, int]
        reveal_type(self.sum)  # R: ReducingState[int]
        reveal_type(self.mean)  # R: AggregatingState[int, float]
        reveal_type(self.any)  # R: ValueState[Any]

    def process_element(
        self, value: Order, ctx: KeyedProcessFunction.Context[str]
    ) -> Iterator[tuple[str, int]]:
        reveal_type(ctx.get_current_key())  # R: str
        reveal_type(self.last.value())  # R: Order | None
        reveal_type(self.mean.get())  # R: float | None
        reveal_type(list(self.by_name.items()))  # R: list[tuple[str, int]]
        total = (self.total.value() or 0) + value.amount
        self.total.update(total)
        self.total.update("much")  # E: incompatible type "str"
        self.last.update(value)
        self.names.add(value.amount)  # E: incompatible type "int"
        self.by_name["a"] = "b"  # E: expression has type "str", target has type "int"
        self.any.update(anything := object())
        print(anything)
        yield value.customer, total

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[str]
    ) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


reveal_type(by_customer.process(Total()))  # R: DataStream[tuple[str, int]]
orders().process(Total())  # E: incompatible type "Total"
customers().key_by(lambda customer: customer.id).process(Total())  # E: incompatible type "Total"
orders().key_by(lambda order: order.amount).process(Total())  # E: incompatible type "Total"

# ---- two streams

connected = orders().connect(customers())
reveal_type(connected)  # R: ConnectedStreams[Order, Customer]
connected.key_by(lambda order: order.customer, lambda customer: customer.id)
connected.key_by(lambda o: o.customer, lambda c: c.amount)  # E: "Customer" has no attribute


class Names(CoMapFunction[Order, Customer, str]):
    def map1(self, value: Order) -> str:
        return value.customer

    def map2(self, value: Customer) -> str:
        return value.name


class Join(KeyedCoProcessFunction[str, Order, Customer, tuple[str, int]]):
    def process_element1(
        self, value: Order, ctx: KeyedProcessFunction.Context[str]
    ) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), value.amount

    def process_element2(self, value: Customer, ctx: KeyedProcessFunction.Context[str]) -> None:
        print(value.name, ctx.get_current_key())


reveal_type(connected.map(Names()))  # R: DataStream[str]
reveal_type(connected.process(Join()))  # R: DataStream[tuple[str, int]]
customers().connect(orders()).map(Names())  # E: incompatible type "Names"

LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.INT())


class Check(BroadcastProcessFunction[Order, Customer, str]):
    def process_element(
        self, value: Order, ctx: BroadcastProcessFunction.ReadOnlyContext
    ) -> Iterator[str]:
        limits = ctx.get_broadcast_state(LIMITS)
        reveal_type(limits)  # R: ReadOnlyBroadcastState[str, int]
        if value.amount > (limits.get(value.customer) or 0):
            yield value.customer

    def process_broadcast_element(
        self, value: Customer, ctx: BroadcastProcessFunction.Context
    ) -> None:
        ctx.get_broadcast_state(LIMITS).put(value.id, value.name)  # E: incompatible type "str"


rules = customers().broadcast(LIMITS)
reveal_type(rules)  # R: BroadcastStream[Customer]
reveal_type(customers().broadcast())  # R: DataStream[Customer]
reveal_type(orders().connect(rules))  # R: BroadcastConnectedStream[Order, Customer]
reveal_type(orders().connect(rules).process(Check()))  # R: DataStream[str]
