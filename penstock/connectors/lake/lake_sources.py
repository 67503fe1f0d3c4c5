"""The sources of Delta Lake and Iceberg tables, without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from penstock.connectors.columns.parquet_files import check_column_names
from penstock.connectors.lake.delta_history import DeltaHistory
from penstock.connectors.lake.iceberg_history import IcebergHistory
from penstock.connectors.lake.iceberg_settings import checked_settings, divided_name
from penstock.connectors.lake.lake_source import LakeSource
from penstock.connectors.lake.table_store import TableStore
from penstock.object_store import ObjectStore


class DeltaSource(LakeSource):
    """Reads the rows of a Delta table as columns, without Spark.

    It reads one version and ends; or it then reads the rows of each new commit, and never ends. The
    rows are Arrow batches, which functions over rows see as dicts. Commits that only arrange rows
    in other files, such as OPTIMIZE, are passed over. (Flink: the Delta connector, `DeltaSource`.)

    Arguments:
        table: the folder of the table, a URL such as `s3://bucket/table`, or an `ObjectStore`.
        columns: the names of the columns to read; None for all.
        version: the version to begin with; None for the newest when the job starts.
        timestamp: a `datetime`, to begin with the newest version at that time.
        discovery_seconds: the time between two searches for new commits, in seconds; None to read
            one version only.
        only_new: whether to skip the rows of the first version, and to read later commits only.
        on_rewrite: what to do with a new commit that removes or changes rows: "fail" the job, or
            "skip" the commit with a warning.
        clock: a function that returns a monotonic time, in seconds.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> import deltalake, pyarrow
        >>> deltalake.write_deltalake("prices", pyarrow.table({"price": [5, 7]}))
        >>> prices = env.from_source(DeltaSource("prices")).map(lambda row: row["price"])
        >>> sorted(prices.execute_and_collect())
        [5, 7]
    """

    def __init__(
        self,
        table: str | os.PathLike[str] | ObjectStore,
        columns: Sequence[str] | None = None,
        *,
        version: int | None = None,
        timestamp: datetime | None = None,
        discovery_seconds: float | None = None,
        only_new: bool = False,
        on_rewrite: str = "fail",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        store = TableStore(table)
        history = DeltaHistory(store, check_column_names(None, columns))
        super().__init__(
            f"the Delta table {store}",
            history,
            version,
            timestamp,
            discovery_seconds,
            only_new,
            on_rewrite,
            clock,
        )


class IcebergSource(LakeSource):
    """Reads the rows of an Iceberg table as columns, without Spark.

    It reads one snapshot and ends; or it then reads the rows of each new snapshot, and never ends.
    The rows are Arrow batches, which functions over rows see as dicts. Snapshots that only arrange
    rows in other files are passed over. (Flink: the Iceberg connector, `IcebergSource`.)

    Arguments:
        table: the name of the table with its catalog and namespace, such as `lake.sales.orders`.
        catalog: the settings with which pyiceberg connects to the catalog, as for `IcebergSink`.
        columns: the names of the columns to read; None for all.
        snapshot_id: the id of the snapshot to begin with; None for the newest when the job starts.
        timestamp: a `datetime`, to begin with the newest snapshot at that time.
        discovery_seconds, only_new, on_rewrite, clock: as for `DeltaSource`.

    Raises:
        GraphError: if an argument is wrong.

    Examples:
        >>> settings = {"type": "sql", "uri": "sqlite:////lake/catalog.db"}
        >>> IcebergSource("lake.sales.orders", settings, ["price"]).location
        'the Iceberg table lake.sales.orders'
    """

    def __init__(
        self,
        table: str,
        catalog: Mapping[str, str],
        columns: Sequence[str] | None = None,
        *,
        snapshot_id: int | None = None,
        timestamp: datetime | None = None,
        discovery_seconds: float | None = None,
        only_new: bool = False,
        on_rewrite: str = "fail",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        name, identifier = divided_name(table)
        settings = checked_settings(name, catalog)
        history = IcebergHistory(
            table, name, identifier, settings, check_column_names(None, columns)
        )
        super().__init__(
            f"the Iceberg table {table}",
            history,
            snapshot_id,
            timestamp,
            discovery_seconds,
            only_new,
            on_rewrite,
            clock,
        )
