"""Describe a table of plain files from Spark's catalog."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.lake.table import Table, local_folder, require_partition_column
from penstock.connectors.spark.sink.access import Run
from penstock.dataflow.errors import GraphError


def describe_table(run: Run, name: str, schema: pa.Schema) -> Table:
    """Read the description of a table from the catalog.

    Arguments:
        run: a function that runs an SQL statement.
        name: the name of the table, as in SQL.
        schema: the columns of the table.

    Raises:
        GraphError: if rows cannot be published exactly once in a table of this kind.
    """
    facts, identity = look_up(run, name)
    parts = [facts["catalog_name"], *facts["namespace"], facts["table_name"]]
    for key in identity["partition columns"]:
        require_partition_column(schema.field(key))
    return Table(
        name=".".join("`" + part.replace("`", "``") + "`" for part in parts),
        location=Path(identity["location"]),
        format=identity["format"],
        schema=schema,
        partition_by=tuple(identity["partition columns"]),
        registered=facts.get("partition_provider") == "Catalog",
        identity=identity,
    )


def look_up(run: Run, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the catalog's details of a table, and the identity computed from them."""
    facts = json.loads(run(f"DESCRIBE TABLE EXTENDED {name} AS JSON")[0])
    _refuse(name, facts)
    in_memory = run("SET spark.sql.catalogImplementation")[0] == "in-memory"
    return facts, {
        "location": str(local_folder(name, facts["location"])),
        "format": facts["provider"].lower(),
        "partition columns": facts.get("partition_columns", []),
        # Each run of the program creates the tables of an in-memory catalog again. So their times
        # of creation differ between runs, and are left out.
        "time of creation": "" if in_memory else str(facts.get("created_time", "")),
        "columns": {
            column["name"]: hashlib.blake2b(
                json.dumps(column["type"], sort_keys=True).encode(), digest_size=6
            ).hexdigest()
            for column in facts["columns"]
        },
    }


def _refuse(name: str, facts: dict[str, Any]) -> None:
    provider = str(facts.get("provider", "")).lower()
    reason = None
    if facts.get("type") == "VIEW":
        reason = "it is a view: name the table behind it"
    elif facts.get("catalog_name") != "spark_catalog":
        reason = (
            f"it is in the catalog {facts.get('catalog_name')!r}, and only tables of Spark's own "
            f"catalog are known to be folders of plain files"
        )
    elif facts.get("num_buckets"):
        reason = (
            "it is bucketed: Spark trusts that each file holds one bucket by its own hash, so a "
            "file from elsewhere gives wrong results"
        )
    elif provider == "hive":
        reason = "it is a Hive SerDe table: create it with USING parquet or USING orc"
    elif provider not in ("parquet", "orc"):
        reason = (
            f"it is USING {provider or '?'}: only parquet and orc are plain files that can be "
            f"published one by one"
        )
    if reason is not None:
        raise GraphError(f"SparkTableSink cannot write {name!r} exactly once: {reason}")
