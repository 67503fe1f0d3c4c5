"""Links the table files of an open database into a checkpoint.

This is not done by RocksDB's own function, which holds the interpreter lock while it syncs: 5 ms
on a quiet disk, 30 ms and more on a busy one, during which no record is processed.

A checkpoint is a prefix of the MANIFEST, and the table files that the prefix names. Why it is
consistent:

* A crash may leave any number of complete edits in the MANIFEST, and RocksDB opens what it finds.
  A prefix with its files is what a crash would have left, so nothing has to be locked.
* A table file is complete and synced before the edit that adds it is written, and never changes
  afterwards. Its number is not used twice. So the content of a linked file needs no sync.
* A table file is deleted only after an edit that removes it is in the MANIFEST. So if a file cannot
  be linked, the MANIFEST has grown, or was replaced and CURRENT names the new one. The next version
  does not name the file. Once all files are linked, later edits do not matter.
* `flush` returns after the edits that add its files are in the MANIFEST that CURRENT names, and
  CURRENT is read after that. So everything that was written before is in the checkpoint.

If the MANIFEST cannot be read, RocksDB makes the checkpoint itself.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocksdict import Checkpoint, Rdict

from penstock.snapshot.state.rocksdb.manifest_reader import ManifestReader, UnknownManifestError

__all__ = ["CheckpointContent", "TableFiles"]

logger = logging.getLogger(__name__)

# Each attempt after the first needs one edit that removed files while they were being linked.
_LINK_ATTEMPTS = 10


@dataclass(frozen=True)
class CheckpointContent:
    """The files of a checkpoint.

    Arguments:
        tables: per name of a table file its size in bytes; these are in the checkpoint's folder.
        copied: the table files that are copies, whose content isn't synced.
        others: the content of all other files by name; the caller writes them.
    """

    tables: Mapping[str, int]
    copied: frozenset[str]
    others: Mapping[str, bytes]


class TableFiles:
    """The table files of one open database.

    Arguments:
        folder: of the database.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = ManifestReader(folder)
        self._warned = False

    def names(self) -> list[str]:
        """Return the names of the table files; slow.

        Raises:
            OSError: if they can't be read.
        """
        try:
            return [_table_name(number) for number in self._manifest.read().files]
        except UnknownManifestError as error:
            # The edits that were read so far cannot be continued.
            self._manifest = ManifestReader(self._folder)
            raise OSError(str(error)) from error

    def link(self, folder: Path, database: Rdict) -> CheckpointContent:
        """Link the table files into a new folder; slow.

        Arguments:
            folder: is made; its parent exists.
            database: makes the checkpoint itself if its MANIFEST cannot be read.

        Raises:
            OSError: if the folder can't be made.
            Exception: if RocksDB can't make the checkpoint.
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
            # RocksDB copies silently where it can't link, and does not sync copies.
            if status.st_nlink == 1:
                copied.add(path.name)
            continue
        # The options that the database was opened with are not state, and would keep others from
        # opening it plainly. The log is empty, since everything is flushed.
        if not path.name.startswith("OPTIONS-") and path.suffix != ".log":
            others[path.name] = path.read_bytes()
        path.unlink()
    return CheckpointContent(tables, frozenset(copied), others)


def _table_name(number: int) -> str:
    return f"{number:06}.sst"
