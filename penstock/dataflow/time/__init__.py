"""Define event time: timestamps, watermarks, and the strategies that generate them.

Start reading at `watermark_strategy.py`. All times are milliseconds since the epoch.
"""

from __future__ import annotations

from penstock.dataflow.time.durations import Duration, Instant, Time
from penstock.dataflow.time.time_domain import TimeCharacteristic, TimeDomain
from penstock.dataflow.time.timer_service import TimerService
from penstock.dataflow.time.watermark import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    NO_TIMESTAMP,
    Watermark,
)
from penstock.dataflow.time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
    WatermarkOutput,
)
from penstock.dataflow.time.watermark_strategy import (
    TimestampAssigner,
    WatermarkAlignment,
    WatermarkStrategy,
    check_watermark_strategy,
)

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "NO_TIMESTAMP",
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "Duration",
    "Instant",
    "NoWatermarks",
    "Time",
    "TimeCharacteristic",
    "TimeDomain",
    "TimerService",
    "TimestampAssigner",
    "Watermark",
    "WatermarkAlignment",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "check_watermark_strategy",
]
