"""Decides whether to flush dirty entries before the next snapshot.

An eager flush is useful if most of its entries do not change again before the snapshot. A key that
changes many times between two snapshots should not be flushed. Each of its changes would be
written, and each first access after a write costs a look-up. So an entry is flushed at most
`MAX_FLUSHES` times between two snapshots. After an interval in which most flushes were useless, no
entries are flushed in the next intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import islice

from penstock.snapshot.state.backoff import Backoff

#: The largest number of eager flushes of one entry between two snapshots.
MAX_FLUSHES = 2
# If more than this share of the flushed entries has changed again when the snapshot is captured,
# the flushes of the interval were useless.
_MAX_USELESS = 1 / 2
_SAMPLE = 64
# The distance between two sampled keys, in keys that are flushed together.
_SAMPLE_STEP = 16


def spread_sample(keys: Collection[Hashable]) -> list[Hashable]:
    """Return a sample of `keys`, taken at equal distances.

    The keys are in the order of their flushes. The last keys are the least likely to have changed
    again, so the sample must not consist of the last keys only.
    """
    return list(islice(keys, 0, None, max(1, len(keys) // _SAMPLE)))


class EagerFlushPolicy:
    """Decides when to flush entries of one backend.

    It measures which share of the flushed entries has changed again at the next snapshot.
    """

    def __init__(self) -> None:
        #: For each table, the number of flushes of each key since the last snapshot.
        self._flushes: dict[int, dict[Hashable, int]] = {}
        #: For each table, a sample of the keys that were flushed since the last snapshot.
        self._sampled: dict[int, list[Hashable]] = {}
        self._stopped = False
        self._backoff = Backoff()

    @property
    def allowed(self) -> bool:
        """Whether any entry may be flushed now."""
        return not self._stopped and not self._backoff.is_skipping

    def may_flush(self, table: int, oldest: Hashable) -> bool:
        """Return whether to flush the oldest dirty entries of a table.

        If the oldest key has reached `MAX_FLUSHES`, no entries are flushed until the next snapshot.

        Arguments:
            table: the id of the table.
            oldest: the key of the oldest dirty entry.
        """
        if self._flushes.get(table, {}).get(oldest, 0) >= MAX_FLUSHES:
            self._stopped = True
        return self.allowed

    def note_flushed(self, table: int, keys: Sequence[Hashable]) -> None:
        """Record that these keys of a table were flushed."""
        flushes = self._flushes.setdefault(table, {})
        for key in keys:
            flushes[key] = flushes.get(key, 0) + 1
        self._sampled.setdefault(table, []).extend(keys[::_SAMPLE_STEP])

    def end_interval(
        self, must_write: Callable[[int, Hashable], bool]
    ) -> Mapping[int, Collection[Hashable]]:
        """End the interval between two snapshots, and judge its flushes by a sample.

        Arguments:
            must_write: a function that takes a table's id and a flushed key. It returns whether
                the snapshot has to write this entry again.

        Returns:
            For each table, the keys that were flushed since the previous snapshot.
        """
        if not self._backoff.skip() and self._sampled:
            sample = [
                (table, key) for table, keys in self._sampled.items() for key in spread_sample(keys)
            ]
            useless = sum(must_write(table, key) for table, key in sample)
            self._backoff.judge(useless=useless > _MAX_USELESS * len(sample))
        flushed, self._flushes = self._flushes, {}
        self._sampled, self._stopped = {}, False
        return flushed
