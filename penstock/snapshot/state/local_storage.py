"""Opens and closes the database of one subtask, and makes its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.metadata.handles import FileRecord, SnapshotBytes
from penstock.snapshot.state.cold.block_store import BlockStore
from penstock.snapshot.state.cold.checkpoint import CheckpointFiles
from penstock.snapshot.state.cold.cold_store import ColdStore, MemoryOnly
from penstock.snapshot.state.cold.database import (
    CHECKSUM_BYTES,
    DatabaseEngine,
    SharedMemory,
    StateDatabase,
)
from penstock.snapshot.state.cold.row_store import RowStore
from penstock.snapshot.state.cold.rows import RowKeys
from penstock.snapshot.state.entries import StateCodec
from penstock.snapshot.state.settings import StateSettings
from penstock.snapshot.state.slices import Slicing, Work
from penstock.snapshot.state.table.keyed_table import KeyedTable
from penstock.snapshot.state.tables import Tables


class LocalStorage:
    """Opens and closes the database of a subtask, and makes its checkpoints.

    Arguments:
        folder: the local working folder, used by this attempt only.
        codec: the codec, which encodes keys and values.
        row_keys: the object that makes the keys of rows.
        slicing: the object that divides slow work into slices.
        settings: the thresholds of the backend.
        shared: the caches and buffers of the process. If it is None, they are created when the
            database is opened.
        cache_bytes: the size of the caches and buffers if `shared` is None.
        newest: a function that returns the highest number of a captured snapshot.
        engine: the kind of the database.
    """

    def __init__(
        self,
        folder: Path,
        codec: StateCodec,
        row_keys: RowKeys,
        slicing: Slicing,
        settings: StateSettings,
        shared: SharedMemory | None,
        cache_bytes: int,
        newest: Callable[[], int],
        engine: DatabaseEngine,
    ) -> None:
        self.folder = folder
        self.codec = codec
        self.row_keys = row_keys
        self.slicing = slicing
        self.settings = settings
        self.cold: ColdStore = MemoryOnly()
        self.files = CheckpointFiles(folder / "upload")
        self._database: StateDatabase | None = None
        self._shared = shared
        self._joined = False
        self._cache_bytes = cache_bytes
        self._newest = newest
        self.engine = engine

    @property
    def is_open(self) -> bool:
        """Whether the database is open."""
        return self.cold.is_open

    @property
    def database(self) -> StateDatabase:
        """The open database.

        Raises:
            ProtocolError: if no database is open.
        """
        if self._database is None:
            raise ProtocolError("the database of a state backend is not open")
        return self._database

    def memory_of(self, engine: DatabaseEngine) -> SharedMemory:
        """Return the memory for a database that is read during a restore only."""
        same = engine.name == self.engine.name
        return self.shared_memory() if same else engine.memory(self._cache_bytes)

    def shared_memory(self) -> SharedMemory:
        """Return the caches and buffers, and count this backend as a user of them."""
        if self._shared is None:
            self._shared = self.engine.memory(self._cache_bytes)
        if not self._joined:
            self._joined = True
            self._shared.join()
        return self._shared

    def share_bytes(self) -> int:
        """Return this backend's share of the caches and buffers, in bytes."""
        return 0 if self._shared is None else self._shared.share_bytes()

    # --- methods that open and close the database ---

    def open_blocks(self) -> Work[None]:
        """Open an empty database that will hold blocks."""
        create = partial(self.engine.create, self.folder / "db", self.shared_memory())
        self._use_blocks((yield from self.slicing.offload(create)))

    def open_rows(self, tables: Tables) -> Work[None]:
        """Open an empty database that will hold rows, and close the old one, if there is one.

        Arguments:
            tables: the tables that read evicted entries from the database.
        """
        old, shared, create = self._database, self.shared_memory(), self.engine.create

        def replace() -> StateDatabase:
            if old is not None:
                self.files.discard_early(old)
                old.close()
            return create(self.folder / "db", shared)

        database = yield from self.slicing.offload(replace)
        # The new database uses the same file names again, so the known checksums are not valid.
        self.files = CheckpointFiles(self.folder / "upload")
        self._use_rows(database, tables)

    def open_linked(self, open_database: Callable[[], StateDatabase], tables: Tables) -> Work[None]:
        """Open a database that was linked from a snapshot, and load its blocks, if it has any.

        Arguments:
            open_database: a function that opens the database. It is called off the event loop.
            tables: the tables of the states in the database, in the order of their ids.
        """
        database: StateDatabase = yield from self.slicing.offload(open_database)
        if database.holds_blocks():
            yield from self._use_blocks(database).load(list(tables), self.slicing.timer())
        else:
            self._use_rows(database, tables)

    def _use_blocks(self, database: StateDatabase) -> BlockStore:
        blocks = BlockStore(database, self.codec, self.settings, self._newest)
        self._database = database
        self.cold = blocks
        return blocks

    def _use_rows(self, database: StateDatabase, tables: Tables) -> None:
        rows = RowStore(database, self.codec, self.row_keys)
        self._database = database
        self.cold = rows
        tables.attach(rows)

    def close(self) -> None:
        """Close the database, which is slow. No generator may be in a step off the event loop."""
        if self._database is not None:
            self._database.close()
            self._database = None
            self.cold = MemoryOnly()
        if self._joined and self._shared is not None:
            self._shared.leave()
            self._joined = False

    # --- methods that write entries ---

    def clean_oldest(self, table: KeyedTable) -> list[object]:
        """Write some of the oldest dirty entries of a table, and mark them as clean.

        Returns:
            The keys of the written entries. Writing them takes about one slice at most.
        """
        self.slicing.require_on_loop()
        dirty = table.dirty
        oldest = list(islice(dirty, self.settings.max_slice_entries // 2))
        timer = self.slicing.timer()
        begin = 0
        while begin < len(oldest):
            keys = oldest[begin : begin + self.cold.chunk_entries(table)]
            self.cold.write(table, keys, [dirty[key] for key in keys])
            table.forget_dirty(keys)
            begin += len(keys)
            if timer.is_over(len(keys)):
                break
        return oldest[:begin]

    # --- methods for checkpoints ---

    def checkpoint(self, target: Path) -> Work[tuple[tuple[FileRecord, ...], SnapshotBytes]]:
        """Make a checkpoint of the database in the new folder `target`.

        Returns:
            The files of the checkpoint, and the numbers of their new and linked bytes.
        """
        work = partial(self.files.checkpoint, self.database, target)
        made: tuple[tuple[FileRecord, ...], SnapshotBytes] = yield from self.slicing.offload(work)
        return made

    def discard_early(self) -> Work[None]:
        """Remove the early checkpoint of a snapshot that was aborted, if there is one."""
        if self.files.has_early:
            yield from self.slicing.offload(partial(self.files.discard_early, self.database))

    @property
    def wants_checksums(self) -> bool:
        """Whether there may be a table file whose checksum is not computed yet."""
        return self.cold.unlisted_bytes >= CHECKSUM_BYTES

    def compute_checksum(self) -> Work[bool]:
        """Compute the checksum of one table file. Return False if all of them are known."""
        if not self.is_open:
            return False
        work = partial(self.files.compute_checksum, self.database)
        return bool((yield from self.slicing.offload(work)))
