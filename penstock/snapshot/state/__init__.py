"""Keyed state: entries in memory, all of them in RocksDB, snapshots that cost what changed.

One `KeyedBackend` holds the keyed state of one subtask of one operator. Value, list and map state,
TTL and timers are built upon its tables elsewhere. A newcomer needs nine concepts:

1. **Table** (`KeyedTable`): one named state, a map from key to value. A *dirty* entry has changed
   and is not written. A *captured* one is part of a snapshot that is not written yet. A *clean*
   one is in RocksDB too, and a *cold* one in RocksDB only.
2. **State snapshot** (`StateSnapshot`): what all tables held at one barrier. Capturing it is quick
   and happens at the barrier. Writing it is slow, and records are processed meanwhile.
3. **Work** (`slices.Work`): slow work is a generator. It yields between short slices on the event
   loop, and yields callables that block, to be run in a thread. The runtime schedules it.
4. **Cold store** (`ColdStore`): where entries are stored besides memory. At first nowhere, and a
   snapshot travels in its handle; then in RocksDB as *blocks* of a thousand entries; and as
   *rows* once the memory budget is exceeded. It never changes back.
5. **Layout** (`StateLayout`): how a table is captured. The *levelled* layout writes the entries
   that changed. The *dense* layout is for tables of which most entries change between two
   snapshots; it compares and writes whole blocks.
6. **Memory budget** (`MemoryBudget`): when it is exceeded, records wait until clean entries are
   evicted. Only rows can be read back one by one, so the first eviction turns blocks into rows.
7. **Eager flush** (`EagerFlusher`): dirty entries are written before the next snapshot while the
   task is idle, if they are unlikely to change again.
8. **Early checkpoint** (`EarlyCheckpoint`): the JobManager announces snapshots. A checkpoint is
   then made before the barrier, and a log of the later writes is added to it.
9. **Checkpoint** (`CheckpointFiles`): the table files of RocksDB, linked into the snapshot. Files
   that an earlier snapshot has already are shared with it.

Folders: `layout/` has the two layouts, `preparation/` the work before a barrier, `rocksdb/` the
database and its files. Start reading at `keyed_table.py`, then `state_snapshot.py`
and `backend.py`.

Each layer uses only the ones below it:

    backend
    state_snapshot, restore, memory_budget, preparation/
    local_storage, inline_state
    tables, layout/
    rocksdb/, cold_store
    keyed_table
    entries, slices, settings
"""

from __future__ import annotations

from penstock.snapshot.state.backend import KeyedBackend
from penstock.snapshot.state.entries import MISSING, TOMBSTONE, StateCodec
from penstock.snapshot.state.keyed_table import KeyedTable
from penstock.snapshot.state.rocksdb.options import SharedMemory
from penstock.snapshot.state.slices import Work
from penstock.snapshot.state.state_snapshot import StateSnapshot

__all__ = [
    "MISSING",
    "TOMBSTONE",
    "KeyedBackend",
    "KeyedTable",
    "SharedMemory",
    "StateSnapshot",
    "StateCodec",
    "Work",
]
