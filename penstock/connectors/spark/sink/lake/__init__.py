"""Write tables of Delta Lake and Iceberg, whose logs define which files are rows.

A sink publishes a snapshot with one transaction of the table. The transaction also records the
snapshot's number, so the table itself shows which output is published (`table_log`).

`table_lookup` finds a table by its name. `delta` and `iceberg` describe the tables and refuse
those that cannot be written exactly once. `delta_log` and `iceberg_log` perform the transactions
through the packages deltalake and pyiceberg. `lake_committers` publishes through either, and
`lake_formats` chooses the parts for a table. No other module imports this package's face.
"""

from __future__ import annotations

from penstock.connectors.spark.sink.lake.lake_formats import create_committer, create_writer
from penstock.connectors.spark.sink.lake.table_log import LakeTable
from penstock.connectors.spark.sink.lake.table_lookup import find_table, find_table_in_session

__all__ = [
    "LakeTable",
    "create_committer",
    "create_writer",
    "find_table",
    "find_table_in_session",
]
