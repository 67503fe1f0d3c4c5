"""Decide which files in a job's folder Penstock created.

By mistake, the user may choose a checkpoint folder that contains other data. Penstock removes or
replaces a file there only if the file's name has a form that only Penstock uses.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

from penstock.dataflow.errors import StoreError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.temporary_folder import remove_abandoned
from penstock.snapshot.storage.job_paths import JobPaths

#: The folders that mkfs creates in the root of a new file system. The user may mount a file system
#: as the checkpoint folder.
_OF_THE_FILE_SYSTEM = frozenset({"lost+found"})
#: The form of the names of temporary files that a run on a Spark cluster creates in the folder; see
#: `runtime/spark/preflight.py`.
_MARK = re.compile(r"\.reach-[0-9a-f]{16}")
_SHOWN = 5


def require_unused(files: FileSystem, paths: JobPaths) -> None:
    """Check that a folder without the file `job` contains only files of Penstock.

    An empty folder passes the check. So does a folder whose creation was interrupted, and a job's
    folder that lost only its file `job`.

    Raises:
        StoreError: if the folder contains other files; the message names some of them.
    """
    foreign = [name for name in files.names(paths.root) if not _is_own(files, paths, name)]
    # Another process may have created the file `job` and other files since the folder was read.
    if not foreign or has_identity(files, paths):
        return
    shown = ", ".join(map(repr, foreign[:_SHOWN])) + (", …" if len(foreign) > _SHOWN else "")
    raise StoreError(
        f"the folder is not empty, and it is no checkpoint folder of Penstock: it holds {shown}; "
        "name an empty folder, or a new one below it",
        paths.root,
    )


def has_identity(files: FileSystem, paths: JobPaths) -> bool:
    """Return whether the job's folder contains the file `job`.

    If `job` is a folder, the result is False.
    """
    try:
        files.names(paths.job)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        # `job` is a file, unless the root folder or one of its parents is a file.
        return files.exists(paths.job)
    return False


def require_real_folders(files: FileSystem, paths: JobPaths) -> None:
    """Check that the folders in which Penstock removes files are not symbolic links.

    Raises:
        StoreError: if one of the folders is a symbolic link.
    """
    for path in (paths.checkpoints, paths.work_root, paths.sources):
        if files.is_link(path):
            raise StoreError(
                "this is a symbolic link, and Penstock writes and removes files only in folders of "
                "its own: put the checkpoint folder itself where the space is",
                path,
            )


def remove_attempts(paths: JobPaths) -> None:
    """Remove the local working folders of all attempts; ignore errors."""
    with contextlib.suppress(OSError):
        for folder in sorted(paths.work_root.iterdir()):
            if JobPaths.is_attempt(folder.name):
                shutil.rmtree(folder, ignore_errors=True)


def remove_attempt(paths: JobPaths, attempt: int) -> None:
    """Remove the local working folder of one attempt; ignore errors."""
    shutil.rmtree(paths.work(attempt), ignore_errors=True)


def remove_task(paths: JobPaths, attempt: int, uid: str, subtask: int) -> None:
    """Remove the local working folder of a subtask of an operator; ignore errors."""
    shutil.rmtree(paths.task_work(attempt, uid, subtask), ignore_errors=True)


def remove_spill(paths: JobPaths, attempt: int, channel: ChannelId) -> None:
    """Remove the local folder of a back-edge channel; ignore errors."""
    folder = paths.spill(attempt, channel.link, channel.source, channel.target)
    shutil.rmtree(folder, ignore_errors=True)


def remove_work(paths: JobPaths) -> None:
    """Remove all local working folders of a run, and those of killed shadow runs; ignore errors."""
    remove_abandoned(paths.root)
    remove_attempts(paths)
    remove_parent(paths)
    with contextlib.suppress(OSError):
        # This fails if the folder contains other files, which must not be removed.
        paths.work_root.rmdir()


def remove_parent(paths: JobPaths) -> None:
    """Remove the files that a fork keeps of the snapshot from which it started."""
    shutil.rmtree(paths.parent.root, ignore_errors=True)


def _is_own(files: FileSystem, paths: JobPaths, name: str) -> bool:
    path = paths.root / name
    if name in _OF_THE_FILE_SYSTEM or _MARK.fullmatch(name) or JobPaths.is_temporary(name):
        return True
    if path == paths.lock:
        return _is_record(files, path, "pid", empty=True)
    if path == paths.claimed:
        return _is_record(files, path, "root")
    if path in (paths.numbers, paths.commits):
        return _is_record(files, path, "next" if path == paths.numbers else "confirmed")
    try:
        names = files.names(path)
    except OSError:
        return False
    if path == paths.checkpoints:
        # If no folder has a manifest, these may be folders of the user whose names are numbers.
        numbers = [JobPaths.number_of(name) for name in names]
        manifests = (n is not None and files.exists(paths.manifest(n)) for n in numbers)
        return not names or (None not in numbers and any(manifests))
    if path == paths.work_root:
        return bool(names) and all(
            n == paths.parent.root.name or JobPaths.is_attempt(n) for n in names
        )
    return path == paths.sources and bool(names) and all(map(JobPaths.is_source, names))


def _is_record(files: FileSystem, path: Path, key: str, *, empty: bool = False) -> bool:
    try:
        data = files.read(path)
        return (empty and not data) or key in json.loads(data)
    except (OSError, ValueError, TypeError, RecursionError):
        return False
