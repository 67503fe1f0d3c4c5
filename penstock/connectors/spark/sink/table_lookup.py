"""Find a Delta or Iceberg table by its name.

Spark provides its settings and the catalog's entry for the table. The table itself is read without
Spark. `DESCRIBE TABLE EXTENDED` is used without `AS JSON`, because the form that returns rows works
for all kinds of tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.connectors.folders import local_path
from penstock.connectors.lake.delta import delta_table
from penstock.connectors.lake.iceberg import iceberg_table
from penstock.connectors.lake.iceberg_settings import checked_settings
from penstock.connectors.lake.table import local_folder
from penstock.connectors.lake.table_log import LakeTable
from penstock.connectors.spark.sink.access import require_jvm
from penstock.connectors.spark.sink.iceberg_catalog import (
    SPARK_CATALOGS,
    from_spark,
)
from penstock.dataflow.errors import GraphError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


def find_table(name: str, iceberg_catalog: Mapping[str, str] | None = None) -> LakeTable | None:
    """Find a Delta or Iceberg table by its name, without a Spark session.

    Arguments:
        name: the name of the table, as in SQL. ``delta.`/path` `` is a Delta table.
        iceberg_catalog: the settings with which pyiceberg connects to the Iceberg catalog. The
            first part of the name is the name of the catalog.

    Returns:
        The table, or None if only a Spark session can find it.

    Raises:
        GraphError: if the table does not exist, it cannot be written exactly once, or a package is
            missing.
    """
    parts = _parts(name)
    if iceberg_catalog is not None:
        if len(parts) < 3:
            raise GraphError(
                f"an Iceberg table is named with its catalog and namespace, as in "
                f"lake.sales.orders, and not {name!r}"
            )
        return iceberg_table(parts[0], parts[1:], checked_settings(parts[0], iceberg_catalog))
    if len(parts) == 2 and parts[0].lower() == "delta" and re.search(r"[/\\:]", parts[1]):
        return delta_table(local_path(re.sub("^file:/+", "/", parts[1])))
    return None


def find_table_in_session(session: SparkSession, name: str) -> LakeTable | None:
    """Find a table by its name in a Spark session, or return None for other formats.

    Raises:
        GraphError: if the Delta or Iceberg table cannot be written exactly once, its catalog cannot
            be used through pyiceberg, or a package is missing.
    """
    parts = _parts(name)
    catalog = str(session.catalog.currentCatalog())
    if len(parts) > 1 and session.conf.get(f"spark.sql.catalog.{parts[0]}", None) is not None:
        catalog, parts = parts[0], parts[1:]
    if len(parts) == 1:
        parts = [str(session.catalog.currentDatabase()), *parts]
    kind = session.conf.get(f"spark.sql.catalog.{catalog}", None)
    iceberg = kind in SPARK_CATALOGS
    if iceberg and catalog != "spark_catalog":
        return iceberg_table(catalog, parts, from_spark(catalog, _settings(session)))
    facts = _facts(session, name)
    provider = facts.get("Provider", "").lower()
    if provider == "delta":
        return delta_table(local_folder(name, facts["Location"]), ".".join(parts))
    if provider == "iceberg":
        if not iceberg:
            raise GraphError(
                f"{name!r} is an Iceberg table, but spark.sql.catalog.{catalog} is {kind}: only "
                f"{' and '.join(SPARK_CATALOGS)} are known. Say how pyiceberg reaches it: "
                f"SparkTableSink(…, iceberg_catalog={{…}})"
            )
        return iceberg_table(catalog, parts, from_spark(catalog, _settings(session)))
    return None


def _parts(name: str) -> list[str]:
    """Split an SQL name at its dots, and remove the quotes of each part."""
    parts = []
    for quoted, plain in _PART.findall(name):
        parts.append(quoted.replace("``", "`") if quoted else plain.strip())
    return parts


def _settings(session: SparkSession) -> dict[str, str]:
    require_jvm(session)  # some settings can be read only through the JVM
    return dict(session.sparkContext.getConf().getAll()) | dict(session.conf.getAll)


def _facts(session: SparkSession, name: str) -> dict[str, str]:
    """Return the catalog's details of a table; an empty dict if Spark cannot describe it."""
    try:
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except Exception:
        # The caller looks the table up again, and reports the error.
        return {}
    facts: dict[str, str] = {}
    details = False
    for key, value, *_ in rows:
        details = details or key == "# Detailed Table Information"
        if details:
            facts.setdefault(str(key), str(value))
    return facts
