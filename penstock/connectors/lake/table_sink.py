"""Define the base of sinks that write rows of a table: `TableSink`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.lake.lake_formats import create_committer, create_writer
from penstock.connectors.lake.table import Table, is_interval
from penstock.connectors.lake.table_log import LakeTable
from penstock.connectors.lake.writers import ChangeWriter, RowWriter
from penstock.connectors.staged_files import STAGING, require_own_staging
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.sink import Committer, Sink, SinkWriter, WriterContext
from penstock.snapshot.storage.filesystem.durable_files import make_folders


class TableSink(Sink[Any]):
    """A sink that writes rows of a table: it appends, overwrites or upserts them."""

    exactly_once = True

    table: Table
    mode: str
    keys: tuple[str, ...]
    is_delete: Callable[[Any], bool] | None

    def _use(
        self,
        table: Table,
        mode: str,
        keys: Sequence[str],
        is_delete: Callable[[Any], bool] | None,
    ) -> None:
        """Set the table and the arguments of the sink, and check them."""
        self.table = table
        self.stages_in_job = isinstance(table, LakeTable) and table.store is not None
        self.mode = mode
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.is_delete = is_delete
        # In the mode "overwrite", the sink needs the job's output from the first snapshot on.
        self.needs_all_output = mode == "overwrite"
        if mode not in ("append", "overwrite", "upsert"):
            raise GraphError(
                f"the mode of a {type(self).__name__} is append, overwrite or upsert, not {mode!r}"
            )
        if isinstance(table, LakeTable):
            table.require_mode(mode)
        if mode != "upsert":
            if self.keys or is_delete is not None:
                raise GraphError(f"keys and is_delete are for mode='upsert', not for {mode!r}")
            if len(table.partition_by) == len(table.schema):
                raise GraphError(f"all columns of {table} are partition columns")
            return
        if not self.keys:
            raise GraphError("mode='upsert' needs keys=[…]: the columns that identify a row")
        for key in self.keys:
            if key not in table.schema.names:
                raise GraphError(f"the key {key!r} is no column of {table}")
            kind = table.schema.field(key).type
            if (
                pa.types.is_nested(kind)
                or pa.types.is_floating(kind)
                or is_interval(table.schema.field(key))
            ):
                raise GraphError(f"the column {key!r} of type {kind} cannot be a key")
        for name in table.partition_by:
            if name not in self.keys and not isinstance(table, LakeTable):
                raise GraphError(
                    f"{table} is partitioned by {name!r}, which is not one of the keys "
                    f"{list(self.keys)}: a row might move to another partition, and its old one "
                    f"could be anywhere. Make it a key, or partition the table otherwise"
                )

    @property
    def folder(self) -> Path:
        """The folder of the table. The workers and the JobManager need access to it."""
        return self.table.location

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Create a writer that stages rows in data files."""
        if isinstance(self.table, LakeTable):
            return create_writer(self.table, context, self.mode, self.keys, self.is_delete)
        if self.mode == "upsert":
            return ChangeWriter(self.table, context, self.keys, self.is_delete)
        return RowWriter(self.table, context, collected=self.mode == "overwrite")

    def create_committer(self) -> Committer:
        """Create the committer that publishes rows through the log of the table."""
        assert isinstance(self.table, LakeTable)
        return create_committer(self.table, self.mode, self.keys)

    def validate(self) -> None:
        """Check that the table's folder can be written and supports hard links.

        Raises:
            GraphError: if the folder cannot be written, or does not support hard links.
        """
        if isinstance(self.table, LakeTable) and self.table.store is not None:
            return  # the table was opened already
        staging = self.table.location / STAGING
        probe = staging / f"probe-{os.getpid()}"
        second = probe.with_suffix(".link")
        try:
            require_own_staging(self.table.location)
        except JobError as error:
            raise GraphError(error.message) from None
        try:
            make_folders(staging)
            probe.unlink(missing_ok=True)
            second.unlink(missing_ok=True)
            probe.touch()
            second.hardlink_to(probe)
            try:
                second.hardlink_to(probe)
            except FileExistsError:
                return
            raise GraphError(
                f"{self.table} cannot be written exactly once: the file system of {staging} makes "
                f"a link over a name that exists already"
            )
        except OSError as error:
            raise GraphError(
                f"{self.table} cannot be written exactly once: a link in {staging} cannot be made "
                f"({error.strerror or error}). Its file system must have hard links"
            ) from error
        finally:
            probe.unlink(missing_ok=True)
            second.unlink(missing_ok=True)
