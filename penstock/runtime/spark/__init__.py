"""Run jobs on Spark, with workers as tasks of one barrier stage.

The JobManager runs in the driver. Spark places, starts and stops the workers, and does nothing
else. A program uses `cluster`. `preflight` refuses what would not work before anything is started.
`barrier_stage` is the stage as the driver sees it, and `stage_worker` is what runs in its tasks.
Start reading at `cluster`.

Nothing here is imported unless a program asks for Spark.
"""

from __future__ import annotations

from penstock.runtime.spark.cluster import SparkCluster
from penstock.runtime.spark.live_session import SESSION_SETTINGS

__all__ = ["SESSION_SETTINGS", "SparkCluster"]
