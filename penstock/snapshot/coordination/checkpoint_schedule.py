"""Decide when the next checkpoint begins, and when it is announced to the tasks.

The schedule reads no clock. The caller passes all times, in seconds of its own monotonic clock.

`docs/inside/decisions/033-announced-snapshots.md` has the reasons and the figures.
"""

from __future__ import annotations

#: The time between the announcement of a checkpoint and its start. It is `LEAD_SECONDS`, or the
#: share `LEAD_SHARE` of the checkpoint interval if that is shorter.
LEAD_SECONDS, LEAD_SHARE = 0.3, 1 / 4


class CheckpointSchedule:
    """Schedules periodic checkpoints and requested checkpoints.

    Arguments:
        now: the time at which the execution attempt starts, in seconds.
        interval: the number of seconds between the starts of two periodic checkpoints. With None,
            there are only requested checkpoints.
        min_pause: the shortest time between the end of a snapshot and the start of the next
            checkpoint, in seconds. Ignored if `interval` is None.
        announce: whether the tasks are notified before a periodic checkpoint begins.
    """

    def __init__(
        self, now: float, interval: float | None, min_pause: float, *, announce: bool
    ) -> None:
        self._interval, self._min_pause = interval, min_pause
        #: The number of seconds between an announcement and the checkpoint; 0 for no announcements.
        self._lead = min(LEAD_SECONDS, (interval or 0.0) * LEAD_SHARE) if announce else 0.0
        self._due = None if interval is None else now + interval
        self._requested: float | None = None
        self._pause_until = now
        #: The number of the newest announced snapshot, or -1 if no snapshot was announced.
        self._announced = -1

    def request(self, at: float) -> None:
        """Request a checkpoint at time `at`, in seconds.

        If a checkpoint is already requested, the earlier time of both is used.
        """
        self._requested = at if self._requested is None else min(at, self._requested)

    def snapshot_began(self) -> None:
        """Remove the pending request, because the snapshot that has begun fulfils it."""
        self._requested = None

    def snapshot_ended(self, started: float, now: float) -> None:
        """Schedule the next checkpoint, because a snapshot has ended.

        Arguments:
            started: the time at which the snapshot started, in seconds.
            now: the time at which the snapshot ended, in seconds.
        """
        if self._interval is not None:
            self._pause_until = now + self._min_pause
            self._due = max(started + self._interval, self._pause_until)

    def next_checkpoint(self) -> float | None:
        """Return the time of the next scheduled checkpoint, in seconds, or None."""
        if self._requested is None:
            return self._due
        requested = max(self._requested, self._pause_until)
        return requested if self._due is None else min(requested, self._due)

    def next_announcement(self, number: int) -> float | None:
        """Return the time at which to announce snapshot `number`, in seconds.

        Return None if the snapshot is announced already, or need not be announced.
        """
        if not self._lead or self._due is None or self._announced == number:
            return None
        return self._due - self._lead

    def announce(self, number: int, now: float) -> float | None:
        """Announce snapshot `number` if it is time to do so.

        Return the seconds until the snapshot begins. Return None if it is not time to announce the
        snapshot, or if it is announced already.
        """
        at = self.next_announcement(number)
        if at is None or self._due is None or now < at:
            return None
        self._announced = number
        return max(0.0, self._due - now)
