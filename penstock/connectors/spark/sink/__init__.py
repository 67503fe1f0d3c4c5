"""Publish the output of a job as rows of a Spark table, exactly once.

`table_sink.py` is the sink. `writers.py` stages data files with Arrow and without a JVM.
`table_committer.py` publishes them; `replacing_committers.py` adds overwriting and upserting.
`table.py` describes a table, `catalog.py` informs Spark of new files, and `access.py` finds the
Spark session to inform. The folder `lake` is for Delta Lake and Iceberg, whose tables have logs
of their own. For users: `docs/spark.md`.
"""

from __future__ import annotations

from penstock.connectors.spark.sink.table_sink import SparkTableSink

__all__ = ["SparkTableSink"]
