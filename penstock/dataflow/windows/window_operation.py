"""Define `WindowOperation`: everything that the operator of a window needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dataflow.functions import Function
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.state import StateDescriptor
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows.evictors import Evictor
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window import CountWindow, GlobalWindow, TimeWindow
from penstock.dataflow.windows.window_assigner import WindowAssigner


@dataclass
class WindowOperation:
    """A window, its trigger and its functions; the `function` of an operator of a window.

    Arguments:
        assigner: chooses the windows of a record.
        trigger: decides when a window fires.
        evictor: removes records from a window that fires; None if all stay.
        allowed_lateness: the time after the end of a window in which late records still belong to
            it and fire it again, in milliseconds.
        late_tag: the tag of the side output for records that are later than that; None drops them.
        aggregator: a `ReduceFunction`, an `AggregateFunction`, or a function of two records. With
            None, the window keeps all records.
        inverse: a function `(result, leaving result)` that takes back a value which the reduce
            function `aggregator` has added; None if there is none.
        window_function: a `ProcessWindowFunction` or `WindowFunction` (in a stream without keys a
            `ProcessAllWindowFunction` or `AllWindowFunction`), or a function with the arguments of
            `apply`. With None, the result of the aggregator is emitted.
        keyed: whether the stream has keys. If not, all records have the key None.
        state_label: a text in the names of the states. Operations with other labels never read
            these states. It is empty for windows over rows.
    """

    assigner: WindowAssigner
    trigger: Trigger
    evictor: Evictor | None = None
    allowed_lateness: int = 0
    late_tag: OutputTag | None = None
    aggregator: UserValue = None
    inverse: UserValue = None
    window_function: UserValue = None
    keyed: bool = True
    state_label: str = ""

    def state_names(self, base: str, windows: str = "") -> list[str]:
        """Return the name of a state of the operator, and then the names that it had before.

        Arguments:
            base: the beginning of the name.
            windows: a text that describes the windows, if their records cannot be put into others.
                Windows with another text never read the state.
        """
        former = f"{base}: {self.state_label}" if self.state_label else base
        # In earlier snapshots of this version, the name did not have this text.
        return [f"{former} ({windows})", former] if windows else [former]

    @property
    def functions(self) -> list[Function]:
        """The rich functions, which the operator opens and closes."""
        parts = (self.aggregator, self.inverse, self.window_function)
        return [part for part in parts if isinstance(part, Function)]

    @property
    def record_classes(self) -> tuple[type, ...]:
        """The classes of windows, which a window function may emit or keep in its state."""
        return (TimeWindow, CountWindow, GlobalWindow)

    @property
    def has_default_trigger(self) -> bool:
        """Whether the trigger does the same as the default trigger of an assigner of Penstock."""
        default = self.assigner.get_default_trigger()
        return _alike(self.trigger, default)


def _alike(first: Trigger, second: Trigger) -> bool:
    """Return whether two triggers are of one class and have the same settings."""
    if type(first) is not type(second):
        return False
    theirs = vars(second)
    for name, value in vars(first).items():
        other: UserValue = theirs.get(name)
        if isinstance(value, Trigger):
            if not _alike(value, other):
                return False
        elif value != other and not isinstance(value, StateDescriptor):
            return False
    return True
