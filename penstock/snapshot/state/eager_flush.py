"""Whether to write dirty entries ahead of the next snapshot. A policy; it writes nothing.

Writing ahead pays when most of what it wrote has not changed again when the snapshot is taken. A
key that changes many times between two snapshots is better left alone: each change would be
written, and each first touch after a write costs a look-up. So an entry is written ahead at most
`PASSES` times per interval, and after an interval in which it was for nothing, as many intervals
are left out as it takes to make it rare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Sequence
from itertools import islice

from penstock.snapshot.state.backoff import Backoff

__all__ = ["PASSES", "EagerFlushPolicy"]

#: What has changed again after this many writes is left alone until the snapshot.
PASSES = 2
#: What share of what was written ahead may have changed again when the snapshot is taken. Shortly
#: before it, where the records are just then is written too; and what it saves is saved while the
#: snapshot is waited for.
MOST_EARLY, MOST_LATE = 1 / 2, 3 / 4
SAMPLE = 64
#: Of the keys that are written at a time, one in so many may get into the sample.
JUDGED = 16


class _Brake:
    """Leaves intervals out when of what was written ahead in one more than a share changed again.

    Arguments:
        most: the share.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        #: Per table, some of the keys that were written in this interval.
        self.written: dict[int, list[Hashable]] = {}
        self.turns = Backoff()

    def judge(self, is_dirty: Callable[[int, Hashable], bool]) -> None:
        """A snapshot was taken."""
        if not self.turns.skip() and self.written:
            wasted = taken = 0
            for table, written in self.written.items():
                for key in _sample(written):
                    taken += 1
                    wasted += is_dirty(table, key)
            self.turns.judge(in_vain=wasted > self._most * taken)
        self.written = {}


class EagerFlushPolicy:
    """Decides for one backend, from what became of the entries that were written ahead.

    What is written shortly before a snapshot is judged by itself: less of it changes again.
    """

    def __init__(self) -> None:
        #: Per table, how often each key was written ahead in this interval.
        self._written: dict[int, dict[Hashable, int]] = {}
        self._before: dict[int, dict[Hashable, int]] = {}
        self._stopped = False
        self._early, self._late = _Brake(MOST_EARLY), _Brake(MOST_LATE)
        self._brake = self._early

    @property
    def allowed(self) -> bool:
        """Whether to write ahead at all now."""
        return not self._stopped and not self._brake.turns.left

    def prepare(self) -> None:
        """A snapshot is due soon."""
        self._brake = self._late

    def may_write(self, table: int, oldest: Hashable) -> bool:
        """Whether to write a slice that begins with this key; if not, none until the snapshot."""
        if self._written.get(table, {}).get(oldest, 0) >= PASSES:
            self._stopped = True
        return self.allowed

    def wrote(self, table: int, keys: Sequence[Hashable]) -> None:
        """These were written ahead."""
        written = self._written.setdefault(table, {})
        for key in keys:
            written[key] = written.get(key, 0) + 1
        self._brake.written.setdefault(table, []).extend(keys[::JUDGED])

    def captured(self, is_dirty: Callable[[int, Hashable], bool]) -> None:
        """A snapshot was taken; a sample tells how many writes were for nothing.

        Arguments:
            is_dirty: whether an entry, by table and key, has to be written again.
        """
        self._early.judge(is_dirty)
        self._late.judge(is_dirty)
        self._brake = self._early
        self._before, self._written, self._stopped = self._written, {}, False

    def written_before(self, table: int) -> Container[Hashable]:
        """The keys that were written ahead of the newest snapshot."""
        return self._before.get(table, {})

    def count_lasting(self, table: int, entries: Container[Hashable]) -> int:
        """About how many of them are not among the entries of that snapshot's capture."""
        written = self._before.get(table, {})
        sample = _sample(written)
        lasting = sum(key not in entries for key in sample)
        return len(written) * lasting // max(1, len(sample))

    def forget(self) -> None:
        """Let go of what was written before the snapshot; some milliseconds if it is much."""
        self._before = {}


def _sample(written: Collection[Hashable]) -> list[Hashable]:
    """Some keys; spread, since the newest ones are the likeliest to have lasted."""
    return list(islice(written, 0, None, max(1, len(written) // SAMPLE)))
