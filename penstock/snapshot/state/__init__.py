"""Keyed state in memory and in a database, with incremental snapshots.

One `KeyedBackend` holds the keyed state of one subtask of one operator. Other packages implement
value, list and map state, TTL and timers with its tables. A newcomer needs nine concepts:

1. **Table** (`KeyedTable`): one named state, a map from key to value. In a *composite* table
   (`CompositeTable`), a key has many entries, for example those of a map. A *dirty* entry has
   changed and is not written to the database yet. A *captured* entry belongs to a snapshot that is
   not written yet. A *clean* entry is in memory and in the database. A *cold* entry is in the
   database only.
2. **State snapshot** (`StateSnapshot`): the content of all tables at one barrier. It is captured
   quickly at the barrier. Writing it is slow, and the task processes records meanwhile.
3. **Work** (`slices.Work`): a generator that does slow work in short slices on the event loop. It
   also yields callables that block, and the runtime runs them in a thread.
4. **Cold store** (`ColdStore`): the storage of entries besides memory. A small state has none, and
   its snapshots are stored in their handles. A larger state is in a database as *blocks* of a
   thousand entries. Once the memory budget is exceeded, it is there as *rows* from then on. The
   database (`StateDatabase`) is RocksDB or SQLite.
5. **Layout** (`StateLayout`): how a table is captured. The *levelled* layout writes the changed
   entries. The *dense* layout compares and writes whole blocks. It is for tables in which most
   entries change between two snapshots.
6. **Memory budget** (`MemoryBudget`): when it is exceeded, records wait until clean entries are
   evicted. Only rows can be read one by one, so the first eviction writes all blocks as rows.
7. **Eager flush** (`EagerFlusher`): while the task is idle, it writes dirty entries before the next
   snapshot, if they are unlikely to change again.
8. **Early checkpoint** (`EarlyCheckpoint`): the JobManager announces each snapshot. The backend
   then makes a checkpoint before the barrier, and adds a log of the later writes to it.
9. **Checkpoint** (`CheckpointFiles`): the table files of the database, linked into the snapshot.
   Snapshots share files that did not change.

The folder `table/` contains the tables, `cold/` contains blocks, rows and checkpoints, and
`rocksdb/` and `sqlite/` contain one database each. Start reading at `table/keyed_table.py`, then
`state_snapshot.py` and `backend.py`.

Each layer uses only the layers below it:

    backend
    state_snapshot, restore, memory_budget, eager_flush, early_checkpoint
    local_storage, inline_state
    tables, state_layout, levelled_layout, dense_layout, dense_blocks
    engines
    rocksdb/, sqlite/
    cold/
    table/
    entries, slices, settings
"""

from __future__ import annotations

from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.backend import KeyedBackend
from penstock.snapshot.state.cold.database import SharedMemory
from penstock.snapshot.state.entries import MARKS, MISSING, TOMBSTONE, StateCodec
from penstock.snapshot.state.slices import Work, run_at_once
from penstock.snapshot.state.state_snapshot import StateSnapshot
from penstock.snapshot.state.table.composite_table import CompositeTable
from penstock.snapshot.state.table.keyed_table import KeyedTable

__all__ = [
    "MARKS",
    "MISSING",
    "TOMBSTONE",
    "CompositeTable",
    "KeyedBackend",
    "KeyedTable",
    "SharedMemory",
    "StateKind",
    "StateSnapshot",
    "StateCodec",
    "Work",
    "run_at_once",
]
