"""Find files in the local file system.

Names that begin with `_` or `.` are *hidden*, as in Spark and Hadoop. The folder of staged output
has such a name, so that readers see only committed files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path

from penstock.dataflow.arguments.paths import without_scheme
from penstock.dataflow.errors import GraphError, JobError, Recoverability

_MAGIC = frozenset("*?[")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path for a path or URI that a user gave.

    Arguments:
        path: a path, or a `file://` URI. A leading `~` means the home folder.

    Raises:
        GraphError: if the path is empty, has a wrong type, or is a URI of another scheme.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if not isinstance(text, str) or not text:
        raise GraphError(f"a path must be a text or a pathlib.Path, and not empty: {path!r}")
    text = without_scheme(text)
    # Make the path absolute here, in the user's program. A worker may run in another folder.
    return Path(text).expanduser().absolute()


def list_files(path: Path) -> list[Path]:
    """Return the sorted paths of the files that a path, folder or glob pattern names.

    * A file is returned even if its name is hidden.
    * A folder is searched to any depth, without hidden names.
    * A glob pattern, which may contain `**`, does not match a hidden name, except if a part of the
      pattern begins with the same character. For example, `_*` matches `_log`.

    Raises:
        JobError: if the path does not exist, if no file matches the pattern, or if a folder cannot
            be read.
    """
    found = sorted(_listed(path, _fail))
    if not found and not path.is_dir():
        reason = "there is no such file or folder"
        if _split_pattern(path)[1]:
            reason = "no file matches this pattern"
        raise JobError(f"{path}: {reason}; check the path, on the machine where the job runs")
    return found


def watched_files(path: Path) -> Collection[Path]:
    """Return the files that `list_files` returns, for a folder that is listed again and again.

    They come in any order, and there may be none. Files and subfolders may vanish at any time.

    Raises:
        JobError: if the folder is not there, or cannot be read. A folder on a network may be back
            later, so this counts as a failure of the environment.
    """
    try:
        require_folder(path)
        return _listed(path, _fail_unless_gone)
    except JobError as error:
        error.recoverability = Recoverability.ENVIRONMENT
        raise


def require_folder(path: Path) -> None:
    """Check that a path is a folder, or a glob pattern in a folder that exists.

    Raises:
        JobError: if there is no such folder.
    """
    fixed, pattern = _split_pattern(path)
    folder = fixed if pattern and not path.is_dir() else path
    if not folder.is_dir():
        reason = "it is a file" if folder.exists() else f"there is no folder {folder}"
        raise JobError(
            f"{path} cannot be watched: {reason}. Give an existing folder, or a glob pattern in one"
        )


def _listed(path: Path, onerror: Callable[[OSError], object]) -> Collection[Path]:
    """Return the paths of the files that a path names, in any order. There may be none."""
    try:
        if path.is_dir():
            return list(_files_below(path, onerror))
        if path.exists():
            return [path]
        fixed, pattern = _split_pattern(path)
        found: set[Path] = set()
        for match in fixed.glob("/".join(pattern)) if pattern and fixed.is_dir() else ():
            if any(is_hidden(part, pattern) for part in match.relative_to(fixed).parts):
                continue
            found.update(_files_below(match, onerror) if match.is_dir() else [match])
        return found
    except (OSError, ValueError) as error:
        raise JobError(f"{path} cannot be listed: {error}") from error


def _files_below(folder: Path, onerror: Callable[[OSError], object]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=onerror):
        folders[:] = [name for name in folders if name[0] not in "_."]
        yield from (Path(parent, name) for name in files if name[0] not in "_.")


def _fail(error: OSError) -> None:
    """Raise the error of an unreadable folder, because `os.walk` ignores it by default."""
    raise error


def _fail_unless_gone(error: OSError) -> None:
    """Raise the error of an unreadable folder, unless the folder was removed meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _split_pattern(path: Path) -> tuple[Path, list[str]]:
    """Divide a glob pattern before its first part that contains a wildcard.

    Returns:
        The path before that part, and the list of that part and all later parts. The list is empty
        if the path contains no wildcard.
    """
    parts = path.parts
    for index, part in enumerate(parts):
        if _MAGIC.intersection(part):
            return Path(*parts[:index]), list(parts[index:])
    return path, []


def is_hidden(name: str, pattern: list[str]) -> bool:
    """Return whether a name is hidden, and no part of a glob pattern asks for it."""
    return name[0] in "_." and not any(
        part[0] == name[0] and fnmatch(name, part) for part in pattern
    )
