"""Define the functions of `map_with_state`, `distinct`, `sample` and `top_k`."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator

from penstock.dataflow.functions import FilterFunction, KeyedProcessFunction, MapFunction
from penstock.dataflow.state import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)
from penstock.dataflow.time import MAX_WATERMARK
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows import AggregateFunction


class StatefulMap(MapFunction):
    """Maps each record with the state of its key.

    Arguments:
        function: a function `(state, record)` that returns (next state, result).
        initial: the first state of each key, or a function without arguments that returns it.
    """

    def __init__(
        self,
        function: Callable[[UserValue, UserValue], tuple[UserValue, UserValue]],
        initial: object,
    ) -> None:
        self._function, self._initial = function, initial

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the keys."""
        self._state = runtime_context.get_state(ValueStateDescriptor("state"))

    def map(self, value: UserValue) -> UserValue:
        """Update the state of the record's key, and return the result of the function."""
        state = self._state.value()
        if state is None:
            state = self._initial() if callable(self._initial) else copy.deepcopy(self._initial)
        made = self._function(state, value)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise TypeError(
                f"the function of map_with_state returns (next state, result), not {made!r}"
            )
        state, result = made
        if state is None:
            self._state.clear()
        else:
            self._state.update(state)
        return result


class FirstOfKey(FilterFunction):
    """Keeps the first record of each key.

    Arguments:
        ttl: how long a key is remembered. With None, no key is forgotten.
    """

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self._ttl = ttl

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state: whether a record of the key was seen before."""
        descriptor = ValueStateDescriptor("seen")
        if self._ttl is not None:
            descriptor.enable_time_to_live(self._ttl)
        self._seen = runtime_context.get_state(descriptor)

    def filter(self, value: object) -> bool:
        """Return whether this is the first record of its key."""
        del value
        if self._seen.value() is not None:
            return False
        self._seen.update(True)
        return True


class RandomSample(FilterFunction, CheckpointedFunction):
    """Keeps each record with a probability.

    Each snapshot contains the state of the random number generator. So the sample is the same even
    after a failure, if the records of each subtask have the same order.

    Arguments:
        fraction: the probability, from 0 to 1.
        seed: the seed of the random numbers. With None, they are those of the operator's context.
    """

    def __init__(self, fraction: float, seed: int | None) -> None:
        self._fraction, self._seed = fraction, seed
        self._random = random.Random()

    def open(self, runtime_context: RuntimeContext) -> None:
        """Seed the random numbers of the subtask, unless they were restored."""
        if self._seed is None:
            self._random = runtime_context.get_random()
        elif not self._restored:
            self._random.seed(f"{self._seed} {runtime_context.get_index_of_this_subtask()}")

    def filter(self, value: object) -> bool:
        """Return whether the record belongs to the sample."""
        del value
        return self._random.random() < self._fraction

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store the state of the random numbers."""
        del context
        if self._seed is not None:
            version, numbers, gauss = self._random.getstate()
            self._states.update([[version, list(numbers), gauss]])

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Restore the state of the random numbers."""
        self._restored = False
        if self._seed is None:
            return
        store = context.get_operator_state_store()
        self._states = store.get_list_state(ListStateDescriptor("random numbers"))
        for version, numbers, gauss in self._states.get():
            self._random.setstate((version, tuple(numbers), gauss))
            self._restored = True


class _Ranking:
    """Inserts records into lists of the best ones.

    Arguments:
        k: the largest number of records in a list.
        by: a function that returns the value by which records are compared.
    """

    def __init__(self, k: int, by: Callable[[UserValue], UserValue]) -> None:
        self._k, self._by = k, by

    def inserted(self, best: list[UserValue], record: UserValue) -> list[UserValue]:
        """Return a new list that contains the record, or the same list if its value is too low."""
        value, by = self._by(record), self._by
        # If two records have equal values, the earlier one is better.
        worse = (index for index, other in enumerate(best) if by(other) < value)
        place = next(worse, len(best))
        return best if place >= self._k else [*best[:place], record, *best[place : self._k - 1]]


class TopK(KeyedProcessFunction):
    """Emits (key, its best records) whenever they have changed.

    Arguments:
        k: the number of records.
        by: a function that returns the value by which records are compared.
    """

    def __init__(self, k: int, by: Callable[[UserValue], UserValue]) -> None:
        self._arguments = k, by
        self._inserted = _Ranking(k, by).inserted

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state: the best records of each key, the best one first."""
        self._best = runtime_context.get_state(ValueStateDescriptor("best"))

    def process_element(
        self, value: UserValue, ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[UserValue, list[UserValue]]]:
        """Insert a record. If it is among the best ones, emit these."""
        before = self._best.value() or []
        best = self._inserted(before, value)
        if best is not before:
            self._best.update(best)
            yield from self._changed(best, ctx)

    def in_batch_mode(self) -> KeyedProcessFunction:
        """Return the function for batch mode, which emits the final records only."""
        return FinalTopK(*self._arguments)

    def _changed(
        self, best: list[UserValue], ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[UserValue, list[UserValue]]]:
        return [(ctx.get_current_key(), best)]


class FinalTopK(TopK):
    """Emits (key, its best records) when the input has ended. Arguments are those of `TopK`."""

    def _changed(
        self, best: list[UserValue], ctx: KeyedProcessFunction.Context
    ) -> Iterable[tuple[UserValue, list[UserValue]]]:
        del best
        ctx.timer_service().register_event_time_timer(MAX_WATERMARK)
        return ()

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[tuple[UserValue, list[UserValue]]]:
        """Emit the best records of a key at the end of the input."""
        del timestamp
        yield ctx.get_current_key(), self._best.value() or []


class TopKAggregate(AggregateFunction):
    """Finds the best records of a window. Arguments are those of `TopK`."""

    merges_panes = True

    def __init__(self, k: int, by: Callable[[UserValue], UserValue]) -> None:
        self._inserted = _Ranking(k, by).inserted

    def create_accumulator(self) -> list[UserValue]:
        """Return an empty list."""
        return []

    def add(self, value: UserValue, accumulator: list[UserValue]) -> list[UserValue]:
        """Return the best records with one more."""
        return self._inserted(accumulator, value)

    def get_result(self, accumulator: list[UserValue]) -> list[UserValue]:
        """Return the best records, the best one first."""
        return accumulator

    def merge(self, acc_a: list[UserValue], acc_b: list[UserValue]) -> list[UserValue]:
        """Return the best records of two lists."""
        for record in acc_b:
            acc_a = self._inserted(acc_a, record)
        return acc_a
