"""Spark tables and streams as sources and sinks of a job.

Needs the extra `penstock[spark]`: pyspark, pyarrow, pandas, and a Java runtime. Whoever writes a
program uses the names below; each is loaded when it is first asked for, so that a worker, which
reads and writes files with Arrow and has no JVM, doesn't load pyspark either. Start reading in
`table_source.py`, then `pin.py`. What a Spark type is in Python is in `spark_types.py`. For users:
`docs/spark.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.connectors.spark.active_session import find_java, spark_session
    from penstock.connectors.spark.sink.table_sink import SparkTableSink
    from penstock.connectors.spark.stream_source import SparkStreamSource
    from penstock.connectors.spark.table_source import SparkTableSource

_WHERE = {
    "SparkStreamSource": "stream_source",
    "SparkTableSink": "sink.table_sink",
    "SparkTableSource": "table_source",
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
    # Said in a sentence before a module fails to find pyarrow.
    import_module(f"{__name__}.active_session").require_spark()
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
