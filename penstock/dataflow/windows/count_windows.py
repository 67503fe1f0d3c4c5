"""Define windows that depend on the number of records, and the global window."""

from __future__ import annotations

from collections.abc import Collection

from penstock.dataflow.arguments.durations import whole_number
from penstock.dataflow.state import ValueStateDescriptor
from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.windows.other_triggers import CountTrigger, NeverTrigger, PurgingTrigger
from penstock.dataflow.windows.trigger import Trigger
from penstock.dataflow.windows.window import CountWindow, GlobalWindow
from penstock.dataflow.windows.window_assigner import WindowAssigner


class _CountWindows(WindowAssigner[UserValue, CountWindow]):
    """Numbers the records of each key.

    Arguments:
        size: the number of records of a window.
        state_name: the name of the state with the number of records so far.
    """

    def __init__(self, size: int, state_name: str) -> None:
        self.size = whole_number(f"the size of {type(self).__name__}", size, least=1)
        self.counter = ValueStateDescriptor(state_name)

    def count(self, context: WindowAssigner.WindowAssignerContext) -> int:
        """Return the number of earlier records of the key, and count one more."""
        state = context.get_runtime_context().get_state(self.counter)
        earlier: int = state.value() or 0
        state.update(earlier + 1)
        return earlier

    def get_default_trigger(self, env: UserValue = None) -> Trigger:
        """Return a trigger that fires a window when it is full, and removes its records."""
        del env
        return PurgingTrigger(CountTrigger(self.size))

    def is_event_time(self) -> bool:
        """Return False."""
        return False


class CountTumblingWindowAssigner(_CountWindows):
    """Divides the records of a key into windows of equal size.

    A window that is not full when the input ends emits nothing. (PyFlink:
    `CountTumblingWindowAssigner`.)

    Arguments:
        window_size: the number of records of a window.

    Examples:
        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: "all")
        >>> windows = numbers.window(CountTumblingWindowAssigner.of(2))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1, 2], [3, 4]]
    """

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, "tumble-count-assigner")

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:
        """Return an assigner for windows of `window_size` records."""
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(
        self, element: UserValue, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        """Return the window of the next record of the key."""
        del element, timestamp
        return [CountWindow(self.count(context) // self.size)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size})"


class CountSlidingWindowAssigner(_CountWindows):
    """Divides the records of a key into windows of equal size that overlap.

    (PyFlink: `CountSlidingWindowAssigner`.)

    Arguments:
        window_size: the number of records of a window.
        window_slide: the number of records between the starts of two windows.

    Examples:
        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: "all")
        >>> windows = numbers.window(CountSlidingWindowAssigner.of(2, 1))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1, 2], [2, 3], [3, 4]]
    """

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__(window_size, "slide-count-assigner")
        self.slide = whole_number(f"the slide of {type(self).__name__}", window_slide, least=1)

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Return an assigner for windows of `window_size` records that begin every `window_slide`.

        The first window emits its result after `window_size` records.
        """
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(
        self, element: UserValue, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        """Return the windows of the next record of the key, the latest first."""
        del element, timestamp
        number = self.count(context)
        last = number // self.slide
        first = max(0, (number - self.size) // self.slide + 1)
        return [CountWindow(id) for id in range(last, first - 1, -1)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.slide})"


class GlobalWindows(WindowAssigner[UserValue, GlobalWindow]):
    """Assigns all records of a key to one window. (Flink: `GlobalWindows`.)

    The window never ends. So the program must set a trigger, such as
    `PurgingTrigger.of(CountTrigger.of(100))`.

    Examples:
        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: "all")
        >>> windows = numbers.window(GlobalWindows.create()).trigger(CountTrigger.of(2))
        >>> list(windows.apply(lambda key, window, numbers: [list(numbers)]).execute_and_collect())
        [[1, 2], [1, 2, 3, 4]]
    """

    @staticmethod
    def create() -> GlobalWindows:
        """Return an assigner."""
        return GlobalWindows()

    def assign_windows(
        self, element: UserValue, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        """Return the global window."""
        del element, timestamp, context
        return [GlobalWindow()]

    def get_default_trigger(self, env: UserValue = None) -> Trigger:
        """Return a trigger that never fires."""
        del env
        return NeverTrigger()

    def is_event_time(self) -> bool:
        """Return False."""
        return False

    def __repr__(self) -> str:
        return "GlobalWindows()"
