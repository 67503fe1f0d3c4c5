"""Define the classes with which a PyFlink program gives lengths of time and points in time.

Every argument that is a length of time also takes a number of milliseconds or a `timedelta`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


class Duration(timedelta):
    """A length of time. (Flink: `java.time.Duration`.)

    It is a `timedelta`, and so has a resolution of a microsecond.

    Examples:
        >>> Duration.of_seconds(90).to_millis()
        90000
    """

    @staticmethod
    def of_days(days: float) -> Duration:
        """Return a duration of this many days."""
        return Duration(days=days)

    @staticmethod
    def of_hours(hours: float) -> Duration:
        """Return a duration of this many hours."""
        return Duration(hours=hours)

    @staticmethod
    def of_minutes(minutes: float) -> Duration:
        """Return a duration of this many minutes."""
        return Duration(minutes=minutes)

    @staticmethod
    def of_seconds(seconds: float) -> Duration:
        """Return a duration of this many seconds."""
        return Duration(seconds=seconds)

    @staticmethod
    def of_millis(millis: float) -> Duration:
        """Return a duration of this many milliseconds."""
        return Duration(milliseconds=millis)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """Return a duration of this many nanoseconds, rounded down to microseconds."""
        return Duration(microseconds=nanos // 1000)

    def to_millis(self) -> int:
        """Return the duration in milliseconds, rounded down."""
        return self // timedelta(milliseconds=1)


@dataclass(frozen=True, order=True)
class Time:
    """The length of a window, in milliseconds. (Flink: `Time`.)

    Arguments:
        length: the length of time, in milliseconds.

    Examples:
        >>> Time.minutes(1).to_milliseconds()
        60000
    """

    length: int

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """Return a time of this many milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        """Return a time of this many seconds."""
        return Time(seconds * 1000)

    @staticmethod
    def minutes(minutes: int) -> Time:
        """Return a time of this many minutes."""
        return Time(minutes * 60_000)

    @staticmethod
    def hours(hours: int) -> Time:
        """Return a time of this many hours."""
        return Time(hours * 3_600_000)

    @staticmethod
    def days(days: int) -> Time:
        """Return a time of this many days."""
        return Time(days * 86_400_000)

    def to_milliseconds(self) -> int:
        """Return the length in milliseconds."""
        return self.length


@dataclass(frozen=True, order=True)
class Instant:
    """A point in time. (Flink: `java.time.Instant`.)

    Arguments:
        seconds: seconds since the epoch.
        nanos: nanoseconds after this second, from 0 to 999,999,999.

    Examples:
        >>> Instant.of_epoch_milli(1_500)
        Instant(seconds=1, nanos=500000000)
    """

    seconds: int
    nanos: int

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Return the point that lies this many milliseconds after the epoch."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * 1_000_000)

    def to_epoch_milli(self) -> int:
        """Return the milliseconds since the epoch, rounded down."""
        return self.seconds * 1000 + self.nanos // 1_000_000
