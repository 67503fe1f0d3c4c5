"""Write the rows of a table to staged data files, in the tasks of the sink."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.lake.data_file import EXTENSIONS, DataFile
from penstock.connectors.lake.record_encoding import RowEncoder
from penstock.connectors.lake.replacing_committers import DELETED, collection, last_per_key
from penstock.connectors.lake.table import Table, partition_folder
from penstock.connectors.lake.table_log import LakeTable
from penstock.connectors.staging_writer import naming, sink_tag
from penstock.dataflow.columns.arrow_records import fit_schema
from penstock.dataflow.errors import JobError
from penstock.dataflow.sink import SinkWriter, WriterContext

#: The maximum size of the rows that one writer holds in memory for all partitions, in bytes.
_GATHERED_BYTES = 64 << 20
#: The size at which a file is complete before the barrier, in bytes.
_FILE_BYTES = 128 << 20
#: The maximum number of partitions whose files one writer keeps open.
_OPEN_FILES = 100
#: The number of records, and of batches, at which a writer encodes the gathered records as columns.
#: Each encoding has a fixed cost, so larger groups are cheaper.
_TOGETHER, _SLICES_TOGETHER = 2048, 8


class TableWriter(SinkWriter):
    """The base class of writers, which gathers records and names staged files."""

    def __init__(self, table: Table, context: WriterContext) -> None:
        self._table = table
        self._context = context
        self._staging = table.staging(context)
        self._tag = sink_tag(context.lineage, context.uid)
        self._files = 0
        self._folders: dict[tuple[Any, ...], str] = {}
        #: The gathered records that are not encoded yet.
        self._waiting: list[Any] = []
        #: The number of batches in which the gathered records arrived.
        self._slices = 0

    def write(self, batch: list[Any]) -> None:
        """Gather a batch of records, and stage the gathered records once there are enough."""
        self._waiting += batch
        self._slices += 1
        if len(self._waiting) >= _TOGETHER or self._slices >= _SLICES_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Stage the gathered records."""
        batch, self._waiting, self._slices = self._waiting, [], 0
        if batch:
            self._stage(batch)

    @abstractmethod
    def _stage(self, batch: list[Any]) -> None:
        """Encode records as rows, and stage the rows or keep them until the next snapshot."""

    def close(self) -> None:
        """Discard the gathered records."""
        self._waiting = []

    def partitions(self, rows: pa.Table) -> list[tuple[Any, ...]] | None:
        """Return the partition of each row; None if the table has no partitions."""
        names = self._table.partition_by
        if not names:
            return None
        return list(zip(*(rows[name].to_pylist() for name in names), strict=True))

    def folder_of(self, key: tuple[Any, ...]) -> str:
        """Return the folder of a partition, relative to the folder of the data files."""
        return partition_folder(self._table.partition_by, key)

    def _folder(self, key: tuple[Any, ...], record: Any) -> str:
        """Return the folder of a record's partition.

        Raises:
            JobError: if the partition cannot name a folder. The error shows the record.
        """
        folder = self._folders.get(key)
        if folder is None:
            if len(self._folders) > 100_000:
                self._folders.clear()
            try:
                folder = self._folders[key] = self.folder_of(key)
            except JobError as error:
                raise JobError(error.message, record=repr(record)[:500]) from None
        return folder

    def _free_name(self) -> str:
        """Return an unused name for a staged file, with a prefix that only this writer uses."""
        ctx = self._context
        with naming(self._staging):
            # INSERT OVERWRITE may have removed the folder since the last file was staged.
            self._table.make_staging(ctx)
        while True:
            name = f"{self._tag}-{ctx.attempt:04d}-{ctx.subtask:05d}-{self._files:08d}"
            self._files += 1
            # A job that is stopped and started again may count its attempts from 0 again. A file
            # of the earlier run may still wait for its commit, so its name is not used again.
            if not (self._staging / name).exists():
                return name


