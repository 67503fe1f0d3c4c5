"""Spark tables and streams as sources and sinks of a job.

They need the extra `penstock[spark]`: pyspark, pyarrow, pandas, and a Java runtime. Programs use
the names below. Each is loaded when it is first used, so that a worker, which reads and writes
files with Arrow and has no JVM, does not load pyspark. Start reading in `source/table_source.py`.
`spark_types.py` has the Python type of each Spark type. For users: `docs/spark.md`.
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
    # A sentence should come before the error of a module that does not find pyarrow.
    import_module(f"{__name__}.active_session").require_spark()
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
