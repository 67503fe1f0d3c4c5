"""Jobs on a Spark cluster: workers are tasks of one barrier stage, the JobManager is the driver.

`cluster.py` is what a program uses; `checks.py` refuses what would not work before anything is
started; `gang.py` is the stage as the driver sees it, and `member.py` what runs in its tasks.
Spark places, starts and stops the workers, and does nothing else. Start reading at `cluster.py`.

Nothing here is imported unless a program asks for Spark.
"""

from __future__ import annotations

from penstock.runtime.spark.cluster import SparkCluster
from penstock.runtime.spark.session import SESSION_SETTINGS

__all__ = ["SESSION_SETTINGS", "SparkCluster"]
