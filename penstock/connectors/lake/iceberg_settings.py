"""Check the settings with which pyiceberg connects to a catalog, before they travel with a job.

pyiceberg reads secrets from its own file (`~/.pyiceberg.yaml`) or from environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from penstock.dataflow.errors import GraphError

#: Pattern of the names of settings that are secret.
SECRET = re.compile(r"(?i)secret|password|token|credential")


def checked_settings(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Check a catalog's settings for pyiceberg, and return them with absolute paths.

    Arguments:
        name: the name of the catalog.
        properties: the settings, as for `pyiceberg.catalog.load_catalog`.

    Raises:
        GraphError: if one of the settings contains a secret, which must not be stored with a job.
    """
    result = {str(key): str(value) for key, value in properties.items()}
    secret = next((key for key in result if SECRET.search(key)), None)
    if secret is None and urlsplit(result.get("uri", "")).password:
        secret = "uri"
    if secret is not None:
        variable = f"PYICEBERG_CATALOG__{name.upper()}__{secret.upper()}"
        raise GraphError(
            f"the setting {secret!r} of the Iceberg catalog {name!r} has a secret, and settings "
            f"travel with the job: put it into ~/.pyiceberg.yaml, or into the environment as "
            f"{variable.replace('-', '_').replace('.', '__')}"
        )
    uri = result.get("uri", "")
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        # The JobManager may run in another folder, so the path must be absolute.
        result["uri"] = f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
    return result


def divided_name(table: str) -> tuple[str, tuple[str, ...]]:
    """Divide the name of a table into that of its catalog, and its namespace and name there.

    Raises:
        GraphError: if the name has not these parts.
    """
    catalog, *identifier = table.split(".")
    if len(identifier) < 2:
        raise GraphError(
            f"an Iceberg table is named with its catalog and namespace, as in "
            f"lake.sales.orders, and not {table!r}"
        )
    return catalog, tuple(identifier)