class RowWriter(TableWriter):
    """Writes rows to staged files, one file for each partition and snapshot."""

    def __init__(self, table: Table, context: WriterContext, collected: bool) -> None:
        super().__init__(table, context)
        self._encoder = RowEncoder(table.schema, str(table))
        names = table.partition_by
        self._schema = pa.schema([f for f in table.schema if f.name not in names])
        self._root = collection(self._tag) + "/" if collected else table.data
        self._open: dict[str, DataFile] = {}
        #: The folders and data files that were completed early, to limit the number of open files.
        self._full: list[tuple[str, DataFile]] = []
        #: The files of earlier snapshots that are not sealed yet.
        self._unsealed: set[DataFile] = set()
        # Lengths of texts, and dates of old calendars, are checked row by row.
        checked = any({b"varchar", b"char", b"since"} & set(f.metadata or ()) for f in table.schema)
        if isinstance(table, LakeTable) and not checked:
            self.write_columns = self._stage_columns

    def _stage(self, batch: list[Any]) -> None:
        """Encode records as rows, and write each row to the staged file of its partition."""
        self._stage_rows(self._encoder.encode(batch), batch)

    def _stage_columns(self, batch: pa.RecordBatch) -> None:
        """Write the rows of an Arrow batch, after the records that were gathered before."""
        self.flush()
        rows = pa.Table.from_batches([fit_schema(batch, self._table.schema)])
        for field in self._table.schema:
            if not field.nullable and rows[field.name].null_count:
                raise JobError(
                    f"the column {field.name!r} of {self._table} is not nullable, and a batch has "
                    f"{rows[field.name].null_count} nulls there"
                )
        self._stage_rows(rows, None)

    def _stage_rows(self, rows: pa.Table, records: Sequence[Any] | None) -> None:
        keys = self.partitions(rows)
        # The record is for errors only.
        batch = records if records is not None else range(len(rows))
        rows = rows.select(self._schema.names)
        if keys is None:
            self._add("", rows)
            return
        if len(set(keys)) == 1:
            self._add(self._folder(keys[0], batch[0]), rows)
            return
        indices: dict[tuple[Any, ...], list[int]] = {}
        for index, key in enumerate(keys):
            indices.setdefault(key, []).append(index)
        # Name all folders before the first row is written. If a name is refused, no part of the
        # batch has been written.
        folders = {key: self._folder(key, batch[mine[0]]) for key, mine in indices.items()}
        for key, mine in indices.items():
            self._add(folders[key], rows.take(pa.array(mine)))

    def _add(self, folder: str, rows: pa.Table) -> None:
        if folder not in self._open:
            path = self._staging / self._free_name()
            self._open[folder] = DataFile(path, self._table.format, self._schema)
        file = self._open[folder]
        file.write(rows)
        if file.size >= _FILE_BYTES:
            self._complete(folder)
        if len(self._open) > 1:
            self._limit_open_files()

    def _limit_open_files(self) -> None:
        """Write the largest buffer to disk, or close a file, if a limit is exceeded."""
        if sum(f.gathered_bytes for f in self._open.values()) > _GATHERED_BYTES:
            max(self._open.values(), key=lambda f: f.gathered_bytes).flush()
        written = [folder for folder, file in self._open.items() if file.is_open]
        if len(written) > _OPEN_FILES:
            self._complete(written[0])

    def _complete(self, folder: str) -> None:
        """Complete the file of a partition before the barrier."""
        file = self._open.pop(folder)
        file.finish()
        self._full.append((folder, file))

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """End the files of a snapshot, and return a function that seals them.

        The function writes the rest of each file, syncs it, and returns the committables. The
        result is None if no rows were written since the previous snapshot.
        """
        self.flush()
        files = [*self._full, *self._open.items()]
        self._full, self._open = [], {}
        if not files:
            return None
        ctx = self._context
        uid = re.sub(r"[^A-Za-z0-9]+", "_", ctx.uid)[:40]
        stem = f"part-{snapshot:010d}-{ctx.subtask:05d}-{ctx.attempt:04d}-{uid}-{self._tag}"
        root = self._root
        self._unsealed.update(file for _, file in files)

        def seal() -> list[Any]:
            self._unsealed.difference_update(file for _, file in files)
            payloads = []
            counts: dict[str, int] = {}
            for folder, file in files:
                count = counts[folder] = counts.get(folder, 0) + 1
                name = stem + (f"-{count}" if count > 1 else "") + EXTENSIONS[self._table.format]
                target = f"{root}{folder}/{name}" if folder else root + name
                payloads.append(
                    {
                        **file.seal(),
                        "target": target,
                        "folder": folder,
                        "table": self._table.identity,
                    }
                )
            return payloads

        return seal

    def close(self) -> None:
        """Discard the gathered records, and remove the staged files that are not sealed."""
        super().close()
        current = (file for _, file in (*self._full, *self._open.items()))
        for file in (*current, *self._unsealed):
            file.discard()
        self._full, self._open = [], {}
        self._unsealed.clear()


