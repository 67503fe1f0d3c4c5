"""What the modules of Python's own library import: the graph that the examples of loops work on."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

#: Folders that are not the library's own, or that not every Python comes with.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


def import_graph() -> dict[str, list[str]]:
    """For each module of the standard library, in order of name, those of them it imports."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = {}
    for path in library.rglob("*.py"):
        place = path.relative_to(library)
        if not LEFT_OUT & set(place.parts):
            paths[".".join(place.with_suffix("").parts).removesuffix(".__init__")] = path
    return {
        name: sorted({module for module in _imports(name, paths[name]) if module in paths} - {name})
        for name in sorted(paths)
    }


def _imports(name: str, path: Path) -> Iterator[str]:
    """Return the names that a module's source may import, also inside of its functions."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # some files are wrong on purpose
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Each dot after the first goes one package up.
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            # What is imported from a package may be a module itself.
            yield from (f"{module}.{alias.name}" for alias in node.names)
