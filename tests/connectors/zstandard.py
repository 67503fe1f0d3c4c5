"""Compresses with Zstandard, on each version of Python."""

from __future__ import annotations

import sys

__all__ = ["compressed"]

if sys.version_info >= (3, 14):
    from compression.zstd import compress as compressed
else:
    from backports.zstd import compress as compressed
