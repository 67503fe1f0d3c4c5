"""Check the limits of the operating system that a process of a job needs."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path

from penstock.dataflow.errors import JobError, Recoverability

#: The number of open files that each process of a job needs, without its connections.
PROCESS_FILES = 64
#: The signals that the kernel or the C library sends to a process for an error of its own code.
FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
#: The limits of the memory of a process, and the options of `ulimit` that set them.
_MEMORY = ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d"))


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


def offer_to_kernel() -> None:
    """Let the kernel end this process and its children before others if memory runs out.

    So a job that takes all memory ends before the service and other programs of the machine.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def memory_limit() -> str | None:
    """Return a text that names the limit of a process's memory; None if there is no limit.

    The processes of a job have the same limit as the process that starts them.
    """
    for limit, option in _MEMORY:
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            return (
                f"the memory of each process is limited to {soft / 1e6:,.0f} MB (ulimit {option})"
            )
    return None


def how_ended(code: int) -> str:
    """Return a text that says how a process has ended.

    RocksDB, NumPy and others abort a process that gets no memory. So the text names the limit of
    the memory, if there is one.

    Arguments:
        code: the exit code of the process, or the negative number of the signal that ended it.
    """
    text = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
    limit = memory_limit()
    # Python exits with 1 after an exception, such as that of a thread that could not be started.
    if (code == 1 or -code in FAULTS) and limit is not None:
        text += f": {limit}, which may be too little; raise the limit"
    return text
