"""Define timestamp assigners, which return the event time of a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from penstock.dataflow.type_variables import T_contra

__all__ = ["TimestampAssigner"]


class TimestampAssigner(ABC, Generic[T_contra]):
    """Returns the event time of a record. (Flink: `TimestampAssigner`.)

    Examples:
        >>> class ClickTime(TimestampAssigner):
        ...     def extract_timestamp(self, value, record_timestamp):
        ...         return value[1]
        >>> strategy = WatermarkStrategy.for_monotonous_timestamps()
        >>> strategy = strategy.with_timestamp_assigner(ClickTime())
    """

    @abstractmethod
    def extract_timestamp(self, value: T_contra, record_timestamp: int) -> int:
        """Return the event time of a record, in milliseconds since the epoch.

        Arguments:
            value: the record.
            record_timestamp: the timestamp that the record has so far, for example from the source;
                `NO_TIMESTAMP` if it has none.
        """
