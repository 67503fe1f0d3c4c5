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

_NO_JVM = "it is for the JVM, which Penstock does not have"
#: The modules of PyFlink that Penstock does not have, and what to use.
_REFUSED = {
    "penstock.table": "it has no tables and no SQL: use DataStreams, columns (`penstock docs "
    "columns`) or Spark (`penstock docs spark`)",
    "penstock.ml": "it has no machine learning: call a library in a map function",
    "penstock.fn_execution": "it has parts of PyFlink that programs do not call",
    "penstock.java_gateway": _NO_JVM,
    "penstock.pyflink_gateway_server": _NO_JVM,
    "penstock.util": _NO_JVM,
}


class RefusedModules:
    """Refuses modules of PyFlink, with an error that names an alternative.

    Python asks it for a module that no other finder has found.
    """

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> None:
        """Raise a `MissingNameError` for a module that only PyFlink has."""
        del path, target
        reason = _REFUSED.get(fullname)
        if reason is not None:
            from penstock.dataflow.arguments.refused_names import MissingNameError

            raise MissingNameError(f"there is no module {fullname}: {reason}")


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
