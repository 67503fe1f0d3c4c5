"""Recognise the URLs of object stores for snapshots, and choose local folders for their jobs."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.errors import GraphError

#: The schemes of object stores that have the conditional writes which snapshots need.
_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def is_store_url(place: object) -> bool:
    """Return whether this is the URL of an object store."""
    match = _URL.fullmatch(place) if isinstance(place, str) else None
    return match is not None and match[1].lower() in _SCHEMES


def checkpoint_place(place: str) -> str:
    """Return the path of a checkpoint folder, or the URL of an object store.

    The prefix `file://` is removed from a path.

    Raises:
        GraphError: if it is the URL of something else, such as `ftp://host/job`.
    """
    match = _URL.fullmatch(place)
    if match is None or match[1].lower() == "file":
        return without_scheme(place)
    if not is_store_url(place):
        raise GraphError(
            f"{place!r} is no place for snapshots: give a local folder, or an object store as "
            f"s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
        )
    if not match[2].strip("/"):
        raise GraphError(f"{place!r} names no bucket: give {match[1]}://bucket/prefix")
    return place.rstrip("/")


def working_folder(url: str) -> str:
    """Return the local folder of a job whose snapshots are in an object store.

    It is below `$XDG_CACHE_HOME`, by default `~/.cache`, since the object store has all that a job
    needs to continue.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = _UNSAFE.sub("-", url.partition("://")[2])[-40:].strip("-")
    digest = hashlib.blake2b(url.encode(), digest_size=6).hexdigest()
    return str(Path(cache).expanduser() / "penstock" / "stores" / f"{name}.{digest}")
