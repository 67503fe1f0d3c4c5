"""Describe a Delta table for a sink, and refuse a table that cannot be written exactly once.

The user's program reads the table's log through the package deltalake (delta-rs). The log holds
the schema in Spark's JSON form. The description is plain data. `delta_log.py` performs the
transactions. (Delta's PROTOCOL.md, "Table Features".)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.lake.table import arrow_schema, require_partition_column
from penstock.connectors.lake.table_log import LakeTable
from penstock.connectors.lake.table_store import TableStore
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    import deltalake

#: The table features of each writer protocol version from 3 to 6. From version 7 on, each table
#: lists its features by name.
_BY_VERSION = {
    3: ["checkConstraints"],
    4: ["changeDataFeed", "generatedColumns"],
    5: ["columnMapping"],
    6: ["identityColumns"],
}
#: The table features that the sink supports, because they need nothing in added files. However, a
#: table is refused if it uses one of the features that `_used` returns.
_HARMLESS = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
_RETENTION = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True)
class DeltaLakeTable(LakeTable):
    """A Delta table.

    Arguments:
        only_appends: the reason why existing rows cannot be removed; "" if they can.
    """

    only_appends: str = ""

    @property
    def place(self) -> TableStore | Path:
        """The folder or the store of the table."""
        return self.location if self.store is None else self.store

    def require_mode(self, mode: str) -> None:
        """Check that the table can be written in a mode of the sink.

        Raises:
            GraphError: if the mode removes rows and rows of this table cannot be removed.
        """
        if mode != "append" and self.only_appends:
            raise GraphError(
                f"the sink cannot write {self} with mode={mode!r}: {self.only_appends}"
            )


def delta_table(path: Path | TableStore, name: str | None = None) -> DeltaLakeTable:
    """Read the description of a Delta table from its log.

    Arguments:
        path: the folder of the table, or its place in an object store.
        name: the table's name in messages. None stands for the path.

    Raises:
        GraphError: if the folder has no Delta table, or the table cannot be written exactly once.
    """
    table = open_delta(path)
    reason = refusal(table)
    if reason is not None:
        raise GraphError(f"the sink cannot write the Delta table {path}: {reason}")
    schema = arrow_schema(_fields(table))
    partition_by = tuple(table.metadata().partition_columns)
    for key in partition_by:
        require_partition_column(schema.field(key))
    store = path if isinstance(path, TableStore) else None
    only_appends = _only_appends(table)
    if store is not None:
        name, only_appends = str(store), "only rows of tables in local folders can be replaced"
    return DeltaLakeTable(
        name=name,
        location=Path(str(path)),
        format="parquet",
        schema=schema,
        partition_by=partition_by,
        identity=identity_of(table, path),
        only_appends=only_appends,
        store=store,
    )


def open_delta(path: Path | TableStore) -> deltalake.DeltaTable:
    """Open the newest state of a Delta table.

    Raises:
        GraphError: if the folder has no Delta table, the table cannot be read, or the package
            deltalake is missing.
    """
    try:
        import deltalake
    except ImportError as error:
        raise GraphError(
            f"Delta tables are written through the package deltalake, which is not installed: "
            f"pip install 'penstock[delta]' ({error})"
        ) from error
    try:
        if isinstance(path, TableStore):
            return deltalake.DeltaTable(path.uri, storage_options=path.delta_options)
        return deltalake.DeltaTable(path)
    except deltalake.exceptions.TableNotFoundError as error:
        raise GraphError(
            f"there is no Delta table in {path}: create it first, for example with CREATE TABLE … "
            f"USING delta, or with DeltaTable.create of the package deltalake"
        ) from error
    except (deltalake.exceptions.DeltaError, OSError) as error:
        raise GraphError(f"the Delta table {path} cannot be read: {error}") from error


def identity_of(table: deltalake.DeltaTable, path: Path | TableStore) -> dict[str, Any]:
    """Return the identity of a table; another table at the same path has another identity."""
    metadata = table.metadata()
    return {
        "location": str(path),
        "format": "delta",
        "id": str(metadata.id),
        "partition columns": list(metadata.partition_columns),
        "columns": {
            field["name"]: hashlib.blake2b(
                json.dumps([field["type"], field["nullable"]], sort_keys=True).encode(),
                digest_size=6,
            ).hexdigest()
            for field in _fields(table)
        },
    }


def refusal(table: deltalake.DeltaTable) -> str | None:
    """Return the reason why a table cannot be written exactly once, or None."""
    protocol = table.protocol()
    version = protocol.min_writer_version
    features = set(protocol.writer_features or ())
    for number, names in _BY_VERSION.items():
        if number <= version < 7:
            features.update(names)
    if version > 7:
        return f"it needs version {version} of Delta's writer protocol, and 7 is known"
    used = _used(table)
    for feature in sorted(features):
        if feature in used:
            return f"it has {used[feature]}, which rows that are only added may violate"
        if feature not in _HARMLESS:
            return f"it has the feature {feature!r}, which cannot be written through delta-rs"
    configuration = table.metadata().configuration
    if configuration.get(_RETENTION):
        return (
            f"its property {_RETENTION} ({configuration[_RETENTION]}) lets the log forget which "
            f"snapshots it has; a job that is resumed later would publish them again. Unset it: "
            f"ALTER TABLE … UNSET TBLPROPERTIES ('{_RETENTION}')"
        )
    return None


def _used(table: deltalake.DeltaTable) -> dict[str, str]:
    """Return the features that a table uses, each with a text that names the part using it."""
    used = {}
    configuration = table.metadata().configuration
    constraints = [key for key in configuration if key.startswith("delta.constraints.")]
    if constraints:
        used["checkConstraints"] = f"the constraint {constraints[0].split('.', 2)[2]!r}"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        used["columnMapping"] = "column mapping (names in files that are not those of its columns)"
    for field in _fields(table):
        metadata = field.get("metadata", {})
        if "delta.invariants" in metadata:
            used["invariants"] = f"an invariant on its column {field['name']!r}"
        if "delta.generationExpression" in metadata:
            used["generatedColumns"] = f"the generated column {field['name']!r}"
        if any(key.startswith("delta.identity.") for key in metadata):
            used["identityColumns"] = f"the identity column {field['name']!r}"
    return used


def _only_appends(table: deltalake.DeltaTable) -> str:
    configuration = table.metadata().configuration
    if configuration.get("delta.appendOnly", "").lower() == "true":
        return "by its property delta.appendOnly, rows may only be added"
    if "deletionVectors" in (table.protocol().writer_features or ()):
        return (
            "it may have deletion vectors, and delta-rs does not name them when it removes a "
            "file. Only mode='append' is sound"
        )
    return ""


def _fields(table: deltalake.DeltaTable) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields
