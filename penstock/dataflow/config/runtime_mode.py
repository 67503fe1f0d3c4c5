"""Define the modes in which a program runs."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """The mode in which a program runs. (Flink: `RuntimeExecutionMode`.)

    STREAMING: records are processed as they come, and results are updated. The default.
    BATCH: the input is bounded, and only final results are emitted; see `docs/guides/batch.md`.
    AUTOMATIC: BATCH if all sources are bounded and the program has no loop, else STREAMING.
    """

    STREAMING = "STREAMING"
    BATCH = "BATCH"
    AUTOMATIC = "AUTOMATIC"
