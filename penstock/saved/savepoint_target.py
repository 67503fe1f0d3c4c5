"""Copy a savepoint to where its user wants it: a folder, or an object store.

The snapshot itself is taken in the job's own folder. So a copy that fails loses nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.dataflow.config.snapshot_stores import is_store_url
from penstock.dataflow.errors import StoreError
from penstock.saved.copying import copy_snapshot, copy_to_store, require_new, require_new_store
from penstock.saved.snapshot import open_snapshot
from penstock.snapshot.storage.filesystem.durable_files import sync_file
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error


def require_target(place: str) -> None:
    """Check that a savepoint can be copied to a place, before it is taken.

    Arguments:
        place: the absolute path of a folder, or the URL of an object store.

    Raises:
        GraphError: if obstore is not installed, or the URL is wrong.
        StoreError: if the place has files already, or cannot be written, or the path is relative.
    """
    if is_store_url(place):
        require_new_store(place)
        return
    target = Path(place)
    if not target.is_absolute():
        raise StoreError("the target of a savepoint must be an absolute path", place)
    require_new(target)
    with raising_store_error("write the target of a savepoint", target):
        existed = target.exists()
        target.mkdir(parents=True, exist_ok=True)
        probe = target / ".probe"
        try:
            with probe.open("xb") as file:
                file.write(b"\0" * 4096)
                sync_file(file)
        finally:
            probe.unlink(missing_ok=True)
            if not existed:
                target.rmdir()


def copy_savepoint(path: str, place: str) -> str:
    """Copy a snapshot to a place that `require_target` has checked, and return where it is.

    Arguments:
        path: the folder of the snapshot.
        place: the absolute path of a folder, or the URL of an object store.

    Raises:
        PenstockError: if it cannot be copied. The copied files are then removed.
    """
    with open_snapshot(path) as snapshot:
        if is_store_url(place):
            return copy_to_store(snapshot, place)
        return os.fspath(copy_snapshot(snapshot, Path(place)))
