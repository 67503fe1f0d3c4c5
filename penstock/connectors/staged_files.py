"""Determine the staged and the published path of a committable's file.

A committable is read from a manifest, which may come from an untrusted person. So the payload of a
committable contains names of files instead of paths. A name that refers to a file outside of the
sink's folder is refused. So is one with control characters. Penstock 0.1 wrote absolute paths.
They are accepted if they are in the sink's folder.

The staging folder must be a real folder: through a symbolic link, files would be written and
removed elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.connectors.staging_writer import STAGED_NAME
from penstock.dataflow.errors import JobError, Recoverability
from penstock.dataflow.sink import Committable
from penstock.snapshot.storage.filesystem.durable_files import make_folders

#: The name of the folder of staged files, which is in the folder of the sink.
STAGING = "_staging"
_TARGET_PREFIX = "part-"
#: Control characters, such as line ends and the beginning of a terminal's escape codes.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def make_staging(folder: Path) -> Path:
    """Create the staging folder of a sink's folder if it does not exist, and return its path.

    Raises:
        JobError: if the staging folder is a symbolic link.
    """
    require_own_staging(folder)
    staging = folder / STAGING
    make_folders(staging)
    return staging


def require_own_staging(folder: Path) -> None:
    """Check that the staging folder of a sink's folder is no symbolic link, if it exists.

    Raises:
        JobError: if it is one.
    """
    staging = folder / STAGING
    if staging.is_symlink():
        raise JobError(
            f"{staging} is a symbolic link to {staging.readlink()}, so staged files would be "
            f"written and removed there: remove the link, or give the sink another folder. Nothing "
            f"was written",
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def staged_path(folder: Path, committable: Committable) -> Path:
    """Return the path of the staged file of a committable.

    Arguments:
        folder: the folder of the sink.
        committable: a committable of the sink. Its payload is not trusted.

    Raises:
        JobError: if the payload names no file in the staging folder, if the file's name does not
            have the form that writers use, or if the file is a symbolic link.
    """
    name = _value(committable, "staged")
    path = _below(folder, name if Path(name).is_absolute() else f"{STAGING}/{name}")
    if path is None or path.parent != folder / STAGING or not STAGED_NAME.fullmatch(path.name):
        raise _refused(committable, name, f"no staged file of {folder / STAGING}")
    if path.is_symlink():
        raise _refused(committable, name, "a symbolic link")
    return path


def target_path(folder: Path, committable: Committable, *, flat: bool = False) -> Path:
    """Return the path under which the staged file of a committable is published.

    Arguments:
        folder: the folder of the sink.
        committable: a committable of the sink. Its payload is not trusted.
        flat: whether the sink publishes all files in the folder itself, and none in a folder below.

    Raises:
        JobError: if the payload names no file in the folder, or if the file's name does not have
            the form that writers use.
    """
    name = _value(committable, "target")
    path = _below(folder, name)
    if path is None or not path.name.startswith(_TARGET_PREFIX):
        raise _refused(committable, name, f"no output file of {folder}")
    if flat and path.parent != folder:
        raise _refused(committable, name, f"in a folder below {folder}")
    return path


def _value(committable: Committable, key: str) -> str:
    payload: Any = committable.payload
    if not isinstance(payload, dict) or not isinstance(payload.get(key), str):
        raise _refused(committable, repr(payload)[:100], "no staged file")
    value: str = payload[key]
    return value


def _below(folder: Path, name: str) -> Path | None:
    """Return the path for a name in a folder, or None if that path is outside of the folder."""
    path = Path(name)
    if not path.name or ".." in path.parts or _CONTROL.search(name):
        return None
    try:
        # Resolve both paths before comparing them. The user may spell the path of the folder in
        # different ways, and it may contain symbolic links.
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
