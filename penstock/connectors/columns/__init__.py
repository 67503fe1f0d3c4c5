"""Sources and sinks of Arrow batches: Parquet files and Arrow tables."""

from __future__ import annotations

from penstock.connectors.columns.arrow_source import ArrowSource
from penstock.connectors.columns.parquet_sink import ParquetSink
from penstock.connectors.columns.parquet_source import ParquetSource

__all__ = ["ArrowSource", "ParquetSink", "ParquetSource"]
