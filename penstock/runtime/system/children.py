"""Make the command that starts a process of a job with this copy of the package.

The command does not use `PYTHONPATH`. The folder of an installed package is `site-packages`. If
`PYTHONPATH` named it, all packages there would come before the standard library. An old backport
could then keep the process from starting. Instead the process loads the package from its folder
directly, and puts that folder at the end of its search path.

While the process imports its modules, garbage is not collected. What a module creates stays, so
collections would only look at it again and again. They took a tenth of the time of the imports.
"""

from __future__ import annotations

import sys
from pathlib import Path

_START = (
    "import gc, sys, importlib.machinery as m, importlib.util as u; "
    "gc.disable(); "
    "folder, module = sys.argv.pop(1), sys.argv.pop(1); "
    "folder in sys.path or sys.path.append(folder); "
    "spec = m.PathFinder.find_spec('penstock', [folder]); "
    "sys.modules['penstock'] = package = u.module_from_spec(spec); "
    "spec.loader.exec_module(package); "
    "main = __import__(module, fromlist=['main']).main; "
    "gc.enable(); "
    "main()"
)


def child_command(
    module: str, *arguments: str, folder: str | None = None, python: str | None = None
) -> list[str]:
    """Return the command that calls `main` of a module in a new process.

    Arguments:
        module: the full name of the module.
        arguments: the arguments of the process, which follow in `sys.argv`.
        folder: the folder that contains `penstock`; None means the folder of this package.
        python: another interpreter, which runs the Penstock that is installed there; None means the
            interpreter of this process.
    """
    if python is not None:
        start = "import sys; __import__(sys.argv.pop(1), fromlist=['main']).main()"
        return [python, "-P", "-c", start, module, *arguments]
    own = folder or str(Path(__file__).resolve().parents[3])
    # With -P, Python does not search the working directory for modules.
    return [sys.executable, "-P", "-c", _START, own, module, *arguments]
