"""Check that jobs can run on this machine's operating system."""

from __future__ import annotations

import sys

from penstock.dataflow.errors import GraphError


def require_linux() -> None:
    """Check that this machine runs Linux, before the runtime is imported.

    Programs can be imported, built and checked elsewhere. The runtime needs calls of Linux.

    Raises:
        GraphError: if it does not run Linux.
    """
    if sys.platform != "linux":
        raise GraphError(
            f"Penstock runs jobs on Linux only, and this is {sys.platform!r}: use WSL 2 on "
            f"Windows, or a container or virtual machine with Linux"
        )