class ChangeWriter(TableWriter):
    """Stages the last change of each key since the previous snapshot."""

    def __init__(
        self,
        table: Table,
        context: WriterContext,
        keys: tuple[str, ...],
        is_delete: Callable[[Any], bool] | None,
    ) -> None:
        super().__init__(table, context)
        self._keys = keys
        self._is_delete = is_delete
        # Key columns must not be NULL, because a NULL key never equals the key of a row.
        named = [f.with_nullable(False) if f.name in keys else f for f in table.schema]
        self._encoder = RowEncoder(pa.schema(named), str(table))
        # A record that deletes a row needs only its key columns.
        self._key_encoder = RowEncoder(pa.schema([f for f in named if f.name in keys]), str(table))
        self._schema = pa.schema([*table.schema, pa.field(DELETED, pa.bool_())])
        self._gathered: list[pa.Table] = []
        self._rows = 0

    def _stage(self, batch: list[Any]) -> None:
        """Encode records as changes, and keep only the last change of each key in memory."""
        gone = (
            [False] * len(batch) if self._is_delete is None else list(map(self._is_delete, batch))
        )
        order: list[pa.Table] = []
        begin = 0
        for end in range(1, len(batch) + 1):
            if end == len(batch) or gone[end] != gone[begin]:
                order.append(self._encode(batch[begin:end], bool(gone[begin])))
                begin = end
        rows = last_per_key(pa.concat_tables(order), self._keys)
        self._gathered.append(rows)
        self._rows += len(rows)
        if self._rows > 1_000_000:
            self._compact()

    def _encode(self, records: list[Any], gone: bool) -> pa.Table:
        if not gone:
            rows = self._encoder.encode(records)
        else:
            picked = [_pick(record, self._table.schema.names, self._keys) for record in records]
            keys = self._key_encoder.encode(picked)
            rows = pa.table(
                {
                    f.name: keys[f.name] if f.name in self._keys else pa.nulls(len(keys), f.type)
                    for f in self._table.schema
                }
            )
        # The committer creates the folders later. A name that cannot be used must fail here,
        # because the commit of a complete snapshot could never succeed.
        for key, record in zip(self.partitions(rows) or (), records, strict=False):
            self._folder(key, record)
        flag = pa.array([gone] * len(rows), pa.bool_())
        return pa.Table.from_arrays([*rows.columns, flag], schema=self._schema)

    def _compact(self) -> None:
        self._gathered = [last_per_key(pa.concat_tables(self._gathered), self._keys)]
        self._rows = len(self._gathered[0])

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        """Return a function that writes the changes of a snapshot to a staged file.

        The result is None if there are no changes since the previous snapshot.
        """
        del snapshot
        self.flush()
        gathered, self._gathered, self._rows = self._gathered, [], 0
        if not gathered:
            return None
        path = self._staging / self._free_name()

        def seal() -> list[Any]:
            file = DataFile(path, "parquet", self._schema)
            file.write(last_per_key(pa.concat_tables(gathered), self._keys))
            return [{**file.seal(), "table": self._table.identity}]

        return seal

    def close(self) -> None:
        """Discard the gathered records and changes."""
        super().close()
        self._gathered = []


def _pick(record: Any, names: list[str], keys: tuple[str, ...]) -> Any:
    """Return the key columns of a record, which is a dict, a tuple, a list or an object.

    Raises:
        JobError: if the record lacks a key column as an attribute.
    """
    wanted = [name for name in names if name in keys]
    if isinstance(record, dict):
        return {key: record[key] for key in wanted if key in record}
    if type(record) in (tuple, list) and len(record) == len(names):
        return tuple(record[names.index(key)] for key in wanted)
    try:
        return {key: getattr(record, key) for key in wanted}
    except AttributeError:
        raise JobError(
            f"a record that deletes a row must hold its keys {wanted}", record=repr(record)[:500]
        ) from None
