"""A state of which much changes between two snapshots: one level, written by position.

A table's levels cost each entry that changes a look-up in one, an insertion in another and a move
between two, once per snapshot. That is little if few change; if many do, it is more than what is
done with the record. Such a table has one level only, `dirty`, which is never replaced. A dict
keeps the order in which keys came, and nothing is removed, so that the n-th value always belongs
to the n-th key. A capture is a list of all values. What changed is found by comparing it, object
by object, with the list of those that were written last; blocks are ranges of positions, and one
that has many changes is written again under the same number. The others' changes are written as
blocks of their own with higher numbers, the *overlay*, anew for each capture: so it never has
anything that is older than what is in the block below.

Only for states whose values cannot be changed in place, and of which nothing is deleted; and small
enough, since the list is made at the barrier, at about 20 ns an entry.

When that pays is decided in `start` and `goes_on`; writing is in `blocks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, islice
from operator import is_, is_not
from typing import TYPE_CHECKING, Any

from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.eager_flush import PASSES

if TYPE_CHECKING:
    from penstock.snapshot.state.keyed_table import KeyedTable

__all__ = ["BEGIN_SHARE", "MAX_ENTRIES", "Positions", "goes_on", "start"]

#: The list of so many values takes 2 to 3 ms.
MAX_ENTRIES = 1 << 17
#: It begins when a capture had a quarter of all entries, or so many changed while one was written,
#: and ends when less than a twelfth changed: both write the state once as a whole, which must not
#: alternate. An entry that changes costs about ten times as much with levels as one that is only
#: written again because it is in a block with others that changed.
BEGIN_SHARE, END_SHARE = 1 / 4, 1 / 12
#: Of a block that is not written again at most so much is in the overlay.
OVERLAY_SHARE = 0.6
# Of each block so many values are compared to estimate how many changed.
_SAMPLE = 32
#: A block is written ahead if all of it changed: whoever goes through the keys in some order has
#: left it behind. Or if about so much of it changed, and nothing since the last look: there are
#: several who go through the keys, not side by side, and one of them has been there. Looking for
#: such blocks costs 5 us for each, and 100 us for one of which so much has changed.
STILL_SHARE = 0.25
#: Between two such looks; longer each time that there was nothing.
PASS_SECONDS, MAX_PASS_SECONDS = 0.015, 2.0


class Positions:
    """Where the entries of one table are, and what of them is in the database.

    Arguments:
        first: number of the block of the first positions.
        size: entries of a block.
    """

    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.size = size
        self.keys: list[Any] = []
        #: Values as they are in the database.
        self.written: list[Any] = []
        #: The blocks from before are out of the database.
        self.alone = False
        #: Of the last capture that was written, about which share of the entries had changed.
        self.changed_share = 1.0
        #: Captured lists that are not written yet.
        self.pending = 0
        #: Keys and values of the overlay that is to be written, and how many the last one had.
        self.overlay: tuple[list[Any], list[Any]] = [], []
        self.overlaid = 0
        self._packed_keys: dict[int, bytes] = {}
        #: By where a block begins: its first values in the capture before.
        self._samples: dict[int, list[Any]] = {}
        #: Where blocks begin that were written since the last capture was.
        self._rewritten: set[int] = set()
        self._pass: Iterator[tuple[int, list[Any]] | None] | None = None
        #: By where a block begins: how much of it had changed by the last look.
        self._changed: dict[int, int] = {}
        #: By where a block begins: how often its entries were written ahead since the last capture
        #: was taken; half, if half of them had changed.
        self._ahead: dict[int, float] = {}
        self._pass_after = 0.0
        self._pass_seconds = PASS_SECONDS

    @property
    def overlay_number(self) -> int:
        """The number of the first block of the overlay, higher than all numbers of others."""
        return self.first + MAX_ENTRIES // self.size + 1

    @property
    def end(self) -> int:
        """A number that is higher than those of all blocks."""
        return self.overlay_number + MAX_ENTRIES

    def held_entries(self) -> int:
        """About how many values are in memory for it that are not in the table any more."""
        entries = max(self.overlaid, len(self.written) * self.changed_share)
        return int(entries + self.pending * len(self.keys) * self.changed_share)

    def capture(self, live: dict[Any, Any]) -> list[Any]:
        """All values as they are now; `pending` until they are written or given up."""
        self.pending += 1
        self._pass = None
        self._ahead.clear()
        values = list(live.values())
        if len(values) > len(self.keys):
            self.keys.extend(islice(live, len(self.keys), None))
        return values

    def changes(self, values: list[Any]) -> Iterator[tuple[int, list[Any]] | None]:
        """Begin and values of each block of a capture that is to be written; then `overlay` is it.

        The consumer writes each at once: it counts as written from then on. None for a block that
        is not to be written.
        """
        total = compared = 0
        samples: dict[int, list[Any]] = {}
        keys, changed_values = self.overlay = [], []
        for begin in range(0, len(values), self.size):
            new, old = values[begin : begin + self.size], self.written[begin : begin + self.size]
            sample = new[:_SAMPLE]
            compared += len(sample)
            if begin in self._rewritten:
                total += len(sample)
            else:
                total += len(sample) - sum(map(is_, sample, self._samples.get(begin, old)))
            samples[begin] = sample
            changed = list(map(is_not, new, old))
            count = sum(changed)
            if len(new) != len(old) or count > OVERLAY_SHARE * len(new):
                self._rewrite(begin, new)
                yield begin, new
                continue
            if count:
                keys += compress(self.keys[begin : begin + self.size], changed)
                changed_values += compress(new, changed)
            yield None
        self._samples = samples
        self.changed_share = total / compared if compared else 0.0
        self._rewritten.clear()

    def _rewrite(self, begin: int, values: list[Any]) -> None:
        self.written[begin : begin + self.size] = values
        self._rewritten.add(begin)

    def differs(self, begin: int, values: list[Any]) -> bool:
        """Whether some of the first values of a block are not those in the database."""
        end = begin + _SAMPLE
        return any(map(is_not, values[begin:end], self.written[begin:end]))

    def may_pass(self, now: float) -> bool:
        """Whether it is time to look for blocks to write ahead, in seconds on some clock."""
        return self.alone and now >= self._pass_after

    def look_again(self) -> None:
        """What came of the last looks says nothing about now."""
        self._pass_after, self._pass_seconds = 0.0, PASS_SECONDS

    def settled(self, live: dict[Any, Any], now: float) -> Iterator[tuple[int, list[Any]] | None]:
        """As `changes`, but only blocks that are worth writing ahead; goes on where it was left.

        None after a longer look that found nothing.

        Arguments:
            live: the table's entries.
            now: seconds on some clock.
        """
        if self._pass is None:
            self._pass_seconds = min(2 * self._pass_seconds, MAX_PASS_SECONDS)
            self._pass = self._settled(live)
        for block in self._pass:
            yield block
            if block is not None:
                self._pass_seconds = PASS_SECONDS
        self._pass, self._pass_after = None, now + self._pass_seconds

    def _settled(self, live: dict[Any, Any]) -> Iterator[tuple[int, list[Any]] | None]:
        value_of = live.__getitem__
        stride = max(1, self.size // _SAMPLE)
        # The last block, which is not full, is written ahead as well; if keys come, it changes.
        for begin in range(0, len(self.written), self.size):
            end = min(begin + self.size, len(self.written))
            old = self.written[begin:end:stride]
            changed = sum(map(is_not, map(value_of, self.keys[begin:end:stride]), old))
            share, ahead = changed / len(old), self._ahead.get(begin, 0.0)
            if share < STILL_SHARE or ahead > PASSES - STILL_SHARE:
                continue
            values = list(map(value_of, self.keys[begin:end]))
            if not self._has_settled(begin, values):
                yield None
                continue
            self._ahead[begin] = ahead + share
            self._changed.pop(begin, None)
            self._rewrite(begin, values)
            yield begin, values

    def _has_settled(self, begin: int, values: list[Any]) -> bool:
        """Whether all of a block has changed, or nothing of it since the last look."""
        before = self._changed.get(begin)
        changed = sum(map(is_not, values, self.written[begin : begin + self.size]))
        self._changed[begin] = changed
        return changed in (len(values), before)

    def packed_keys(self, begin: int, count: int, pack: Any) -> bytes:
        """The bytes of the keys of a block, which are made once when it is full."""
        packed: bytes | None = self._packed_keys.get(begin) if count == self.size else None
        if packed is None:
            packed = pack(plain_keys(self.keys[begin : begin + count]))
            if count == self.size:
                self._packed_keys[begin] = packed
        return packed


def start(table: KeyedTable, first: int) -> Positions | None:
    """Once a capture is written: gives a table one level if that pays, and brings it into order.

    Not at a barrier, where all that changed would have to be moved; now it is what has come since.

    Arguments:
        table: whose blocks are in a database.
        first: the first number for its blocks.

    Returns None if the table keeps its levels.
    """
    if not table.turned_over or not table.only_immutable or table.captured:
        return None
    if len(table.clean) > MAX_ENTRIES:
        return None
    # The older entries come first, and keep their places.
    table.clean.update(table.dirty)
    table.dirty, table.clean = table.clean, {}
    return Positions(first, table.block_entries())


def goes_on(table: KeyedTable, positions: Positions) -> bool:
    """At a capture: whether the table keeps its one level."""
    return (
        table.only_immutable
        and positions.changed_share >= END_SHARE
        and len(table.dirty) <= MAX_ENTRIES
        # Values that have grown would make steps of writing too long.
        and positions.size <= 2 * table.block_entries()
    )
