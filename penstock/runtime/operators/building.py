"""Define what a builder of operators gets, and the simplest builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from penstock.dataflow.async_io import RunIn
from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.job_graph import Operator
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.sink import Sink, SinkWriter
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.user_code.async_caller import AsyncCaller


@dataclass(frozen=True)
class TaskServices:
    """Gives the operators of a task access to their worker.

    Arguments:
        create_caller: returns an object that calls asynchronous functions.
        wake: wakes the task, because an operator has work.
        create_writer: returns the writer of a sink, given the metrics of the operator.
        timer: returns the time in seconds, precisely enough to measure a call.
        watermark_interval_ms: the period of watermarks, in milliseconds; 0 for none.
    """

    create_caller: Callable[[RunIn], AsyncCaller]
    wake: Callable[[], None]
    create_writer: Callable[[Sink, MetricGroup], SinkWriter]
    timer: Callable[[], float]
    watermark_interval_ms: int


def _no_services(*_: Any) -> Any:
    raise AssertionError("this operator was built without the services of a task")


NO_SERVICES = TaskServices(_no_services, _no_services, _no_services, _no_services, 0)


def _same(cls: type[Any]) -> type[Any]:
    return cls


@dataclass(frozen=True)
class OperatorPlace:
    """The place of an operator in a task, from which a builder builds it.

    Arguments:
        operator: the operator of the job graph.
        context: the context that the operator and its function get.
        services: gives access to the worker.
        adapted: returns the class to build in place of the given one. It is a subclass in batch
            mode, where results are emitted at the end.
    """

    operator: Operator
    context: OperatorContext
    services: TaskServices = NO_SERVICES
    adapted: Callable[[type[Any]], type[Any]] = _same

    @property
    def spec(self) -> OperatorSpec:
        """The specification of the operator."""
        return self.operator.spec

    @property
    def function(self) -> Any:
        """The user's function, source or sink, or the operation of an operator of Penstock."""
        return self.operator.function

    @property
    def keys(self) -> Sequence[Callable[[Any], Any] | None]:
        """A function for each input that returns the key of a record, or None."""
        selectors = self.operator.key_selector, self.operator.second_key_selector
        return [None if one is None else method_of(one, "get_key") for one in selectors]


#: A function that builds an operator.
Builder: TypeAlias = Callable[[OperatorPlace], RunningOperator]


def stateless(cls: type[RunningOperator]) -> Builder:
    """Return a builder of operators whose class has the parameters `(function, context)`."""
    return partial(_stateless, cls)


def keyed(cls: type[RunningOperator]) -> Builder:
    """Return a builder of operators whose class has the parameters `(function, context, key_of)`.

    `key_of` is a function that returns the key of a record. An operator with two inputs has a
    fourth parameter, which returns the key of a record of the second input.
    """
    return partial(_keyed, cls)


def _stateless(cls: type[Any], place: OperatorPlace) -> RunningOperator:
    operator: RunningOperator = place.adapted(cls)(place.function, place.context)
    return operator


def _keyed(cls: type[Any], place: OperatorPlace) -> RunningOperator:
    keys = place.keys if place.spec.two_inputs else place.keys[:1]
    operator: RunningOperator = place.adapted(cls)(place.function, place.context, *keys)
    return operator
