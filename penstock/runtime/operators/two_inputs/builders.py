"""Build the operators of connected streams and of broadcast streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.dataflow.functions import Function
from penstock.dataflow.state import CheckpointedFunction
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.two_inputs.broadcast import BroadcastStates, ReadOnlyContext
from penstock.runtime.operators.two_inputs.operator import TwoInputOperator
from penstock.runtime.operators.two_inputs.sides import (
    BroadcastSide,
    FlatMapSide,
    KeyedReadOnlySide,
    KeyedSide,
    MapSide,
    ProcessSide,
    as_flat_map,
    as_map,
)

Side = Callable[..., RunningOperator]


def build_co_map(place: OperatorPlace) -> RunningOperator:
    """Build the operator of a `CoMapFunction`."""
    if place.spec.keyed and _may_use_keyed_state(place.function):
        return _keyed(place, "map", partial(KeyedSide, adapted=as_map))
    return _unkeyed(place, "map", MapSide)


def build_co_flat_map(place: OperatorPlace) -> RunningOperator:
    """Build the operator of a `CoFlatMapFunction`."""
    if place.spec.keyed and _may_use_keyed_state(place.function):
        return _keyed(place, "flat_map", partial(KeyedSide, adapted=as_flat_map))
    return _unkeyed(place, "flat_map", FlatMapSide)


def build_co_process(place: OperatorPlace) -> RunningOperator:
    """Build the operator of a `CoProcessFunction` or a `KeyedCoProcessFunction`."""
    if place.spec.keyed:
        return _keyed(place, "process_element", KeyedSide)
    return _unkeyed(place, "process_element", ProcessSide)


def _unkeyed(place: OperatorPlace, method: str, side: Side) -> RunningOperator:
    sides = [side(place.function, place.context, f"{method}{number}") for number in (1, 2)]
    return _two_inputs(place, *sides)


def _keyed(place: OperatorPlace, method: str, side: Side) -> RunningOperator:
    sides = [
        side(place.function, place.context, key_of, f"{method}{number}")
        for number, key_of in enumerate(place.keys, 1)
    ]
    return _two_inputs(place, *sides)


def build_broadcast(place: OperatorPlace) -> RunningOperator:
    """Build the operator of a function with broadcast state."""
    function, context = place.function, place.context
    states = BroadcastStates(context, place.operator.broadcast_states)
    first: RunningOperator
    if place.spec.keyed:
        key_of: Any = place.keys[0]
        first = KeyedReadOnlySide(function, context, key_of, states)
    else:
        shown = ReadOnlyContext(context, states)
        first = ProcessSide(function, context, "process_element", shown)
    return _two_inputs(place, first, BroadcastSide(function, context, states), states)


def _two_inputs(place: OperatorPlace, *parts: Any) -> RunningOperator:
    cls = place.adapted(TwoInputOperator)
    operator: RunningOperator = cls(place.function, place.context, *parts)
    return operator


def _may_use_keyed_state(function: Any) -> bool:
    """Return whether a function has a method in which it can get keyed state."""
    return type(function).open is not Function.open or isinstance(function, CheckpointedFunction)
