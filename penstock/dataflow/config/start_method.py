"""Define `StartMethod`, the way in which a job starts its workers."""

from __future__ import annotations

from enum import Enum


class StartMethod(Enum):
    """The way in which a job starts its workers.

    FORK: as forks of a process that has imported the runtime, but no code of the user. It is faster
        by half a second of processor time for each worker.
    SPAWN: as new processes. Choose it if a module that Python loads at each start, such as
        `sitecustomize`, does not survive a fork.
    """

    FORK = "fork"
    SPAWN = "spawn"
