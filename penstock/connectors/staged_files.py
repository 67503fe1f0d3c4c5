"""Finds the files that a committable names: in the folder of its own sink, and nowhere else.

A committable comes out of a snapshot's manifest, which somebody else may have written. So it holds
names, not paths, and a name that leads out of the sink's folder is refused. Version 0.1 wrote
absolute paths; those are taken where they lie in the sink's folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.sink import Committable

__all__ = ["STAGING", "staged_path", "target_path"]

#: What is staged in a folder lies below this name.
STAGING = "_staging"
_STAGED_NAME = re.compile(r"[0-9a-f]{10}-[0-9]{4,}-[0-9]{5,}-[0-9]{8,}")
_TARGET_PREFIX = "part-"


def staged_path(folder: Path, committable: Committable) -> Path:
    """Return the path of a staged file.

    Arguments:
        folder: the sink's folder.
        committable: from any snapshot.

    Raises:
        JobError: if it is not in the staging folder, or is no file that a writer made.
    """
    name = _value(committable, "staged")
    path = _below(folder, name if Path(name).is_absolute() else f"{STAGING}/{name}")
    if path is None or path.parent != folder / STAGING or not _STAGED_NAME.fullmatch(path.name):
        raise _refused(committable, name, f"no staged file of {folder / STAGING}")
    if path.is_symlink():
        raise _refused(committable, name, "a symbolic link")
    return path


def target_path(folder: Path, committable: Committable) -> Path:
    """Return the path under which a staged file is published.

    Arguments:
        folder: the sink's folder.
        committable: from any snapshot.

    Raises:
        JobError: if it is not in the folder, or its name is none that a writer gives.
    """
    name = _value(committable, "target")
    path = _below(folder, name)
    if path is None or not path.name.startswith(_TARGET_PREFIX):
        raise _refused(committable, name, f"no output file of {folder}")
    return path


def _value(committable: Committable, key: str) -> str:
    payload: Any = committable.payload
    if not isinstance(payload, dict) or not isinstance(payload.get(key), str):
        raise _refused(committable, repr(payload)[:100], "no staged file")
    value: str = payload[key]
    return value


def _below(folder: Path, name: str) -> Path | None:
    """Return the path of a name in a folder or one below it, or None if it leads out of it."""
    path = Path(name)
    if not path.name or ".." in path.parts or "\0" in name:
        return None
    try:
        # A folder may be spelt differently than it was, and links may be on the way.
        real = folder.resolve()
        parent = (folder / path).parent.resolve()
    except (OSError, RuntimeError):
        return None
    if not parent.is_relative_to(real):
        return None
    return folder / parent.relative_to(real) / path.name


def _refused(committable: Committable, name: str, what: str) -> JobError:
    return JobError(
        f"snapshot {committable.snapshot} holds output named {name!r}, which is {what}: the "
        f"snapshot was not written by this sink, or the sink has another folder now. Nothing was "
        f"published",
        operator=f"sink {committable.uid}",
    )
