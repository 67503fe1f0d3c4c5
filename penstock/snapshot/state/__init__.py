"""Keyed state: hot entries in dicts, all of them in RocksDB, snapshots that cost what changed.

One `KeyedBackend` holds the keyed state of one subtask of one operator; a `KeyedTable` is one
named state in it. Nothing here schedules: slow work is a generator that the runtime drives (see
`values.Work`), with records flowing between its steps. Value, list and map state, TTL and timers
are built upon tables elsewhere.

Start reading at `tables.py` (the levels of a table), then `capture.py` (what a snapshot does),
`backend.py`, and what is in RocksDB: `blocks.py` while all of a state is hot, with `positions.py`
if most of it changes each time, and `rows.py` when it has outgrown its memory.
"""

from __future__ import annotations

from penstock.snapshot.state.backend import KeyedBackend
from penstock.snapshot.state.entries import MISSING, TOMBSTONE, ValueCodec
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.rocksdb.database import SharedMemory
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.state_snapshot import StateSnapshot

__all__ = [
    "MISSING",
    "TOMBSTONE",
    "StateSnapshot",
    "KeyedBackend",
    "KeyedTable",
    "SharedMemory",
    "ValueCodec",
    "Work",
]
