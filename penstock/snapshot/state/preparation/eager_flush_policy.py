"""Decides whether to flush dirty entries before the next snapshot. Writes nothing itself.

An eager flush pays if most of its entries have not changed again when the snapshot is captured. A
key that changes many times between two snapshots is better left alone: each change would be
written, and each first access after a write costs a look-up. So an entry is flushed at most
`MAX_FLUSHES` times per interval. After an interval whose flushes were mostly useless, further
intervals are skipped, until useless flushes are rare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import islice

from penstock.snapshot.state.preparation.backoff import Backoff

__all__ = ["MAX_FLUSHES", "EagerFlushPolicy", "spread_sample"]

#: An entry that has changed again after this many flushes is left alone until the snapshot.
MAX_FLUSHES = 2
# The greatest share of flushed entries that may have changed again when a snapshot is captured.
_MAX_USELESS = 1 / 2
_SAMPLE = 64
# Of the keys that are flushed together, one in this number may get into the sample.
_SAMPLE_STEP = 16


def spread_sample(keys: Collection[Hashable]) -> list[Hashable]:
    """Return some of the keys, spread, since the newest are the likeliest not to change again."""
    return list(islice(keys, 0, None, max(1, len(keys) // _SAMPLE)))


class EagerFlushPolicy:
    """Decides for one backend, by how many flushed entries changed again."""

    def __init__(self) -> None:
        #: Per table, how often each key was flushed in this interval.
        self._flushes: dict[int, dict[Hashable, int]] = {}
        #: Per table, some of these keys.
        self._sampled: dict[int, list[Hashable]] = {}
        self._stopped = False
        self._backoff = Backoff()

    @property
    def allowed(self) -> bool:
        """Whether to flush at all now."""
        return not self._stopped and not self._backoff.is_skipping

    def may_flush(self, table: int, oldest: Hashable) -> bool:
        """Return whether to flush entries of a table, of which this key is the oldest.

        If it was flushed often enough, none is flushed until the snapshot.
        """
        if self._flushes.get(table, {}).get(oldest, 0) >= MAX_FLUSHES:
            self._stopped = True
        return self.allowed

    def note_flushed(self, table: int, keys: Sequence[Hashable]) -> None:
        """Note that these keys were flushed."""
        flushes = self._flushes.setdefault(table, {})
        for key in keys:
            flushes[key] = flushes.get(key, 0) + 1
        self._sampled.setdefault(table, []).extend(keys[::_SAMPLE_STEP])

    def end_interval(
        self, must_write: Callable[[int, Hashable], bool]
    ) -> Mapping[int, Collection[Hashable]]:
        """Note that a snapshot was captured.

        Arguments:
            must_write: returns whether a flushed entry, by table and key, is written again.

        Returns:
            Per table the keys that were flushed since the snapshot before.
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
