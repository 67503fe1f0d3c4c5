"""Read the snapshots of an Iceberg table: the files of one, and the snapshots after it.

pyiceberg reads the rows of a file by the ids of its columns, so columns may be renamed meanwhile.
(Iceberg's Table Spec, "Snapshots", "Column Projection".)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.connectors.lake.iceberg import opened
from penstock.connectors.lake.table_history import (
    TableCommit,
    TableHistory,
    TableVersion,
    unreadable_table,
)
from penstock.dataflow.errors import GraphError, JobError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


class IcebergHistory(TableHistory):
    """Reads the snapshots of one Iceberg table.

    Arguments:
        name: the name of the table, for messages.
        catalog: the name of the catalog.
        identifier: the namespace and the name of the table in the catalog.
        properties: the settings with which pyiceberg connects to the catalog.
        columns: the names of the columns to read; None for all.
    """

    def __init__(
        self,
        name: str,
        catalog: str,
        identifier: tuple[str, ...],
        properties: dict[str, str],
        columns: list[str] | None,
    ) -> None:
        self._name, self._catalog, self._identifier = name, catalog, identifier
        self._properties, self._columns = properties, columns

    def find(self, number: int | None, time: datetime | None) -> TableVersion:
        """Return a snapshot: by its id, or the newest at a time, or the newest."""
        with self._opened() as table:
            snapshot: Snapshot | None = table.current_snapshot()
            if number is not None:
                snapshot = table.snapshot_by_id(number)
            elif time is not None:
                snapshot = table.snapshot_as_of_timestamp(int(time.timestamp() * 1000))
            if snapshot is None and (number is not None or time is not None):
                ids = [one.snapshot_id for one in table.snapshots()]
                raise unreadable_table(
                    f"{self._name} has no snapshot {number or f'at {time}'}: it never had, or it "
                    f"was expired. Its snapshots are {ids[-5:]}"
                )
            schema = table.schema()
            if snapshot is not None and snapshot.schema_id is not None:
                schema = table.schemas()[snapshot.schema_id]
            self._chosen(schema)
            newest = 0 if snapshot is None else snapshot.snapshot_id
            return TableVersion(newest, str(table.metadata.table_uuid), schema.schema_id)

    def files(self, version: TableVersion) -> list[dict[str, Any]]:
        """Return the payloads of the data files of a snapshot."""
        if not version.number:
            return []
        with self._opened() as table:
            found = []
            for task in table.scan(snapshot_id=version.number).plan_files():
                if task.delete_files:
                    raise unreadable_table(
                        f"snapshot {version.number} of {self._name} has delete files, which mark "
                        f"rows of data files as deleted and are not read here: rewrite the data "
                        f"files first, with the procedure rewrite_data_files"
                    )
                found.append(self._payload(version, version.number, task.file))
            return sorted(found, key=lambda payload: str(payload["path"]))

    def since(self, version: TableVersion) -> Iterator[TableCommit]:
        """Yield the snapshots after one, the oldest first."""
        from pyiceberg.table.snapshots import ancestors_of

        with self._opened() as table:
            if str(table.metadata.table_uuid) != version.table:
                raise unreadable_table(
                    f"{self._name} is another table than the one that was read before: give the "
                    f"source another uid, so that it begins again"
                )
            newer = []
            known = version.number == 0
            for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
                if snapshot.snapshot_id == version.number:
                    known = True
                    break
                newer.append(snapshot)
            if not known:
                raise unreadable_table(
                    f"snapshot {version.number} of {self._name} is not among the ancestors of its "
                    f"current one: it was expired, or the table was rolled back. What was "
                    f"committed since is unknown; give the source another uid, so that it begins "
                    f"again"
                )
            if version.number == 0 and newer and newer[-1].parent_snapshot_id is not None:
                raise unreadable_table(
                    f"the first snapshots of {self._name} were expired before they were read: give "
                    f"the source another uid, so that it begins again"
                )
            for snapshot in reversed(newer):
                yield self._commit(version, table, snapshot)

    def batches(self, payload: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.table import FileScanTask
        from pyiceberg.typedef import Record

        with self._opened() as table:
            schema = table.schemas().get(payload["schema"])
            if schema is None:
                raise unreadable_table(f"{self._name} has no schema {payload['schema']} any more")
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=payload["path"],
                file_format=FileFormat[payload["format"]],
                partition=Record(*payload["partition"]),
                record_count=payload["rows"],
                file_size_in_bytes=payload["size"],
            )
            file.spec_id = payload["spec"]
            scan = ArrowScan(table.metadata, table.io, self._chosen(schema), AlwaysTrue())
            try:
                yield from scan.to_record_batches([FileScanTask(file)])
            except FileNotFoundError as error:
                raise unreadable_table(
                    f"{payload['path']}, a file of snapshot {payload['version']} of {self._name}, "
                    f"was removed: the snapshot has expired. Begin again with a newer one"
                ) from error

    def _commit(self, version: TableVersion, table: Table, snapshot: Snapshot) -> TableCommit:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        number = snapshot.snapshot_id
        operation = snapshot.summary.operation if snapshot.summary else None
        if operation is Operation.REPLACE:
            return TableCommit(number, [])  # the rows are in other files now
        if operation is not Operation.APPEND:
            name = "unknown" if operation is None else operation.value
            return TableCommit(number, [], f"removes or changes rows ({name})")
        added: list[DataFile] = []
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != number or manifest.content is not ManifestContent.DATA:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == number:
                    added.append(entry.data_file)
        files = [self._payload(version, number, file) for file in added]
        return TableCommit(number, sorted(files, key=lambda payload: str(payload["path"])))

    def _payload(self, version: TableVersion, number: int, file: DataFile) -> dict[str, Any]:
        partition = [file.partition[i] for i in range(len(file.partition))]
        plain = (bool, int, float, str, bytes, type(None))
        if not all(isinstance(value, plain) for value in partition):
            raise unreadable_table(
                f"{file.file_path} of {self._name} has the partition {partition}, and only whole "
                f"numbers, texts and the like are read here"
            )
        return {
            "version": number,
            "schema": version.schema,
            "path": file.file_path,
            "format": file.file_format.name,
            "partition": partition,
            "spec": file.spec_id,
            "size": file.file_size_in_bytes,
            "rows": file.record_count,
        }

    def _chosen(self, schema: Schema) -> Schema:
        """Return the columns that are read."""
        if self._columns is None:
            return schema
        try:
            return schema.select(*self._columns)
        except ValueError as error:
            raise unreadable_table(f"{self._name}: {error}") from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Table]:
        try:
            with opened(self._catalog, self._identifier, self._properties) as table:
                yield table
        except GraphError as error:
            raise JobError(str(error), recoverability=error.recoverability) from error
