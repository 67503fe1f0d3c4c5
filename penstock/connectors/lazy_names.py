"""Import the public names of a package when they are first used.

So importing a package of connectors loads neither its modules nor the client library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Arguments:
        package: the full name of the package.
        where: the module of each name: one in the package, or the full name of another.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = where[name]
        return getattr(import_module(module if "." in module else f"{package}.{module}"), name)

    return get
