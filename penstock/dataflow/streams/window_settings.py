"""Define the settings that all windows have in common: trigger, evictor and allowed lateness."""

from __future__ import annotations

import copy
import logging
from typing import Generic, NoReturn, Self

from penstock.dataflow.arguments.durations import DurationLike, milliseconds_of
from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import Function, check_methods
from penstock.dataflow.type_variables import T, T_co, UserValue
from penstock.dataflow.windows.evictors import Evictor
from penstock.dataflow.windows.other_triggers import NeverTrigger
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window import W
from penstock.dataflow.windows.window_assigner import MergingWindowAssigner, WindowAssigner
from penstock.dataflow.windows.window_operation import WindowOperation

_LOGGER = logging.getLogger("penstock")


class WindowSettings(Generic[T_co, W]):
    """The settings of a window: the base class of windowed streams and of window joins.

    Arguments:
        environment: the environment that the stream belongs to.
        assigner: chooses the windows of a record.
    """

    def __init__(self, environment: BaseEnvironment, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, WindowAssigner):
            _refuse_assigner(assigner)
        self._environment = environment
        self._assigner = assigner
        self._trigger: Trigger[T_co, W] | None = None
        self._evictor: Evictor[T_co, W] | None = None
        self._allowed_lateness = 0

    def get_execution_environment(self) -> BaseEnvironment:
        """Return the environment that the stream belongs to."""
        return self._environment

    def trigger(self, trigger: Trigger[T_co, W]) -> Self:
        """Set the trigger, which decides when a window emits its result.

        It replaces the default trigger of the window assigner.

        Raises:
            GraphError: if `trigger` is not a `Trigger`, or if windows can merge and the
                trigger does not support that.
        """
        if not isinstance(trigger, Trigger):
            raise GraphError(f"trigger(...) takes an object of class Trigger, not {trigger!r}")
        can_merge = trigger.can_merge() and trigger.on_merge is not None
        if isinstance(self._assigner, MergingWindowAssigner) and not can_merge:
            raise GraphError(
                f"the windows of {type(self._assigner).__name__} merge, and the trigger "
                f"{type(trigger).__name__} does not support that: define its methods can_merge "
                f"and on_merge"
            )
        self._trigger = trigger
        return self

    def evictor(self, evictor: Evictor[T_co, W]) -> Self:
        """Set an evictor, which removes records from a window when it fires.

        A window with an evictor keeps all its records, also if it has a reduce function.

        Raises:
            GraphError: if `evictor` is not an `Evictor`.
        """
        if not isinstance(evictor, Evictor):
            raise GraphError(f"evictor(...) takes an object of class Evictor, not {evictor!r}")
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: DurationLike) -> Self:
        """Set how long after its end a window still accepts late records.

        Each such record fires the window again. The default is 0. Windows by processing time have
        no late records.

        Arguments:
            time_ms: the time in milliseconds, as a `timedelta` or as a `Time`.
        """
        self._allowed_lateness = milliseconds_of("allowed_lateness", time_ms)
        return self

    def _operation(self, **parts: UserValue) -> WindowOperation:
        """Return the operation of a window with these settings.

        Arguments:
            parts: the functions of the window, as arguments of `WindowOperation`.
        """
        trigger = self._trigger
        if trigger is None:
            trigger = self._assigner.get_default_trigger(self._environment)
        if isinstance(trigger, NeverTrigger):
            _LOGGER.warning(
                "a window of %s never emits a result, because its trigger never fires: set another "
                "with trigger(...), such as PurgingTrigger.of(CountTrigger.of(100))",
                type(self._assigner).__name__,
            )
        for part in (self._assigner, trigger, self._evictor, *parts.values()):
            check_methods(part)
        return WindowOperation(
            self._assigner,
            trigger,
            self._evictor,
            self._allowed_lateness,
            **parts,
        )


def own(function: T) -> T:
    """Return a copy of a rich function, which the program may use for other operators, too."""
    return copy.copy(function) if isinstance(function, Function) else function


def _refuse_assigner(assigner: object) -> NoReturn:
    hint = ""
    if isinstance(assigner, type) and issubclass(assigner, WindowAssigner):
        makers = [name for name in ("of", "with_gap", "create") if hasattr(assigner, name)]
        hint = f": write {'.'.join([assigner.__name__, *makers[:1]])}(...)"
    raise GraphError(f"a window takes a window assigner, not {assigner!r}{hint}")
