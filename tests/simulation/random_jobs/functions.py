"""Functions with state, whose output says whether each record was processed exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.dataflow.functions import (
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    RuntimeContext,
)
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import ListStateDescriptor, ValueStateDescriptor

__all__ = [
    "LARGE",
    "Count",
    "CountToTheEnd",
    "Draw",
    "Hop",
    "HopLater",
    "HopToTheEnd",
    "Later",
    "LaterByWatermark",
    "NewNumbers",
    "SameNumbers",
    "Split",
    "visits",
]

LARGE = OutputTag("large")
#: Milliseconds after which a timer does not fire, because the function deletes it.
NEVER = 3_600_000


class Count(KeyedProcessFunction):
    """Emits a running count per key, kept as a number or as a list that grows in place."""

    def __init__(self, mutable: bool) -> None:
        self.mutable = mutable

    def open(self, context: RuntimeContext) -> None:
        self.number = context.get_state(ValueStateDescriptor("number"))
        self.seen = context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.mutable:
            seen = self.seen.value()
            if seen is None:
                seen = []
                self.seen.update(seen)
            seen.append(1)
        else:
            self.number.update((self.number.value() or 0) + 1)
        yield ("count", ctx.get_current_key(), self.count())

    def count(self) -> int:
        return len(self.seen.value()) if self.mutable else self.number.value()


class CountToTheEnd(Count):
    """Emits the count of each key once more at the end of input."""

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("end", ctx.get_current_key(), self.count())


class Hop(KeyedProcessFunction):
    """Takes (id, hops left), reports the visit, and sends the record on while hops are left."""

    def open(self, context: RuntimeContext) -> None:
        self.arrived = context.get_state(ValueStateDescriptor("arrived"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        id, left = value
        self.arrived.update((self.arrived.value() or 0) + 1)
        yield ("visit", id, left)
        for _ in range(_copies(left)):
            yield ("on", id, left - 1)


class HopToTheEnd(Hop):
    """Emits at the end of input how many records came to each key."""

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("end", ctx.get_current_key(), self.arrived.value())


class Later(KeyedProcessFunction):
    """Emits each number some milliseconds later, when a timer fires by processing time.

    At the end of the input it emits the numbers whose timers do not fire any more.
    """

    def open(self, context: RuntimeContext) -> None:
        self.waiting = context.get_state(ValueStateDescriptor("waiting"))

    def process_element(self, value: Any, ctx: Any) -> None:
        service = ctx.timer_service()
        due = service.current_processing_time() + _delay(value)
        self.waiting.update([*(self.waiting.value() or []), (due, value)])
        service.register_processing_time_timer(due)
        service.register_processing_time_timer(due + NEVER)
        service.delete_processing_time_timer(due + NEVER)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        waiting = self.waiting.value()
        self.waiting.update([pair for pair in waiting if pair[0] != timestamp] or None)
        for due, value in waiting:
            if due == timestamp:
                yield from self.fire(value)

    def fire(self, value: Any) -> Iterator[Any]:
        yield ("later", value)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        for _, value in self.waiting.value():
            yield from self.fire(value)
        self.waiting.clear()


class LaterByWatermark(Later):
    """Emits each number when a timer fires by event time; all fire before the end."""

    def process_element(self, value: Any, ctx: Any) -> None:
        service = ctx.timer_service()
        due = ctx.timestamp() + _delay(value)
        self.waiting.update([*(self.waiting.value() or []), (due, value)])
        service.register_event_time_timer(due)
        service.register_event_time_timer(due + NEVER)
        service.delete_event_time_timer(due + NEVER)

    def fire(self, value: Any) -> Iterator[Any]:
        yield ("later", value)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        raise AssertionError(f"timers of {ctx.get_current_key()} wait at the end of the input")


class HopLater(Later):
    """Does what `Hop` does, when a timer fires; all timers fire before a loop ends."""

    def fire(self, value: Any) -> Iterator[Any]:
        id, left = value
        yield ("visit", id, left)
        for _ in range(_copies(left)):
            yield ("on", id, left - 1)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        raise AssertionError(f"timers of {ctx.get_current_key()} wait at the end of the loop")


class HopByWatermark(LaterByWatermark):
    """Does what `Hop` does, when a timer fires by event time; all fire before a loop ends."""

    def fire(self, value: Any) -> Iterator[Any]:
        return HopLater.fire(self, value)  # type: ignore[arg-type]


class Split(ProcessFunction):
    """Sends odd numbers to a side output."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value % 2:
            yield LARGE, value
        else:
            yield value


class Draw(MapFunction):
    """Gives each number a random one."""

    def open(self, context: RuntimeContext) -> None:
        self.random = context.get_random()

    def map(self, value: Any) -> tuple[str, int, int]:
        return "drawn", value, self.random.getrandbits(60)


class NewNumbers(KeyedProcessFunction):
    """Passes on what was drawn, and says so if a random number comes twice for a key."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        _, number, drawn = value
        yield "twice" if drawn in (self.seen.get() or ()) else "passed", number, drawn
        self.seen.add(drawn)


class SameNumbers(KeyedProcessFunction):
    """Gets what was drawn for a number on two ways, and emits the number if both agree."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        way, number, drawn = value
        if any(one[0] != way and one[1:] == [number, drawn] for one in self.seen.get() or ()):
            yield "agreed", number
        if way == "twice":
            yield value
        self.seen.add([way, number, drawn])


def _delay(value: Any) -> int:
    number = value[0] + value[1] if isinstance(value, tuple) else value
    return (1, 5, 30, 100)[number % 4]


def _copies(left: int) -> int:
    """Return how many records go on; some multiply, so that a loop holds more than came in."""
    return {0: 0, 3: 2}.get(left, 1)


def visits(start: int) -> Counter[int]:
    """Count the visits of a record that begins with `start` hops left, by the hops left."""
    found, now = Counter[int](), Counter({start: 1})
    while now:
        found.update(now)
        after = Counter[int]()
        for left, number in now.items():
            if _copies(left):
                after[left - 1] += number * _copies(left)
        now = after
    return found
