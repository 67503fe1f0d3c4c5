"""Say how to install the packages that connectors for HTTP need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.dataflow.errors import JobError, Recoverability


def require(module: str) -> Any:
    """Import a module, and return it.

    Raises:
        JobError: if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise JobError(
            f"this connector needs the package {package}, which is not installed: "
            f"pip install 'penstock[http]'",
            recoverability=Recoverability.NON_RECOVERABLE,
        ) from error
