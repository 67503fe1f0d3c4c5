"""A small job on a mirrored store, which writes files and takes snapshots of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from penstock.snapshot.metadata.handles import FileRecord, KeyedHandle, OperatorHandle
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)
from penstock.snapshot.storage.objects.memory_objects import MemoryBucket, MemoryObjects
from penstock.snapshot.storage.objects.mirrored_store import MirroredStore

CHECKPOINT, SAVEPOINT = SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT


class MirroredJob:
    """A job with one operator, whose state is a set of files.

    Arguments:
        root: the local folder.
        bucket: the object store.
        failure_rate: see `MemoryObjects`.
    """

    def __init__(self, root: Path, bucket: MemoryBucket, failure_rate: float = 0.0) -> None:
        self.objects = MemoryObjects(bucket, failure_rate)
        self.store = MirroredStore(root, self.objects)

    def start(self) -> Manifest | None:
        """Take the job over, and return the newest snapshot."""
        self.store.open("words")
        self.store.lock()
        self.store.clean_debris()
        return self.store.newest()

    def take(
        self, number: int, files: dict[str, bytes], kind: SnapshotKind = CHECKPOINT
    ) -> Manifest:
        """Take a snapshot with these files, and return its manifest."""
        manifest = self.prepare(number, files, kind)
        self.store.publish(manifest)
        return manifest

    def prepare(
        self, number: int, files: dict[str, bytes], kind: SnapshotKind = CHECKPOINT
    ) -> Manifest:
        """Write the files of a snapshot, and send them to the store."""
        task = self.store.create_folder(number) / "count.0"
        task.mkdir()
        records = []
        for name, data in files.items():
            (task / name).write_bytes(data)
            checksum = hashlib.blake2b(data, digest_size=16).hexdigest()
            records.append(FileRecord(f"count.0/{name}", len(data), checksum))
        keyed = KeyedHandle(0, 128, (), None, "count.0", tuple(records))
        handles = (OperatorHandle("count", 0, keyed, None),)
        uploads = self.store.uploads(number, handles)
        for upload in uploads:
            self.store.send(upload)
        self.store.sent(uploads)
        entry = OperatorEntry("count", "Count", "keyed process", 1, 128, True)
        return Manifest(
            *("words", "l", None, SnapshotNumber(number), kind, 1000 + number, 1, "0", "f"),
            operators=(entry,),
            handles=handles,
        )


def contents(store: MirroredStore, manifest: Manifest) -> dict[str, bytes]:
    """Return the files of a snapshot in the local folder."""
    folder = store.paths.snapshot(manifest.number)
    records = [record for handle in manifest.handles for record in handle.files]
    return {Path(one.name).name: (folder / one.name).read_bytes() for one in records}
