"""Remove the snapshot of another job that a fork has claimed.

The fork keeps links to the files of the snapshot, or copies. So the snapshot itself is needed only
until the fork has snapshots of its own. A record in the folder of the fork names the snapshot. So a
fork that is resumed removes it as well.
"""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.dataflow.errors import GraphError, StoreError
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import read_record, replace_record
from penstock.snapshot.storage.store import Store

logger = logging.getLogger("penstock")


def claim(own: JobPaths, source: JobPaths, number: int) -> None:
    """Claim a snapshot for the job of another folder.

    Arguments:
        own: the paths of the folder of the job that starts.
        source: the paths of the folder with the snapshot.
        number: the number of the snapshot.

    Raises:
        GraphError: if another process uses the folder of the snapshot, or if the snapshot is in an
            object store.
        StoreError: if the claim cannot be recorded.
    """
    if source.origin.exists() or source.root == own.fetched:
        raise GraphError(
            f"a snapshot of an object store cannot be claimed: start with the claim mode no-claim, "
            f"and remove the snapshot afterwards [{source.root}]"
        )
    store = Store(source.root)
    try:
        store.lock()
    except StoreError as error:
        raise GraphError(
            f"the snapshot cannot be claimed, since its job may still use it: {error}. Stop that "
            f"job, or start with the claim mode no-claim"
        ) from error
    store.unlock()
    record = {"root": str(source.root), "number": str(number)}
    with raising_store_error("claim a snapshot", own.claimed):
        replace_record(FileSystem(), own.claimed, record)


def remove_claimed(own: JobPaths) -> None:
    """Remove the snapshot that the job has claimed; do nothing if there is none.

    If it cannot be removed, a warning says so, and it stays.
    """
    if not own.claimed.exists():
        return
    files = FileSystem()
    record = read_record(files, own.claimed, {"root": str, "number": str})
    store, number = Store(Path(record["root"])), int(record["number"])
    try:
        store.lock()
        try:
            store.discard(number)
        finally:
            store.unlock()
    except StoreError as error:
        logger.warning("the claimed snapshot %d was not removed: %s", number, error)
    with raising_store_error("end a claim", own.claimed):
        files.remove(own.claimed)
