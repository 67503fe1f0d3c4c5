"""Limits of the operating system that a process of a job depends on."""

from __future__ import annotations

import resource

from penstock.dataflow.errors import JobError, Recoverability

__all__ = ["PROCESS_FILES", "require_open_files"]

#: The number of open files that any process of a job needs, besides its connections.
PROCESS_FILES = 64


def require_open_files(needed: int, what: str = "the job") -> None:
    """Raise the soft limit of open files to `needed`, if it is lower.

    Arguments:
        needed: the number of open files.
        what: names the process in the error.

    Raises:
        JobError: if the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise JobError(
            f"{what} needs about {needed} open files in one process, but the limit is {hard}: "
            f"raise it (ulimit -n), or lower the parallelism",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
