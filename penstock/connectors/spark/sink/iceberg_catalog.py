"""Translate the settings of an Iceberg catalog from Spark's names to pyiceberg's names.

Spark and pyiceberg support the same kinds of catalog under different names. Secrets are left out,
because the settings are stored with the job. pyiceberg reads secrets from its own file
(`~/.pyiceberg.yaml`) or from environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.connectors.lake.iceberg_settings import SECRET, checked_settings
from penstock.dataflow.errors import GraphError

SPARK_CATALOGS = (
    "org.apache.iceberg.spark.SparkCatalog",
    "org.apache.iceberg.spark.SparkSessionCatalog",
)
_PREFIX = "org.apache.iceberg."
_KINDS = {
    "rest": "rest",
    "hive": "hive",
    "glue": "glue",
    "jdbc": "sql",
    "rest.RESTCatalog": "rest",
    "hive.HiveCatalog": "hive",
    "aws.glue.GlueCatalog": "glue",
    "jdbc.JdbcCatalog": "sql",
}
#: Pattern of the settings that have the same name and meaning in Spark and pyiceberg.
_SHARED = re.compile(r"uri|warehouse|prefix|scope|audience|resource|oauth2-server-uri|header\..+")


def from_spark(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which pyiceberg connects to a catalog of Spark.

    Arguments:
        name: the name of the catalog in Spark.
        settings: all settings of the Spark session, by their full names.

    Raises:
        GraphError: if pyiceberg does not support this kind of catalog, or a setting is a secret.
    """
    prefix = f"spark.sql.catalog.{name}."
    own = {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}
    kind = own.get("type") or own.get("catalog-impl", "").removeprefix(_PREFIX) or "hive"
    if kind not in _KINDS:
        reason = (
            "a commit there is a rename of a file, and pyiceberg has no such catalog"
            if kind in ("hadoop", "hadoop.HadoopCatalog")
            else "pyiceberg has no such catalog"
        )
        raise GraphError(
            f"the Iceberg catalog {name!r} is of the type {kind!r}: {reason}. Use one of rest, "
            f"hive, glue and jdbc, or say how pyiceberg reaches the table: "
            f"SparkTableSink(…, iceberg_catalog={{…}})"
        )
    result = {"type": _KINDS[kind]}
    result |= {k: v for k, v in own.items() if _SHARED.fullmatch(k) and not SECRET.search(k)}
    if result["type"] == "hive" and "uri" not in result:
        for key in ("spark.hadoop.hive.metastore.uris", "hive.metastore.uris"):
            if settings.get(key):
                result["uri"] = settings[key]
    if result["type"] == "sql":
        result["uri"] = _from_jdbc(name, result.get("uri", ""), own.get("jdbc.user"))
    return checked_settings(name, result)


def _from_jdbc(name: str, uri: str, user: str | None) -> str:
    scheme, _, rest = uri.removeprefix("jdbc:").partition(":")
    if scheme == "sqlite":
        return f"sqlite:///{rest.removeprefix('file:')}"
    if scheme == "postgresql":
        place = rest.removeprefix("//").partition("?")[0]
        return f"postgresql+psycopg2://{user + '@' if user else ''}{place}"
    raise GraphError(
        f"the Iceberg catalog {name!r} is in the database {uri!r}, and only sqlite and postgresql "
        f"are known here: say how SQLAlchemy reaches it, "
        f"SparkTableSink(…, iceberg_catalog={{'type': 'sql', 'uri': …}})"
    )
