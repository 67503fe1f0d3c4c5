"""Functions with two inputs and with operator state, for random jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.dataflow.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ProcessFunction,
    RuntimeContext,
)
from penstock.dataflow.state import (
    CheckpointedFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from tests.simulation.random_jobs.functions import Count, Hop

__all__ = [
    "SEEN",
    "CoCount",
    "CoCountToTheEnd",
    "CoHop",
    "CoHopToTheEnd",
    "Hold",
    "KeyedSeen",
    "Seen",
]

SEEN = MapStateDescriptor("seen")
NUMBER = ValueStateDescriptor("number")


class CoCount(KeyedCoProcessFunction):
    """Counts the records of both inputs together, per key; see `Count`."""

    def __init__(self, mutable: bool) -> None:
        self.counting = Count(mutable)

    def open(self, context: RuntimeContext) -> None:
        self.counting.open(context)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.counting.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.counting.process_element(value, ctx)


class CoCountToTheEnd(CoCount):
    """Emits the count of each key once more at the end of both inputs."""

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("end", ctx.get_current_key(), self.counting.count())


class CoHop(KeyedCoProcessFunction):
    """Takes new records on the first input and those of the loop on the second; see `Hop`."""

    def __init__(self) -> None:
        self.hop = Hop()

    def open(self, context: RuntimeContext) -> None:
        self.hop.open(context)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert value[1] == value[0] % 4 * 2, "a record of the loop came to the first input"
        return self.hop.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.hop.process_element(value, ctx)


class CoHopToTheEnd(CoHop):
    """Emits at the end of input how many records came to each key."""

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("end", ctx.get_current_key(), self.hop.arrived.value())


class Seen(BroadcastProcessFunction):
    """Counts the broadcast records of each key, in broadcast state.

    Arguments:
        keys: how many different keys there are.
    """

    def __init__(self, keys: int) -> None:
        self.keys = keys

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ("left", value, 0)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        state, key = ctx.get_broadcast_state(SEEN), value % self.keys
        state.put(key, (state.get(key) or 0) + 1)
        yield ("count", key, state.get(key))


class KeyedSeen(KeyedBroadcastProcessFunction):
    """Counts the records of each key in keyed state, and the broadcast records as `Seen` does."""

    def __init__(self, keys: int) -> None:
        self.seen = Seen(keys)

    def open(self, context: RuntimeContext) -> None:
        self.number = context.get_state(NUMBER)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.number.update((self.number.value() or 0) + 1)
        yield ("own", ctx.get_current_key(), self.number.value())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.seen.process_broadcast_element(value, ctx)


class Hold(ProcessFunction, CheckpointedFunction):
    """Holds records back in operator state, and emits them four at a time."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor("held"))
        self.held = list(self.saved.get())
        # Each subtask adds one element, so a restored one sees those of all subtasks before.
        self.starts = store.get_union_list_state(ListStateDescriptor("starts"))
        self.before = len(list(self.starts.get()))
        assert (self.before > 0) <= context.is_restored()

    def snapshot_state(self, context: Any) -> None:
        self.saved.update(self.held)
        self.starts.update([context.get_checkpoint_id()])

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.held.append(value)
        if len(self.held) >= 4:
            yield from self.end_input(ctx)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        held, self.held = self.held, []
        for value in held:
            yield ("held", value, 0)
