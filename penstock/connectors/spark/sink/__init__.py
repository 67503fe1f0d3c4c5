"""Publish the output of a job as rows of a Spark table, exactly once.

`table_sink.py` defines the sink. `table_lookup.py` finds a table, `catalog.py` reports new files to
Spark's catalog, and `access.py` connects to the Spark session that has this catalog. The folder
`connectors/lake` stages and publishes the rows, without Spark. The user guide is
`docs/guides/spark.md`.
"""
