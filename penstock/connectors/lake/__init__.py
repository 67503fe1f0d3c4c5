"""Write tables of files, of Delta Lake and of Iceberg exactly once, without Spark and a JVM.

Writers (`writers.py`) stage data files with Arrow. `table_committer.py` and
`replacing_committers.py` publish the staged files of a table that is only a folder. The log of a
Delta or Iceberg table lists its data files. There, one transaction publishes a snapshot, and also
records the snapshot's number, so the table itself shows which output is published (`table_log.py`).

`delta.py` and `iceberg.py` describe tables, and refuse a table that cannot be written exactly once.
`delta_log.py` and `iceberg_log.py` perform the transactions through the packages deltalake and
pyiceberg. `lake_committers.py` publishes output through either log. `lake_formats.py` creates the
log, the writer and the committer of a table. The Spark connectors use the same code.

`lake_source.py` reads versions of tables, through `delta_history.py` and `iceberg_history.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.dataflow.columns.arrow import require_pyarrow

if TYPE_CHECKING:
    from penstock.connectors.lake.lake_sinks import DeltaSink, IcebergSink
    from penstock.connectors.lake.lake_sources import DeltaSource, IcebergSource

_WHERE = {
    "DeltaSink": "lake_sinks",
    "DeltaSource": "lake_sources",
    "IcebergSink": "lake_sinks",
    "IcebergSource": "lake_sources",
}

__all__ = ["DeltaSink", "DeltaSource", "IcebergSink", "IcebergSource"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # If pyarrow is missing, this check raises an error that names the extra to install.
    require_pyarrow(name)
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
