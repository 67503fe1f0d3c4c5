"""The thresholds of keyed state."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_SETTINGS", "StateSettings"]


@dataclass(frozen=True)
class StateSettings:
    """Thresholds of one backend. The defaults were measured; tests set smaller ones.

    Arguments:
        max_slice_entries: the most entries that a slice on the event loop processes.
        sample_entries: entries that are encoded to estimate the size of one.
        chunk_entries, chunk_bytes: the most entries, and about how many bytes of them, that are
            encoded in one step. One step has to stay well below the length of a slice.
        block_entries, block_bytes: the same for a block, which costs less per entry.
        garbage_factor, slack_entries: blocks are compacted when they hold more than this
            multiple of the live entries, and this number beyond that.
        eager_flush_entries: with fewer dirty entries, an eager flush would save less than a
            millisecond or two.
        max_dense_entries: the most entries of a table with the dense layout. Listing this many
            values at a barrier takes 2 to 3 ms.
        dense_sample: values of each block that are compared to estimate how many changed.
        scan_seconds, max_scan_seconds: least and greatest time between two scans of a dense table
            for blocks to flush. The time doubles after each scan that finds none.
        max_log_bytes: a checkpoint is made early only if no larger log is expected.
    """

    max_slice_entries: int = 8192
    sample_entries: int = 32
    chunk_entries: int = 256
    chunk_bytes: int = 64 * 1024
    block_entries: int = 1024
    block_bytes: int = 256 * 1024
    garbage_factor: float = 2
    slack_entries: int = 8192
    eager_flush_entries: int = 1024
    max_dense_entries: int = 1 << 17
    dense_sample: int = 32
    scan_seconds: float = 0.015
    max_scan_seconds: float = 2.0
    max_log_bytes: int = 768 * 1024


DEFAULT_SETTINGS = StateSettings()
