"""Decide how many records a sink's writer gets in one call, if a call has a large fixed cost.

A call that sends a request takes about as long for a hundred records as for one. If each slice of
the task were written separately, such a writer would soon get one record in each call, because
slices shrink until they take 1 ms. So the sink operator *gathers* the records of several slices.

For the task, gathered records count as processed. The task counts the time of the writes as time
for which its output waited. So the number of records in flight to the task does not depend on the
size of a write, but on the rate at which the task really processes records.
"""

from __future__ import annotations

#: A write that takes longer than this time, in seconds, is slow: it takes longer than a slice.
SLOW_SECONDS = 0.001
#: A write of more than `FEW` records is slow only if it takes `SLOW_MANY_SECONDS`, because slices
#: with many records have a duration of about `SLOW_SECONDS`.
FEW, SLOW_MANY_SECONDS = 4, 0.002
#: The largest number of records for which a write waits.
MOST = 1 << 13
#: The number of writes after which a small one measures the fixed cost again, and the factor by
#: which it is smaller.
PROBE_EVERY, PROBE_PART = 64, 8


class WriteSizer:
    """Computes the number of records for which a write waits, from the durations of past writes.

    The fixed cost of a write is estimated by the shortest recent write. A write may take twice as
    long: then at most half of its time is for its records, so larger writes would not be much
    cheaper for each record. If each record costs as much as a write of one, a write has at most two
    records.
    """

    def __init__(self) -> None:
        #: Whether writes are slow, so that records are gathered.
        self.gathers = False
        #: The number of records for which a write waits.
        self.limit = 1
        self._fixed_seconds = 0.0
        self._writes = 0
        #: The limit before a probe; 0 if the next write is no probe.
        self._before_probe = 0

    def wrote(self, records: int, seconds: float) -> None:
        """Adjust the limit to the duration of a write."""
        if not self.gathers:
            if seconds >= (SLOW_SECONDS if records <= FEW else SLOW_MANY_SECONDS):
                self.gathers, self._fixed_seconds, self._writes = True, seconds, 0
                self.limit = records
                self._probe()
            return
        if seconds < SLOW_SECONDS:
            self.gathers = False
            return
        if self._before_probe:
            self.limit, self._before_probe = max(self._before_probe, records), 0
            self._fixed_seconds = seconds
        elif records == 1 or seconds < self._fixed_seconds:
            self._fixed_seconds = seconds
        longest = 2 * self._fixed_seconds
        if seconds > longest:
            # One long write may be an exception, so the limit is at most halved.
            fit = int(records * longest / seconds)
            self.limit = max(1, min(self.limit, fit), self.limit // 2)
        elif records >= self.limit and 2 * seconds - self._fixed_seconds <= longest:
            self.limit = min(2 * self.limit, MOST)  # it will not take longer than `longest`
        self._writes += 1
        if self._writes % PROBE_EVERY == 0:
            self._probe()

    def _probe(self) -> None:
        """Make the next write a small one, which shows the fixed cost."""
        self._before_probe, self.limit = self.limit, self.limit // PROBE_PART or 1
