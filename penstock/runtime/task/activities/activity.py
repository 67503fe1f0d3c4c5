"""The interface of the activities of a task.

A task has its activities in the order of their priority (`task.py`). In each step, it does one
piece of the first activity that is ready. So the order decides which activity waits for which: an
activity is reached only if no activity before it is ready.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Activity(ABC):
    """Something that a task does in pieces."""

    #: Whether the activity emits elements. Then it waits while output waits for credits.
    needs_credits = True
    #: Whether `step` surely does something if the activity is ready. Then a task that is about to
    #: wait goes on instead.
    is_certain = True

    @abstractmethod
    def ready(self) -> bool:
        """Return whether the next piece can be done now."""

    @abstractmethod
    def step(self) -> bool:
        """Do the next piece. Return False if there was nothing to do."""

    def wake_at(self) -> float | None:
        """Return the time at which the activity may be ready, on the task's clock.

        Return None if another event wakes the task. The method is called while the task waits.
        """
        return None


class Pause(Activity):
    """A reason to wait: while it is ready, the task does no later activity."""

    is_certain = False
    needs_credits = False

    def step(self) -> bool:
        """Do nothing, so that the task waits."""
        return False
