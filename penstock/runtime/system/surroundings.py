"""Give a forked process what a new process would get from the process that starts it."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LIMITS = sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
#: How the names of variables begin that an interpreter or the C library reads when it starts.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")


def surroundings(environment: Mapping[str, str] | None = None) -> list[Any]:
    """Return the environment, limits, processors and umask of this process, as plain values.

    Arguments:
        environment: another environment; None for that of this process.
    """
    variables = os.environ if environment is None else environment
    encoded = [[os.fsencode(name), os.fsencode(value)] for name, value in variables.items()]
    limits = [[number, *resource.getrlimit(number)] for number in _LIMITS]
    return [encoded, limits, sorted(os.sched_getaffinity(0)), _umask()]


def _umask() -> int:
    """Return the umask. `os.umask` would change it, also for other threads, to read it."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1], 8) for line in text.splitlines() if line.startswith("Umask:"))


def enter(values: list[Any], defaults: dict[str, str] | None = None) -> None:
    """Take over the surroundings of another process.

    Arguments:
        values: what `surroundings` has returned there.
        defaults: variables of the environment that are set if the others do not have them.
    """
    environment, limits, processors, umask = values
    os.umask(umask)
    os.environb.clear()
    os.environ.update(defaults or {})
    os.environb.update([(name, value) for name, value in environment])
    time.tzset()
    for number, soft, hard in limits:
        resource.setrlimit(number, (soft, hard))
    with contextlib.suppress(OSError):  # the processors may have been taken away meanwhile
        os.sched_setaffinity(0, processors)


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that a forked process would not read again."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}
