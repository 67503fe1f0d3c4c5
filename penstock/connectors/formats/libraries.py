"""Import the libraries of formats when they are needed, and name the extra if one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from penstock.dataflow.errors import GraphError


def library(name: str, extra: str, what: str) -> ModuleType:
    """Return a module of a library that is not a dependency of Penstock.

    Arguments:
        name: the name of the module.
        extra: the extra of Penstock that installs it.
        what: the feature that needs it, for the error message.

    Raises:
        GraphError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GraphError(
            f"{what} needs {name.partition('.')[0]}: pip install 'penstock[{extra}]' ({error})"
        ) from None
