"""Define windows: the groups into which the records of a key are divided."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

from penstock.dataflow.errors import GraphError
from penstock.dataflow.time.watermark import MAX_WATERMARK
from penstock.dataflow.type_variables import TypeVar, UserValue


class Window:
    """The base class of windows. (Flink: `Window`.)

    A window of a program is a named tuple with this second base class. Its items are part of the
    key under which the window's contents are stored, so their types must be types of keys:

        class _Items(NamedTuple):
            shop: str
            end: int

        class ShopWindow(_Items, Window):
            def max_timestamp(self):
                return self.end - 1

    Examples:
        >>> issubclass(TimeWindow, Window), TimeWindow(0, 10).max_timestamp()
        (True, 9)
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `abc` does not check classes of tuples.
        if issubclass(cls, tuple) and cls.max_timestamp is Window.max_timestamp:
            raise GraphError(f"the class of windows {cls.__name__} needs a method max_timestamp")

    @abstractmethod
    def max_timestamp(self) -> int:
        """Return the last timestamp that still belongs to the window, in ms since the epoch."""


#: The class of the windows of an assigner, a trigger or a function.
W = TypeVar("W", bound=Window, default=UserValue)
W_co = TypeVar("W_co", bound=Window, covariant=True, default=UserValue)
W_contra = TypeVar("W_contra", bound=Window, contravariant=True, default=UserValue)


class _Interval(NamedTuple):
    start: int
    end: int


class TimeWindow(_Interval, Window):
    """The window of all timestamps from `start` up to, but not including, `end`.

    Windows are ordered by start and end. (Flink: `TimeWindow`.)

    Arguments:
        start, end: milliseconds since the epoch. They may be negative.

    Examples:
        >>> TimeWindow(0, 10).intersects(TimeWindow(5, 15)), TimeWindow(0, 10).max_timestamp()
        (True, 9)
    """

    __slots__ = ()

    def max_timestamp(self) -> int:
        """Return the last timestamp of the window: `end - 1`."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether two windows overlap, or one begins where the other ends."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both windows."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Return the start of the window of size `window_size` that contains a timestamp.

        Windows begin at all times `offset + n * window_size`, also before the epoch.
        """
        return timestamp - (timestamp - offset) % window_size


class _Number(NamedTuple):
    id: int


class CountWindow(_Number, Window):
    """A window of a given number of records. (PyFlink: `CountWindow`.)

    Arguments:
        id: the position of the window among the windows of its key, from 0.

    Examples:
        >>> CountWindow(3).id
        3
    """

    __slots__ = ()

    def max_timestamp(self) -> int:
        """Return the largest possible timestamp, because the window has no end in time."""
        return MAX_WATERMARK


class GlobalWindow(tuple[()], Window):
    """The one window of all records of a key. (Flink: `GlobalWindow`.)

    Examples:
        >>> GlobalWindow.get() == GlobalWindow.get()
        True
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def get() -> GlobalWindow:
        """Return the global window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """Return the largest possible timestamp, because the window has no end."""
        return MAX_WATERMARK

    @classmethod
    def _make(cls, items: object) -> GlobalWindow:
        del items
        return cls()

    def __repr__(self) -> str:
        return "GlobalWindow()"


class TimeWindowSerializer:
    """Stands for the encoding of time windows. Window assigners of PyFlink programs return it.

    Penstock has its own encoding of windows, and does not use it. (PyFlink:
    `TimeWindowSerializer`.)

    Examples:
        >>> serializer = TimeWindowSerializer()
    """


class CountWindowSerializer:
    """Stands for the encoding of count windows; see `TimeWindowSerializer`.

    Examples:
        >>> serializer = CountWindowSerializer()
    """


class GlobalWindowSerializer:
    """Stands for the encoding of the global window; see `TimeWindowSerializer`.

    Examples:
        >>> serializer = GlobalWindowSerializer()
    """
