"""The API for columns: batch functions, aggregations over columns, and Arrow batches.

Only functions of this folder import pyarrow, so a job without columns does not need it.
"""

from __future__ import annotations

from penstock.dataflow.columns.batch_function import BatchFunction
from penstock.dataflow.columns.column_times import ColumnTimestamps

__all__ = ["BatchFunction", "ColumnTimestamps"]
