"""Check the limits of the operating system that a process of a job needs."""

from __future__ import annotations

import resource

from penstock.dataflow.errors import JobError, Recoverability

__all__ = ["PROCESS_FILES", "require_open_files"]

#: The number of open files that each process of a job needs, without its connections.
PROCESS_FILES = 64


def require_open_files(needed: int, what: str = "the job") -> None:
    """Raise the soft limit of open files to `needed`, if the limit is lower.

    Arguments:
        needed: the number of open files that the process needs.
        what: the name of the process in the error message.

    Raises:
        JobError: if the hard limit is lower than `needed`.
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
