"""A function that counts in every kind of keyed state at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.dataflow.functions import KeyedProcessFunction, RuntimeContext
from penstock.dataflow.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from penstock.dataflow.windows import AggregateFunction

__all__ = ["CountInStates", "CountInStatesToTheEnd"]


class Counting(AggregateFunction):
    """Counts in a list of one number, which changes in place."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator[0] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]


class CountInStates(KeyedProcessFunction):
    """Emits a running count per key, or what the kinds of state say if they do not agree.

    Arguments:
        mutable: the values of entries and elements are lists that grow in place.
    """

    def __init__(self, mutable: bool) -> None:
        self.mutable = mutable

    def open(self, context: RuntimeContext) -> None:
        self.value = context.get_state(ValueStateDescriptor("value"))
        self.elements = context.get_list_state(ListStateDescriptor("list"))
        self.entries = context.get_map_state(MapStateDescriptor("map"))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.counted = context.get_aggregating_state(
            AggregatingStateDescriptor("counted", Counting())
        )
        recent = MapStateDescriptor("recent")
        ttl = StateTtlConfig.new_builder(10**9).update_ttl_on_read_and_write()
        recent.enable_time_to_live(ttl.build())
        self.recent = context.get_map_state(recent)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        count = (self.value.value() or 0) + 1
        self.value.update(count)
        if self.mutable and count % 3:
            elements = self.elements.get()
            if elements:
                elements[-1].append(value)
            else:
                self.elements.add([value])
        else:
            self.elements.add([value])
        kept = self.entries.get(value % 3) or []
        self.entries.remove(value % 3)
        if self.mutable:
            self.entries.put(value % 3, kept)
            kept.append(value)
        else:
            self.entries.put(value % 3, [*kept, value])
        self.sum.add(1)
        self.counted.add(value)
        self.recent.put(count, None)
        yield ("count", ctx.get_current_key(), self.count())

    def count(self) -> Any:
        counts = (
            self.value.value(),
            sum(map(len, self.elements)),
            sum(map(len, self.entries.values())),
            self.sum.get(),
            self.counted.get(),
            len(list(self.recent)),
        )
        return counts[0] if len(set(counts)) == 1 else counts


class CountInStatesToTheEnd(CountInStates):
    """Emits the count of each key once more at the end of input."""

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("end", ctx.get_current_key(), self.count())
        for state in (self.value, self.elements, self.entries, self.sum, self.counted):
            state.clear()
        self.recent.clear()
        assert self.recent.is_empty()
        assert self.entries.is_empty()
        assert not self.elements.get()
