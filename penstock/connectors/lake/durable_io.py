"""Write an Iceberg table's metadata files so that they survive a power failure.

The classes of pyiceberg do not sync files. After a power failure, the catalog could name a
metadata file that was lost. So the sink sets `DurableFileIO` in the settings of the catalog, and
pyiceberg loads it by its name.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from weakref import WeakMethod

from pyarrow.fs import FileSystem
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from penstock.snapshot.storage.filesystem.durable_files import make_folders, sync_file, sync_path


class DurableFileIO(PyArrowFileIO):
    """Writes files of the local file system, and syncs each file when it is closed."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        # The cache of pyiceberg is part of a cycle, by which connections to a store stay open until
        # the garbage collector finds it.
        connect = WeakMethod(self._initialize_fs)

        def connected(scheme: str, place: str | None) -> FileSystem:
            method = connect()
            assert method is not None
            return method(scheme, place)

        self.fs_by_scheme = lru_cache(connected)

    def new_output(self, location: str) -> PyArrowFile:
        """Return the output file for a location. A local file is synced when it is closed."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, netloc))


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        make_folders(path.parent)
        return io.BufferedWriter(_SyncedFile(path, "w" if overwrite else "x"))


class _SyncedFile(io.FileIO):
    def close(self) -> None:
        if self.closed:
            return
        try:
            sync_file(self)
        finally:
            super().close()
        sync_path(Path(str(self.name)).parent)
