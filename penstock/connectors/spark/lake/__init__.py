"""Write tables of Delta Lake and Iceberg. The log of a table lists its data files.

A sink publishes a snapshot with one transaction of the table. The transaction also records the
snapshot's number, so the table itself shows which output is published (`table_log`).

`table_lookup` finds a table by its name. `delta` and `iceberg` describe tables, and refuse a table
that cannot be written exactly once. `delta_log` and `iceberg_log` perform the transactions
through the packages deltalake and pyiceberg. `lake_committers` publishes output through either
log. `lake_formats` creates the log, the writer and the committer of a table.
"""

from __future__ import annotations

from penstock.connectors.spark.lake.lake_formats import create_committer, create_writer
from penstock.connectors.spark.lake.table_log import LakeTable
from penstock.connectors.spark.lake.table_lookup import find_table, find_table_in_session

__all__ = [
    "LakeTable",
    "create_committer",
    "create_writer",
    "find_table",
    "find_table_in_session",
]
