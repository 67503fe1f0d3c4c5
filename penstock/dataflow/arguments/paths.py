"""Paths as users write them: plain, or as `file://` addresses."""

from __future__ import annotations

import re

from penstock.dataflow.errors import GraphError

__all__ = ["without_scheme"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def without_scheme(path: str) -> str:
    """Return a path without `file://`, and other paths as they are.

    Raises:
        GraphError: if it is an address of another file system, such as `s3://bucket/job`. As a
            path it would name a local folder.
    """
    match = _SCHEME.match(path)
    if match is None:
        return path
    if match[1].lower() != "file":
        raise GraphError(f"{path!r} is not a local path: only the local file system is supported")
    return path[match.end() :]
