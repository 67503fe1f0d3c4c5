"""Copy a snapshot into a folder or an object store of its own.

The copy is a job's checkpoint folder with one snapshot. All files are copied and not linked, and
their checksums are compared. The data that sources keep, and output that is not published yet, are
copied as well. The snapshot keeps its number and its lineage. The job may run meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.saved.snapshot import SavedSnapshot
from penstock.snapshot.metadata.handles import FileRecord
from penstock.snapshot.storage.confirmed_output import read_confirmed
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.durable_files import sync_file, sync_path
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects.mirrored_store import MirroredStore
from penstock.snapshot.storage.objects.object_api import Objects
from penstock.snapshot.storage.objects.obstore_objects import ObstoreObjects
from penstock.snapshot.storage.objects.snapshot_log import SnapshotLog
from penstock.snapshot.storage.snapshot_numbers import NumberRecord
from penstock.snapshot.storage.store import Store

_CHUNK_BYTES = 1024 * 1024


def copy_snapshot(snapshot: SavedSnapshot, target: Path) -> Path:
    """Copy a snapshot into a new job's folder, and return the folder of the copy.

    Arguments:
        snapshot: the snapshot.
        target: the new folder. It must not exist, or be empty.

    Raises:
        StoreError: if the folder holds files, if a file of the snapshot is damaged, or if the copy
            cannot be written. The copied files are then removed.
    """
    source, files = snapshot.paths, FileSystem()
    require_new(target)
    store = Store(target)
    try:
        # The files that sources and sinks keep are copied first: the manifest is published last.
        with raising_store_error("copy the snapshot", target):
            confirmed = read_confirmed(files, source)
            store.open(snapshot.job)
            store.lock()
            copy_kept(source, store.paths, staged=bool(snapshot.manifest.committables))
            NumberRecord(files, store.paths).reserve(1, snapshot.number)
            folder = store.create_folder(snapshot.number)
            _copy_files(snapshot, folder)
            until = {place: min(one, snapshot.number) for place, one in confirmed.items()}
            store.confirm(until)
            store.publish(snapshot.manifest)
        return folder
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        store.unlock()


def copy_to_store(snapshot: SavedSnapshot, url: str, objects: Objects | None = None) -> str:
    """Copy a snapshot into an object store that is new, and return the URL of the store.

    Arguments:
        snapshot: the snapshot.
        url: the URL of the store: `s3://bucket/prefix` or the like.
        objects: the object store; None opens the URL.

    Raises:
        GraphError: if obstore is not installed, or the URL is wrong.
        StoreError: if the store has snapshots, if a file of the snapshot is damaged, or if the copy
            cannot be written. The copied files are then removed.
    """
    source, files = snapshot.paths, FileSystem()
    # A snapshot without committables, such as a savepoint, needs no staged output.
    staged = [source.staging] if snapshot.manifest.committables else []
    for kept in (source.sources, *staged):
        if kept.is_dir() and any(kept.iterdir()):
            raise StoreError(
                "the sources or sinks of the job keep files in its folder, which an object store "
                "does not hold; copy the snapshot into a folder",
                kept,
            )
    objects = ObstoreObjects(url) if objects is None else objects
    require_new_store(url, objects)
    with TemporaryFolder("copy") as temporary:
        store = MirroredStore(temporary.path, objects)
        try:
            with raising_store_error("copy the snapshot", temporary.path):
                confirmed = read_confirmed(files, source)
                store.open(snapshot.job)
                store.lock()
                store.skip_numbers(snapshot.number + 1)
                _copy_files(snapshot, store.create_folder(snapshot.number))
                uploads = store.uploads(snapshot.number, snapshot.manifest.handles)
                for upload in uploads:
                    store.send(upload)
                store.sent(uploads)
                until = {place: min(one, snapshot.number) for place, one in confirmed.items()}
                store.confirm(until)
                store.publish(snapshot.manifest)
            return url
        except BaseException:
            with contextlib.suppress(StoreError):
                store.remove_objects()
            raise
        finally:
            store.unlock()


def require_new(target: Path) -> None:
    """Raise a `StoreError` if a folder exists and is not empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError("the folder must be new or empty; name another one", target)


def require_new_store(url: str, objects: Objects | None = None) -> None:
    """Raise a `StoreError` if an object store has snapshots already, or cannot be used.

    Arguments:
        url: the URL of the store.
        objects: the object store; None opens the URL.

    Raises:
        GraphError: if obstore is not installed, or the URL is wrong.
        StoreError: see above.
    """
    objects = ObstoreObjects(url) if objects is None else objects
    if SnapshotLog(objects, "").job_name() is not None:
        raise StoreError("the store has snapshots already; name a new prefix", url)


def copy_kept(source: JobPaths, target: JobPaths, *, staged: bool = True) -> None:
    """Copy the files that sources and sinks keep in a job's folder.

    A running job may remove files meanwhile that none of its snapshots needs. These are left out.

    Arguments:
        source: the paths in the job's folder.
        target: the paths in the folder of the copy.
        staged: whether to copy the staged output of sinks.

    Raises:
        OSError: if they cannot be copied.
    """
    folders = [(source.sources, target.sources)]
    if staged:
        folders.append((source.staging, target.staging))
    for kept, copy in folders:
        if kept.is_dir():
            shutil.copytree(kept, copy, copy_function=_copy_if_there)


def _copy_if_there(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _copy_files(snapshot: SavedSnapshot, folder: Path) -> None:
    records = {one.name: one for handle in snapshot.manifest.handles for one in handle.files}
    for record in records.values():
        place = folder / record.name
        place.parent.mkdir(exist_ok=True)
        _copy_file(record, snapshot.path / record.name, place)
    for path in {(folder / name).parent for name in records} | {folder}:
        sync_path(path)


def _copy_file(record: FileRecord, source: Path, target: Path) -> None:
    digest = hashlib.blake2b(digest_size=16)
    with source.open("rb") as reading, target.open("xb") as writing:
        while data := reading.read(_CHUNK_BYTES):
            digest.update(data)
            writing.write(data)
        sync_file(writing)
    if digest.hexdigest() != record.checksum:
        raise StoreError(
            "a file of the snapshot has another checksum than recorded: its content was altered; "
            "copy another snapshot",
            source,
            recoverability=Recoverability.NON_RECOVERABLE,
        )
