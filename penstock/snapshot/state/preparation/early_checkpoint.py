"""Prepares the checkpoint of a snapshot that is announced, before its barrier arrives.

If few writes are expected until the snapshot ends, the checkpoint is made early. A log of the later
writes is added to it. Otherwise the database is only flushed, so that the checkpoint has less
to flush.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.snapshot.state.local_storage import LocalStorage
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import Work

__all__ = ["EarlyCheckpoint"]

# Preparation begins this much before the snapshot is due, plus 1.5 times its expected duration.
# Until the barrier, blocks are flushed eagerly again, and the log has room for them.
_LEAD_SECONDS, _LEAD_FACTOR = 0.02, 1.5
# The duration of a preparation, until one has been measured.
_FIRST_ESTIMATE_SECONDS = 0.02
_ESTIMATE_WEIGHT = 1 / 4
# With less than this, a flush is left to the checkpoint.
_MIN_FLUSH_BYTES = 64 * 1024


@dataclass(frozen=True)
class _Announced:
    begin: float
    target: Path


class EarlyCheckpoint:
    """Prepares checkpoints of one backend.

    Arguments:
        storage: the database.
        settings: thresholds of the backend.
    """

    def __init__(self, storage: LocalStorage, settings: StateSettings) -> None:
        self._storage = storage
        self._max_log_bytes = settings.max_log_bytes
        self._announced: list[_Announced] = []
        self._estimate = _FIRST_ESTIMATE_SECONDS
        self._was_prepared = False
        # Bytes that were written between the last preparation and the end of its snapshot.
        self._late_bytes = 0

    def announce_snapshot(self, seconds: float, target: Path) -> None:
        """Note when a snapshot is due.

        Arguments:
            seconds: from now.
            target: folder for its files; see `StateSnapshot.write`.
        """
        begin = self._now() + seconds - _LEAD_SECONDS - _LEAD_FACTOR * self._estimate
        self._announced = [_Announced(begin, target)]

    @property
    def is_due(self) -> bool:
        """Whether it is time for `prepare`."""
        if not self._announced or self._now() < self._announced[0].begin:
            return False
        cold = self._storage.cold
        if not cold.is_open:
            return False
        return self._is_log_small() or cold.unflushed_bytes >= _MIN_FLUSH_BYTES

    def _now(self) -> float:
        return self._storage.slicing.clock()

    def _is_log_small(self) -> bool:
        """Return whether a log of the later writes is likely to be small.

        RocksDB keeps the whole log only until a buffer is full, and restoring has to read it.
        """
        return self._late_bytes <= self._max_log_bytes

    def prepare(self) -> Work[None]:
        """Make most of the checkpoint of the announced snapshot; to be driven to its end."""
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
        """Note that the announced snapshot was captured: it is too late to prepare for it."""
        self._announced = []

    def snapshot_written(self) -> None:
        """Note that the captured entries are written, before the checkpoint is made."""
        if self._storage.is_open:
            written = self._storage.cold.unflushed_bytes
            # Without a preparation more may have been written than would have been after one.
            late = written if self._was_prepared else min(self._late_bytes, written)
            self._late_bytes = late
        self._was_prepared = False
