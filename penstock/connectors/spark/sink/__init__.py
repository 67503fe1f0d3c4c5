"""Publish the output of a job as rows of a Spark table, exactly once.

`table_sink.py` defines the sink. `writers.py` stages data files with Arrow and without a JVM.
`table_committer.py` publishes the staged files, and `replacing_committers.py` does so for the modes
"overwrite" and "upsert". `table.py` describes a table, `catalog.py` reports new files to Spark's
catalog, and `access.py` connects to the Spark session that has this catalog. The folder
`connectors/spark/lake` is for Delta Lake and Iceberg, whose tables have logs. The user guide is
`docs/guides/spark.md`.
"""
