"""Rows of a Spark table as the output of a job, exactly once.

`table_sink.py` has the sink; `writers.py` stage data files with Arrow and no JVM; `table_committer.py`
publishes them, with what is special to overwriting and upserting in `replacing_committers.py`.
`table.py` knows what a table is, `catalog.py` tells Spark of new files, and `access.py` finds the
Spark to tell. Tables of Delta Lake and Iceberg, which have logs of their own, are in the folder
`lake`. For users: `docs/spark.md`.
"""

from __future__ import annotations

from penstock.connectors.spark.sink.table_sink import SparkTableSink

__all__ = ["SparkTableSink"]
