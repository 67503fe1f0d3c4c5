"""Spark tables and streams as sources and sinks of a job.

This package needs the extra `penstock[spark]` (pyspark, pyarrow and pandas) and a Java runtime.
Each public name is imported at its first use. Workers read and write files with Arrow, so they
never import pyspark. To learn how a source works, begin with `source/table_source.py`.
`spark_types.py` lists the Python type of each Spark type. The user guide is `docs/guides/spark.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.connectors.spark.active_session import find_java, spark_session
    from penstock.connectors.spark.sink.table_sink import SparkTableSink
    from penstock.connectors.spark.source.stream_source import SparkStreamSource
    from penstock.connectors.spark.source.table_source import SparkTableSource

_WHERE = {
    "SparkStreamSource": "source.stream_source",
    "SparkTableSink": "sink.table_sink",
    "SparkTableSource": "source.table_source",
    "find_java": "active_session",
    "spark_session": "active_session",
}

__all__ = [
    "SparkStreamSource",
    "SparkTableSink",
    "SparkTableSource",
    "find_java",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # If pyarrow is missing, this check raises an error that names the extra to install.
    import_module(f"{__name__}.active_session").require_spark()
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
