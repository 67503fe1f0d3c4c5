"""Decide when the next checkpoint begins, and when it is announced to the tasks.

Pure: times are arguments, in seconds on the driver's monotonic clock.
"""

from __future__ import annotations

__all__ = ["CheckpointSchedule"]

#: A checkpoint is announced this time before it is due, or this share of the interval if that is
#: less.
LEAD_SECONDS, LEAD_SHARE = 0.3, 1 / 4


class CheckpointSchedule:
    """The times of the next checkpoint: due by the interval, or requested.

    Arguments:
        now: the time at which the attempt starts.
        interval: seconds between the starts of checkpoints; None takes only requested ones.
        min_pause: seconds between the end of a snapshot and the start of the next; without an
            interval there is no pause.
        announce: whether a checkpoint that is due by the interval is announced before.
    """

    def __init__(
        self, now: float, interval: float | None, min_pause: float, *, announce: bool
    ) -> None:
        self._interval, self._min_pause = interval, min_pause
        #: Seconds between the announcement and the checkpoint; 0 if there is none.
        self._lead = min(LEAD_SECONDS, (interval or 0.0) * LEAD_SHARE) if announce else 0.0
        self._due = None if interval is None else now + interval
        self._requested: float | None = None
        self._pause_until = now
        #: The number that was announced last.
        self._announced = -1

    def request(self, at: float) -> None:
        """Let a checkpoint begin at a time, or earlier if that was requested before."""
        self._requested = at if self._requested is None else min(at, self._requested)

    def snapshot_began(self) -> None:
        """Forget the request: the snapshot that has begun serves it."""
        self._requested = None

    def snapshot_ended(self, started: float, now: float) -> None:
        """Schedule the next checkpoint after a snapshot that `started` has ended."""
        if self._interval is not None:
            self._pause_until = now + self._min_pause
            self._due = max(started + self._interval, self._pause_until)

    def next_checkpoint(self) -> float | None:
        """Return when the next checkpoint begins; None if no time is known."""
        if self._requested is None:
            return self._due
        requested = max(self._requested, self._pause_until)
        return requested if self._due is None else min(requested, self._due)

    def next_announcement(self, number: int) -> float | None:
        """Return when snapshot `number` is to be announced; None if it need not be."""
        if not self._lead or self._due is None or self._announced == number:
            return None
        return self._due - self._lead

    def announce(self, number: int, now: float) -> float | None:
        """Return in how many seconds snapshot `number` is due, once, when it is to be announced."""
        at = self.next_announcement(number)
        if at is None or self._due is None or now < at:
            return None
        self._announced = number
        return max(0.0, self._due - now)
