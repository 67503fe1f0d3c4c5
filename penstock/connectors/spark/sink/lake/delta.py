"""What a Delta table is, as far as a sink must know, and which of them are refused.

Read through the package deltalake (delta-rs), in the program; what comes of it is plain data. All
that is here is what the table's own log says: its schema is in Spark's JSON form there. The
transactions are in `delta_log.py`. (Delta's PROTOCOL.md, "Table Features".)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.sink.lake.table_log import LakeTable
from penstock.connectors.spark.sink.table import arrow_schema, require_partition_column
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    import deltalake

__all__ = ["DeltaLakeTable", "delta_table", "identity_of", "open_delta", "refusal"]

#: What a writer must be able to do, by number of the protocol, before features had names.
_BY_VERSION = {
    3: ["checkConstraints"],
    4: ["changeDataFeed", "generatedColumns"],
    5: ["columnMapping"],
    6: ["identityColumns"],
}
#: Features that delta-rs can commit to, and that ask nothing of files which are only added; of
#: those that would if they were used, `_used` says whether they are.
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
        only_appends: why rows that are there have to stay; "" if they may go.
    """

    only_appends: str = ""

    def require_mode(self, mode: str) -> None:
        """See that the table can be written in a mode of the sink.

        Raises:
            GraphError: if rows would have to go and can't.
        """
        if mode != "append" and self.only_appends:
            raise GraphError(
                f"SparkTableSink cannot write {self} with mode={mode!r}: {self.only_appends}"
            )


def delta_table(path: Path, name: str | None = None) -> DeltaLakeTable:
    """Read from its log what a Delta table is.

    Arguments:
        path: its folder.
        name: what messages call it; by default the path.

    Raises:
        GraphError: if there is no Delta table, or it can't be written exactly once.
    """
    table = open_delta(path)
    reason = refusal(table)
    if reason is not None:
        raise GraphError(f"SparkTableSink cannot write the Delta table {path}: {reason}")
    schema = arrow_schema(_fields(table))
    partition_by = tuple(table.metadata().partition_columns)
    for key in partition_by:
        require_partition_column(schema.field(key))
    return DeltaLakeTable(
        name=name,
        location=path,
        format="parquet",
        schema=schema,
        partition_by=partition_by,
        identity=identity_of(table, path),
        only_appends=_only_appends(table),
    )


def open_delta(path: Path) -> deltalake.DeltaTable:
    """The newest state of a Delta table.

    Raises:
        GraphError: if there is none, it can't be read, or the package deltalake is missing.
    """
    try:
        import deltalake
    except ImportError as error:
        raise GraphError(
            f"Delta tables are written through the package deltalake, which is not installed: "
            f"pip install 'penstock[delta]' ({error})"
        ) from error
    try:
        return deltalake.DeltaTable(path)
    except deltalake.exceptions.TableNotFoundError as error:
        raise GraphError(
            f"there is no Delta table in {path}: create it first, for example with CREATE TABLE … "
            f"USING delta, or with DeltaTable.create of the package deltalake"
        ) from error
    except (deltalake.exceptions.DeltaError, OSError) as error:
        raise GraphError(f"the Delta table {path} cannot be read: {error}") from error


def identity_of(table: deltalake.DeltaTable, path: Path) -> dict[str, Any]:
    """What tells a table from another one at its place."""
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
    """Why rows can't be added to a table exactly once; None if they can."""
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
            return f"it has {used[feature]}, which files that are added as they are don't obey"
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
    """What the table makes use of, per feature."""
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
        return "its property delta.appendOnly says that rows are only added"
    if "deletionVectors" in (table.protocol().writer_features or ()):
        return (
            "it may have deletion vectors, and delta-rs does not name them when it removes a "
            "file. Only mode='append' is sound"
        )
    return ""


def _fields(table: deltalake.DeltaTable) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields
