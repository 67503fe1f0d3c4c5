"""Limit the rate of calls, and of the records in them."""

from __future__ import annotations

import math

from penstock.dataflow.async_io import Batching

#: A task that is late by up to this time makes up for it, in milliseconds. Otherwise the rate would
#: be lower than its limit, because a task is never woken exactly in time.
LATENESS_MS = 10.0


class CallPacer:
    """Decides when the next call may begin.

    A call uses up the time of its records. For example, at 1000 records per second, the next call
    begins 50 ms after one with 50 records.

    Arguments:
        records_per_second: the largest number of records per second; None for no limit.
        calls_per_second: the largest number of calls per second; None for no limit.
    """

    def __init__(
        self, records_per_second: float | None = None, calls_per_second: float | None = None
    ) -> None:
        self._of_record = 0.0 if records_per_second is None else 1000 / records_per_second
        self._of_call = 0.0 if calls_per_second is None else 1000 / calls_per_second
        #: The time at which the records, and the calls, until now are paid for.
        self._records_paid = self._calls_paid = -math.inf
        #: The time from which the next call may begin, in milliseconds since the epoch.
        self.next_at = 0

    @classmethod
    def of_subtask(cls, batching: Batching | None, parallelism: int) -> CallPacer:
        """Return a pacer with the share of one of `parallelism` subtasks."""
        if batching is None:
            return cls()
        rates = batching.records_per_second, batching.calls_per_second
        return cls(*(None if rate is None else rate / parallelism for rate in rates))

    def began(self, records: int, now: int) -> None:
        """Count a call that begins at a time in milliseconds since the epoch."""
        if not self._of_record and not self._of_call:
            return
        earliest = now - LATENESS_MS
        if self._of_record:
            paid = max(self._records_paid, earliest)
            self._records_paid = paid + records * self._of_record
        if self._of_call:
            self._calls_paid = max(self._calls_paid, earliest) + self._of_call
        self.next_at = math.ceil(max(self._records_paid, self._calls_paid))
