"""How much is tried: what `make test` takes, or the more of `make test-deep` and `make test-long`.

Nothing is tested in the long one only; it has more examples, seeds, programs and kills.
"""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["CONNECTORS", "LONG", "sized"]

T = TypeVar("T")

#: Whether this is `make test-long`.
LONG = os.environ.get("PENSTOCK_LONG", "") not in ("", "0")
#: Whether this is `make test-connectors`, which also runs the tests that are marked `connectors`.
CONNECTORS = os.environ.get("PENSTOCK_CONNECTORS", "") not in ("", "0")


def sized(usual: T, long: T) -> T:
    """The second in the long tests, else the first."""
    return long if LONG else usual
