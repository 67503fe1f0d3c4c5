"""Copy snapshots of an object store into a temporary folder, for commands that only read them.

The folder is a job's checkpoint folder. At first it has the manifests of all snapshots. The files
of a snapshot are copied when they are needed.
"""

from __future__ import annotations

from pathlib import Path

from penstock.dataflow.config.snapshot_stores import is_store_url
from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest_format import decode_manifest
from penstock.snapshot.storage.confirmed_output import unpacked
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects.mirrored_store import fetch_files
from penstock.snapshot.storage.objects.object_api import Objects
from penstock.snapshot.storage.objects.obstore_objects import ObstoreObjects
from penstock.snapshot.storage.objects.snapshot_log import SnapshotLog
from penstock.snapshot.storage.store import Store


class FetchedFolder:
    """A temporary folder with the manifests of an object store; or a local folder as it is.

    Arguments:
        place: the URL of the store, or the path of a local folder.

    Raises:
        GraphError: if obstore is not installed, or the URL is wrong.
        StoreError: if the store cannot be read, or holds no job's snapshots.
    """

    def __init__(self, place: str | Path) -> None:
        self._temporary: TemporaryFolder | None = None
        self.path = Path(place)
        if is_store_url(place):
            self._temporary = TemporaryFolder("fetch")
            self.path = self._temporary.path
            try:
                fetch_listing(str(place).rstrip("/"), self.path)
            except BaseException:
                self.remove()
                raise

    def remove(self) -> None:
        """Remove the folder if it is a temporary one."""
        if self._temporary is not None:
            self._temporary.remove()


def fetch_listing(url: str, root: Path, objects: Objects | None = None) -> None:
    """Write the manifests of all snapshots of a store into a new folder.

    Arguments:
        url: the URL of the store.
        root: the folder, which is empty.
        objects: the object store; None opens the URL.

    Raises:
        GraphError: if obstore is not installed, or the URL is wrong.
        StoreError: if the store cannot be read, or holds no job's snapshots.
    """
    objects = ObstoreObjects(url) if objects is None else objects
    log = SnapshotLog(objects, "")
    name = log.job_name()
    if name is None:
        raise StoreError("there are no snapshots of a job at this URL; check the prefix", url)
    log.read()
    store = Store(root)
    store.open(name)
    store.lock()
    try:
        for number in sorted(log.live):
            entry = log.snapshot(number)
            if entry is None:
                continue  # The job has removed the snapshot meanwhile.
            store.create_folder(number)
            store.publish(decode_manifest(entry.manifest, f"{url}, snapshot {number}"))
        confirmed = objects.get("commits")
        if confirmed is not None:
            store.confirm(unpacked(confirmed, f"{url}/commits"))
    finally:
        store.unlock()
    store.paths.fetched_from.write_text(url)


def fetch_snapshot(paths: JobPaths, number: int, objects: Objects | None = None) -> None:
    """Copy the files of a snapshot into a folder that `fetch_listing` has made.

    In the folder of another job, do nothing.

    Raises:
        StoreError: if a file cannot be copied, or the snapshot was removed.
    """
    if not paths.fetched_from.exists():
        return
    url = paths.fetched_from.read_text()
    objects = ObstoreObjects(url) if objects is None else objects
    log = SnapshotLog(objects, "")
    log.read()
    entry = log.snapshot(number)
    if entry is None:
        raise StoreError(
            f"snapshot {number} was removed meanwhile: its job keeps its newest snapshots only; "
            "name a newer one",
            url,
        )
    fetch_files(objects, entry, paths)
