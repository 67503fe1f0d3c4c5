"""The command that starts a process of a job, with this installation of the package.

`PYTHONPATH` is not used for that. If it named the folder of an installed package, `site-packages`,
all other packages there would come before the standard library, and an old backport could keep the
process from starting. Instead the package is loaded from its folder directly, and that folder is
the last one to be searched.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["child_command"]

_START = (
    "import sys, importlib.machinery as m, importlib.util as u; "
    "folder, module = sys.argv.pop(1), sys.argv.pop(1); "
    "folder in sys.path or sys.path.append(folder); "
    "spec = m.PathFinder.find_spec('penstock', [folder]); "
    "sys.modules['penstock'] = package = u.module_from_spec(spec); "
    "spec.loader.exec_module(package); "
    "__import__(module, fromlist=['main']).main()"
)


def child_command(module: str, *arguments: str, folder: str | None = None) -> list[str]:
    """Return the command that calls `main` of a module in a new process.

    Arguments:
        module: its full name.
        arguments: of the process, in `sys.argv`.
        folder: the folder that contains `penstock`; None takes that of this package.
    """
    own = folder or str(Path(__file__).resolve().parents[3])
    # With -P the working directory is not searched.
    return [sys.executable, "-P", "-c", _START, own, module, *arguments]
