"""Decide with how many slots a job continues after some were lost. Sans-IO.

A **slot** is the place of one worker. It counts as lost if its worker could not be started for a
while: the system refused to start the process, or the process ended before it had connected to the
JobManager. Then the next attempt has fewer workers. Each remaining task takes a share of the key
groups and of the splits of the lost ones, as after a resume at a lower parallelism.

`docs/inside/decisions/062-lost-slots.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The longest time between two tries to start workers, in seconds.
MAX_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class TryAgain:
    """Start the workers of as many slots again, after a pause.

    Arguments:
        delay_seconds: the length of the pause, in seconds.
    """

    delay_seconds: float


@dataclass(frozen=True)
class Shrink:
    """Continue with fewer slots.

    Arguments:
        region: the region that has lost slots.
        slots: the number of its slots that are left.
    """

    region: int
    slots: int


class LostSlots:
    """Decides with how many slots each region of a job runs.

    Arguments:
        wanted: the number of slots for which each region asks, by a number that identifies it.
        timeout_seconds: the time for which a worker must be impossible to start before its slot
            counts as lost.
    """

    def __init__(self, wanted: Mapping[int, int], timeout_seconds: float) -> None:
        self.wanted = dict(wanted)
        #: The number of slots with which each region is to run.
        self.slots = dict(wanted)
        self._timeout_seconds = timeout_seconds
        #: The number of slots with which the last attempt has processed records.
        self._proven = dict(wanted)
        #: The time of the first failed start since then; None if there was none.
        self._since: float | None = None
        self._stuck = False

    def failed(self, now: float, region: int, missing: int) -> TryAgain | Shrink | None:
        """Decide what follows if workers of a region could not be started.

        Arguments:
            now: the time of the failure, in seconds.
            region: the region.
            missing: the number of its workers that could not be started.

        Returns:
            None if the job cannot continue with fewer slots, so that the restart strategy decides.
        """
        if self._since is None:
            self._since = now
        if now - self._since < self._timeout_seconds:
            return TryAgain(min(MAX_PAUSE_SECONDS, self._timeout_seconds / 4))
        left = self.slots[region] - missing
        if left < 1 or self._stuck:
            return None
        self.slots[region] = left
        return Shrink(region, left)

    def began(self) -> None:
        """Record that an attempt processes records with the present number of slots."""
        self._since, self._stuck = None, False
        self._proven = dict(self.slots)

    def returned(self, region: int, count: int) -> None:
        """Record that more workers of a region can be started, and use their slots."""
        self.slots[region] = min(self.wanted[region], self.slots[region] + count)

    def refused(self) -> None:
        """Take back the last decision: its number of slots does not fit the snapshot.

        No region shrinks any more until an attempt processes records.
        """
        self.slots = dict(self._proven)
        self._stuck = True
