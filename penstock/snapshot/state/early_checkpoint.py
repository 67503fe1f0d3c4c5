"""Prepares the checkpoint of an announced snapshot before its barrier arrives.

If few writes are expected until the snapshot ends, the checkpoint is made early. After the barrier,
a log of the later writes is added to the checkpoint. If many writes are expected, the database is
only flushed, so that the checkpoint has less to flush.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import Work

# Preparation begins `_LEAD_SECONDS` before the snapshot is due, plus `_LEAD_FACTOR` times the
# expected duration of the preparation. Blocks that are flushed after the preparation are added to
# the log.
_LEAD_SECONDS, _LEAD_FACTOR = 0.02, 1.5
# The expected duration of the first preparation, in seconds.
_FIRST_ESTIMATE_SECONDS = 0.02
_ESTIMATE_WEIGHT = 1 / 4
# The smallest number of unflushed bytes for which the database is flushed early.
_MIN_FLUSH_BYTES = 64 * 1024


@dataclass(frozen=True)
class _Announced:
    begin: float
    target: Path


class EarlyCheckpoint:
    """Prepares the checkpoints of one backend before the barriers arrive.

    Arguments:
        storage: the storage of the backend, which holds the database.
        settings: the thresholds of the backend.
    """

    def __init__(self, storage: LocalStorage, settings: StateSettings) -> None:
        self._storage = storage
        self._max_log_bytes = settings.max_log_bytes
        self._announced: list[_Announced] = []
        self._estimate = _FIRST_ESTIMATE_SECONDS
        self._was_prepared = False
        # The number of bytes that were written between the last preparation and its checkpoint.
        self._late_bytes = 0

    def announce_snapshot(self, seconds: float, target: Path) -> None:
        """Record when the next snapshot is due.

        Arguments:
            seconds: the time until the snapshot is due.
            target: the folder for the files of the snapshot; see `StateSnapshot.write`.
        """
        begin = self._now() + seconds - _LEAD_SECONDS - _LEAD_FACTOR * self._estimate
        self._announced = [_Announced(begin, target)]

    @property
    def is_due(self) -> bool:
        """Whether it is time to call `prepare` for an announced snapshot."""
        if not self._announced or self._now() < self._announced[0].begin:
            return False
        cold = self._storage.cold
        if not cold.is_open:
            return False
        return self._is_log_small() or cold.unflushed_bytes >= _MIN_FLUSH_BYTES

    def _now(self) -> float:
        return self._storage.slicing.clock()

    def _is_log_small(self) -> bool:
        """Return whether the log of an early checkpoint is expected to be small.

        A large log slows down the restore. RocksDB also begins another log when a write buffer is
        full, and the early checkpoint is then useless.
        """
        return self._late_bytes <= self._max_log_bytes

    def prepare(self) -> Work[None]:
        """Make the checkpoint of the announced snapshot early, or flush the database.

        The caller must drive the generator to its end.
        """
        announced, self._announced = self._announced, []
        storage = self._storage
        if not announced or not storage.is_open:
            return
        self._was_prepared, began = True, self._now()
        if self._is_log_small():
            begin = partial(storage.files.begin_early, storage.database, announced[0].target)
            yield from storage.slicing.offload(begin)
        else:
            yield from storage.slicing.offload(storage.database.flush)
        self._estimate += (self._now() - began - self._estimate) * _ESTIMATE_WEIGHT

    def snapshot_captured(self) -> None:
        """Forget the announced snapshot, because it was captured."""
        self._announced = []

    def snapshot_written(self) -> None:
        """Measure how many bytes were written since the preparation.

        The method is called after the captured entries were written, and before the checkpoint is
        made.
        """
        if self._storage.is_open:
            written = self._storage.cold.unflushed_bytes
            # Without a preparation, all bytes since the last flush are counted. That may be more
            # than after a preparation, so the estimate must not rise.
            late = written if self._was_prepared else min(self._late_bytes, written)
            self._late_bytes = late
        self._was_prepared = False
