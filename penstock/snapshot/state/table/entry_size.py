"""Estimates the memory of an entry, and how many entries to write in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from penstock.snapshot.state.entries import MARKS, StateCodec
from penstock.snapshot.state.settings import StateSettings

# The memory of an entry besides its content, in bytes: a slot in a dict (about 50 bytes), the
# headers of the key and value objects, and the rounding by the allocator.
_OVERHEAD_BYTES = 200
# The size of Python objects in memory, as a multiple of their encoded size. The factor is near 1
# for strings and near 8 for lists of small integers.
_OBJECT_FACTOR = 3
# The weight of a new sample in the moving average of the size. So the average adapts when values
# become larger.
_SAMPLE_WEIGHT = 1 / 8


class EntrySize:
    """Estimates the mean encoded size of the values of one table, from samples.

    Arguments:
        codec: the codec, which encodes the samples.
        settings: the thresholds of the backend.
    """

    __slots__ = ("_codec", "_mean", "_sample_at", "_settings")

    def __init__(self, codec: StateCodec, settings: StateSettings) -> None:
        self._codec = codec
        self._settings = settings
        self._mean = 0.0
        self._sample_at = 1

    def memory_bytes(self) -> float:
        """Return an estimate of the memory that one entry takes, in bytes."""
        return _OVERHEAD_BYTES + _OBJECT_FACTOR * self._mean

    def chunk_entries(self) -> int:
        """Return how many entries to encode in one step."""
        return self._entries_of(self._settings.chunk_entries, self._settings.chunk_bytes)

    def block_entries(self) -> int:
        """Return how many entries to write as one block."""
        return self._entries_of(self._settings.block_entries, self._settings.block_bytes)

    def _entries_of(self, entries: int, size: int) -> int:
        if not self._mean:
            return self._settings.sample_entries
        return max(1, min(entries, int(size / self._mean)))

    def note_encoded(self, values: Sequence[bytes | None]) -> None:
        """Update the mean with the sizes of values that were just encoded.

        None means a deleted entry, which is ignored.
        """
        sample = [v for v in values[: self._settings.sample_entries] if v is not None]
        if sample:
            self.note_mean(sum(map(len, sample)) / len(sample))

    def note_mean(self, mean: float) -> None:
        """Update the mean with the mean size of values that were just encoded, in bytes."""
        self._mean += (mean - self._mean) * (_SAMPLE_WEIGHT if self._mean else 1)

    def sample(self, entries: int, levels: tuple[Mapping[object, object], ...]) -> None:
        """Encode a sample of the values if the table has grown by half since the last sample.

        Between two samples, the mean is updated with the sizes of the entries that are written.

        Arguments:
            entries: the current number of entries of the table.
            levels: the levels of the table from which values are sampled.
        """
        if entries < self._sample_at:
            return
        count = self._settings.sample_entries
        self._sample_at = entries + entries // 2 + count
        for level in levels:
            values = [v for v in islice(level.values(), count) if type(v) not in MARKS]
            self.note_encoded(self._codec.encode_values(values))
