"""The thresholds of keyed state, such as the sizes of blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StateSettings:
    """Thresholds of one backend. The defaults come from measurements.

    Tests set smaller values.

    Arguments:
        max_slice_entries: the largest number of entries that a slice on the event loop processes.
        sample_entries: the number of values that are encoded to estimate their mean size.
        chunk_entries, chunk_bytes: the largest number of entries, and about the largest number of
            bytes, that are encoded in one step. A step must be much shorter than a slice.
        block_entries, block_bytes: the largest number of entries of a block, and about the largest
            number of bytes of its values.
        garbage_factor, slack_entries: the blocks of a state are compacted when they hold more than
            `garbage_factor` times the live entries plus `slack_entries`.
        eager_flush_entries: the number of dirty entries above which an eager flush begins. For
            fewer entries it would save only one or two milliseconds.
        max_dense_entries: the largest number of entries of a table with the dense layout. To list
            this many values at a barrier takes 2 to 3 ms.
        dense_sample: the number of values of each block that are compared to estimate how many
            values changed.
        scan_seconds, max_scan_seconds: the shortest and the longest time between two scans of a
            dense table for blocks to flush. The time doubles after each scan that finds no block.
        max_log_bytes: the largest expected size of a log, in bytes, with which a checkpoint is
            made early.
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
