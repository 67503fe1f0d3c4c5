"""Links the table files of an open database into a checkpoint.

RocksDB has a function for this, but it holds the interpreter lock while it syncs files. That takes
5 ms on an idle disk and more than 30 ms on a busy disk, and no record is processed meanwhile.

A checkpoint consists of a prefix of the MANIFEST and the table files that this prefix names. It is
consistent for these reasons:

* After a crash, RocksDB can open a database whose MANIFEST has any number of complete edits. A
  prefix with its files is the same as the state after such a crash. So no lock is needed.
* RocksDB completes and syncs a table file before it writes the edit that adds the file. Later the
  file never changes, and its number is not used again. So a linked file needs no sync.
* RocksDB writes the edit that removes a table file before it deletes the file. So if a file cannot
  be linked, the MANIFEST has a newer edit, or CURRENT names a new MANIFEST. The next version does
  not name the file. Once all files are linked, later edits have no effect on the checkpoint.
* When `flush` returns, the MANIFEST has the edits that add the flushed files. CURRENT and the
  MANIFEST are read later. So all earlier writes are in the checkpoint.

If the MANIFEST cannot be read, RocksDB makes the checkpoint itself.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from rocksdict import Checkpoint, Rdict

from penstock.snapshot.state.cold.database import CheckpointContent
from penstock.snapshot.state.rocksdb.manifest_reader import ManifestReader, UnknownManifestError

logger = logging.getLogger(__name__)

# The largest number of attempts to link all files. An attempt fails only if RocksDB removes a file
# at the same time.
_LINK_ATTEMPTS = 10


class TableFiles:
    """Lists the table files of one open database, and links them into checkpoints.

    Arguments:
        folder: the folder of the database.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = ManifestReader(folder)
        self._warned = False

    def names(self) -> list[str]:
        """Return the names of the table files of the database. This is slow.

        Raises:
            OSError: if the MANIFEST cannot be read or decoded.
        """
        try:
            return [_table_name(number) for number in self._manifest.read().files]
        except UnknownManifestError as error:
            # A reader cannot be used again after an error, so it is replaced.
            self._manifest = ManifestReader(self._folder)
            raise OSError(str(error)) from error

    def link(self, folder: Path, database: Rdict) -> CheckpointContent:
        """Link the table files of the database into a new folder. This is slow.

        Arguments:
            folder: the folder to make. Its parent must exist.
            database: the database, which makes the checkpoint if its MANIFEST cannot be read.

        Raises:
            OSError: if the folder cannot be made.
            Exception: if RocksDB has to make the checkpoint, and fails.
        """
        folder.mkdir()
        try:
            return self._link_newest(folder)
        except (UnknownManifestError, OSError) as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "RocksDB makes the checkpoint itself, which holds records up for longer: %s",
                    error,
                )
            self._manifest = ManifestReader(self._folder)
            shutil.rmtree(folder, ignore_errors=True)
        return _checkpoint_by_rocksdb(folder, database)

    def _link_newest(self, folder: Path) -> CheckpointContent:
        sources, targets = f"{self._folder}/", f"{folder}/"
        linked: set[int] = set()
        for _ in range(_LINK_ATTEMPTS):
            version = self._manifest.read()
            try:
                for number in version.files.keys() - linked:
                    name = _table_name(number)
                    os.link(sources + name, targets + name)
                    linked.add(number)
            except FileNotFoundError:
                continue
            for number in linked - version.files.keys():
                (folder / _table_name(number)).unlink()
            tables = {_table_name(number): size for number, size in version.files.items()}
            current = os.fsencode(f"{version.name}\n")
            others = {version.name: version.data, "CURRENT": current}
            return CheckpointContent(tables, frozenset(), others)
        message = "table files of RocksDB vanish faster than they can be linked"
        raise UnknownManifestError(message, self._folder)


def _checkpoint_by_rocksdb(folder: Path, database: Rdict) -> CheckpointContent:
    Checkpoint(database).create_checkpoint(str(folder))
    tables, copied, others = {}, set(), {}
    for path in folder.iterdir():
        if path.suffix == ".sst":
            status = path.stat()
            tables[path.name] = status.st_size
            # If RocksDB cannot link a file, it copies the file, and does not sync the copy.
            if status.st_nlink == 1:
                copied.add(path.name)
            continue
        # The OPTIONS file is not part of the state, and could prevent other programs from opening
        # the database. The log is empty, since the database was flushed.
        if not path.name.startswith("OPTIONS-") and path.suffix != ".log":
            others[path.name] = path.read_bytes()
        path.unlink()
    return CheckpointContent(tables, frozenset(copied), others)


def _table_name(number: int) -> str:
    return f"{number:06}.sst"
