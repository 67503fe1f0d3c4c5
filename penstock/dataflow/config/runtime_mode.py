"""Define the modes in which a program runs."""

from __future__ import annotations

from enum import Enum


class RuntimeExecutionMode(Enum):
    """The mode in which a program runs. (Flink: `RuntimeExecutionMode`.)

    STREAMING: records are processed as they come, and results are updated. The default.
    BATCH: the input is bounded, and only final results are emitted; see `docs/guides/batch.md`.
    AUTOMATIC: BATCH if all sources are bounded and the program has no loop, else STREAMING.

    Examples:
        >>> _ = env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        >>> results = env.from_collection(["a", "b", "a"]).key_by(lambda word: word).count()
        >>> list(results.execute_and_collect())
        [('a', 2), ('b', 1)]
    """

    STREAMING = "STREAMING"
    BATCH = "BATCH"
    AUTOMATIC = "AUTOMATIC"
