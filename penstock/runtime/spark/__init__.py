"""Run jobs on Spark, with workers as tasks of one barrier stage.

The JobManager runs in the Spark driver. Spark only places, starts and stops the workers.

* `cluster` has the class that programs use. Start reading there.
* `preflight` checks the session and the executors before a job starts.
* `barrier_stage` starts and ends the stage from the driver.
* `stage_worker` runs a worker inside a Spark task.

These modules are imported only if a program runs on Spark.
"""

from __future__ import annotations

from penstock.runtime.spark.cluster import SparkCluster
from penstock.runtime.spark.live_session import SESSION_SETTINGS

__all__ = ["SESSION_SETTINGS", "SparkCluster"]
