"""Define watermark strategies for compatibility with PyFlink.

Penstock has no event time yet. So the only strategy is the strategy without watermarks.
"""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.dataflow.errors import GraphError

__all__ = ["WatermarkStrategy", "check_watermark_strategy"]

_WITHOUT = (
    "Penstock has no event time yet, so that a strategy would be ignored: give None or "
    "WatermarkStrategy.no_watermarks(), and take the time from a field of the record"
)


class WatermarkStrategy:
    """The strategy without watermarks, which is the only one. (Flink: `WatermarkStrategy`.)"""

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return the strategy for a stream without event time."""
        return WatermarkStrategy()

    @staticmethod
    def for_monotonous_timestamps() -> NoReturn:
        """Raise a `GraphError`, because Penstock has no event time yet."""
        raise GraphError(_WITHOUT)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Any) -> NoReturn:
        """Raise a `GraphError`, because Penstock has no event time yet."""
        del max_out_of_orderness
        raise GraphError(_WITHOUT)

    def with_timestamp_assigner(self, timestamp_assigner: Any) -> NoReturn:
        """Raise a `GraphError`, because Penstock has no event time yet."""
        del timestamp_assigner
        raise GraphError(_WITHOUT)

    def with_idleness(self, idle_timeout: Any) -> NoReturn:
        """Raise a `GraphError`, because Penstock has no event time yet."""
        del idle_timeout
        raise GraphError(_WITHOUT)


def check_watermark_strategy(strategy: Any) -> None:
    """Raise a `GraphError` if the argument is neither None nor a `WatermarkStrategy`."""
    if isinstance(strategy, str):
        raise GraphError(
            f"the second argument of from_source is a watermark strategy, not the name "
            f"{strategy!r}: write from_source(source, None, {strategy!r})"
        )
    if strategy is not None and not isinstance(strategy, WatermarkStrategy):
        raise GraphError(_WITHOUT)
