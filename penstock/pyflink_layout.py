"""Offer the public names under PyFlink's module names, so that a program ports by one word.

`from pyflink.datastream.functions import MapFunction` becomes
`from penstock.datastream.functions import MapFunction`. Each module has all public names of
`penstock`, so it does not matter which one a program imports from.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import penstock

__all__ = ["add_modules"]


class _AliasModule(ModuleType):
    """A module that has the public names of `penstock`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(penstock, name)


def add_modules(package: str, names: str) -> None:
    """Make the modules of a package importable.

    Arguments:
        package: the name of the package.
        names: the names of its modules, separated by spaces.
    """
    for name in names.split():
        full = f"{package}.{name}"
        module = _AliasModule(full, "The public names of `penstock`.")
        module.__path__ = []  # so that a module may have modules
        sys.modules[full] = module
