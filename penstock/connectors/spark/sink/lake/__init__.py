"""Delta Lake and Iceberg tables as sinks: formats that list their files in a log of their own.

Data files are staged and put into the table's folder as for plain files; rows appear when one
transaction in the table's log names all files of a snapshot. That transaction carries the
snapshot's number, so it can be seen in the table itself what is published (`table_log.py`).

`table_lookup.py` says which tables these are; `delta.py` and `iceberg.py` describe them and refuse those
that can't be written exactly once; `delta_log.py` and `iceberg_log.py` do the transactions, and
`table_committer.py` has the committers for both. Delta is written through the package deltalake and
Iceberg through pyiceberg, in the JobManager; there is no JVM in it, nor Spark.
"""

from __future__ import annotations

from penstock.connectors.spark.sink.lake.table_log import LakeTable
from penstock.connectors.spark.sink.lake.table_lookup import find_table, find_table_in_session

__all__ = ["LakeTable", "find_table", "find_table_in_session"]
