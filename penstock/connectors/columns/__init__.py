"""Sources and sinks of Arrow batches: Parquet files and Arrow tables."""

from __future__ import annotations

from penstock.connectors.columns.parquet_sink import ParquetSink

__all__ = ["ParquetSink"]
