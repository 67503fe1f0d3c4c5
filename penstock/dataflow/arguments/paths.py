"""Convert the paths and `file://` URLs that a program passes to plain paths."""

from __future__ import annotations

import re

from penstock.dataflow.errors import GraphError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def without_scheme(path: str) -> str:
    """Return a path without the prefix `file://`.

    A path without a prefix is returned unchanged.

    Raises:
        GraphError: if the path is a URL of another file system, such as `s3://bucket/job`. Without
            this check, it would be used as the path of a local folder.
    """
    match = _SCHEME.match(path)
    if match is None:
        return path
    if match[1].lower() != "file":
        raise GraphError(f"{path!r} is not a local path: only the local file system is supported")
    return path[match.end() :]
