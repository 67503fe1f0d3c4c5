"""Keep a job's snapshots in an object store, with copies in the job's local folder.

Tasks write the files of a snapshot into the local folder, as without an object store. The
JobManager then sends the files that the object store does not have yet, and appends the manifest to
the log of the store (`snapshot_log.py`). Only then is the local manifest published. So the local
folder never has a snapshot that the object store lacks, and a job on another machine finds all that
it needs in the object store.

The object of a file has the key `files/NUMBER/CONTENT`, with the number of the snapshot for which
it was sent. The log gives out each number once, so no other JobManager uses these keys. A
JobManager removes only objects of snapshots that it has removed from the log, and objects of
numbers that earlier JobManagers had. So a JobManager that was replaced never removes a file that
another one needs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.metadata.handles import FileRecord, OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.metadata.manifest_format import decode_manifest, encode_manifest
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.confirmed_output import Confirmed, merged, packed, unpacked
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects.log_entry import LogEntry
from penstock.snapshot.storage.objects.object_api import Objects
from penstock.snapshot.storage.objects.snapshot_log import SnapshotLog
from penstock.snapshot.storage.store import Store, Upload

#: The number of tries to read a file whose content arrived damaged or incomplete.
_TRIES = 3
_COMMITS = "commits"


class MirroredStore(Store):
    """Reads and writes the snapshots of a job in an object store and in its local folder.

    Arguments:
        root: the job's local folder.
        objects: the object store.
        files: the local file system.
        clock: a function that returns the seconds since the epoch.
        writer: a text that no other JobManager has.
    """

    def __init__(
        self,
        root: Path,
        objects: Objects,
        files: FileSystem | None = None,
        clock: Callable[[], float] = time.time,
        writer: str | None = None,
    ) -> None:
        super().__init__(root, files, clock)
        self._objects = objects
        self.sends = True
        self._log = SnapshotLog(objects, writer or secrets.token_hex(8))
        #: The key of the object of each file that the store has, by the checksum of the file.
        self._sent: dict[str, str] = {}
        #: The keys of the objects that each snapshot needs, by its number.
        self._needed: dict[int, set[str]] = {}
        #: The entries of the log that can be removed.
        self._old_entries: set[int] = set()
        self._old_objects: set[str] = set()
        #: The claim of this JobManager, until it has looked for what earlier ones have left.
        self._claim: LogEntry | None = None
        #: The entry of the log up to which claims were added to `_old_entries`.
        self._since = 1

    # ---- the start of a run

    def open(self, job_name: str) -> None:
        """Create the folder and the store if they do not exist; check that this job may use them.

        Raises:
            StoreError: if the folder or the object store cannot be used, or belongs to another job.
        """
        self._log.establish(job_name)
        super().open(job_name)
        self._record_origin()

    def foresee(self, number: int | None = None) -> Manifest | None:
        """Return the manifest of a snapshot in the object store, before `lock` takes the job over.

        Return None if there is no such snapshot.

        Arguments:
            number: the number of the snapshot; None for the newest one.

        Raises:
            StoreError: if the object store cannot be used.
        """
        if self._log.read() is None or not self._log.live:
            return None
        number = max(self._log.live) if number is None else number
        entry = self._log.snapshot(number) if number in self._log.live else None
        return None if entry is None else decode_manifest(entry.manifest, self._objects.url)

    def _record_origin(self) -> None:
        """Write the URL of the store durably into the folder, unless it is there."""
        files, path = self._files, self.paths.origin
        with raising_store_error("use the checkpoint folder", path):
            if files.exists(path):
                known = files.read(path).decode(errors="replace")
                if known == self._objects.url:
                    return
                raise StoreError(
                    f"the folder is the local copy of {known}, not of {self._objects.url}; use "
                    "another folder",
                    self.paths.root,
                )
            # A folder with snapshots that the store lacks would lose them: they are no copies.
            if own := self.published():
                raise StoreError(
                    f"the folder has snapshot {max(own)}, which is no copy of one in "
                    f"{self._objects.url}: use another folder, and --resume FOLDER --fork to go on "
                    "from its newest snapshot",
                    self.paths.root,
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            temporary = JobPaths.temporary(path, os.getpid())
            files.write(temporary, self._objects.url.encode())
            files.sync(temporary)
            files.rename(temporary, path)
            files.sync(self.paths.root)

    def lock(self) -> None:
        """Lock the local folder, take the job over in the store, and copy its newest snapshot.

        Raises:
            StoreError: if the folder is locked, if the object store cannot be used, or if it lacks
                snapshots that the folder has.
        """
        super().lock()
        try:
            before = self._log.read()
            claim = self._log.take_over()
            self._require_history(claim)
            self._copy_newest()
            self._read_files(before)
            self._claim = claim
        except BaseException:
            self.unlock()
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether `settle` may find a newer snapshot than the local folder has.

        The answer to the last put into the log was lost, or writing the folder failed after it.
        """
        newest = max(self._log.live, default=None)
        return self._log.in_doubt or (newest is not None and not self.is_published(newest))

    def settle(self) -> None:
        """Find out whether the newest snapshot is complete in the store, if that is unknown.

        If it is, it is published in the local folder, too.

        Raises:
            StoreError: if the store cannot be used, or another JobManager has taken the job over.
        """
        self._log.settle()
        self._copy_newest()

    def fetch(self, number: int) -> None:
        """Copy a snapshot of the object store into the local folder, if the folder lacks it.

        Raises:
            StoreError: if it cannot be copied.
        """
        if number in self._log.live and not self.is_published(number):
            self._copy(number)

    def _require_history(self, claim: LogEntry) -> None:
        """Check that the log of the store is as new as the snapshots of the local folder."""
        newest = max(self.published(), default=0)
        if newest > claim.highest:
            raise StoreError(
                f"the snapshot store has no snapshot {newest}, which the local folder "
                f"{self.paths.root} has: the store was emptied, or is that of another job. Put its "
                "objects back; or begin in another folder, with --resume FOLDER --fork",
                self._objects.url,
                recoverability=Recoverability.NON_RECOVERABLE,
            )

    def _copy_newest(self) -> None:
        """Make the local folder agree with the store."""
        live = self._log.live
        for number in self.published():
            if number not in live:
                super().discard(number)
        with raising_store_error("record snapshot numbers", self.paths.numbers):
            following = self._log.newest.next_number
            self._record.reserve_below(following)
        newest = max(live, default=None)
        if newest is None:
            return
        if self.is_published(newest):
            try:
                self.verify(self.load(newest))
                return
            except StoreError:
                super().discard(newest)  # The disk has lost files, which the store has.
        self._copy(newest)
        confirmed = self._objects.get(_COMMITS)
        if confirmed is not None:
            found = unpacked(confirmed, f"{self._objects.url}/{_COMMITS}")
            super().confirm(merged(self.confirmed(), found))

    def _copy(self, number: int) -> None:
        """Copy a snapshot from the store into the local folder."""
        entry = self._log.snapshot(number)
        if entry is None:
            raise StoreError(
                f"snapshot {number} is gone from the snapshot store; resume from another one",
                self._objects.url,
            )
        if not self._files.exists(self.paths.snapshot(number)):
            super().create_folder(number)
        super().publish(fetch_files(self._objects, entry, self.paths))

    def _read_files(self, before: LogEntry | None) -> None:
        """Record the files that the store has, and the entries that can be removed."""
        self._since = self._log.newest.sequence if before is None else before.sequence
        newest = max(self._log.live, default=None)
        for number in self._log.live:
            entry = self._log.snapshot(number)
            if entry is None:
                self._log.forget([number])  # It was removed before its removal was recorded.
                continue
            self._needed[number] = set(entry.files.values())
            # A JobManager that was replaced may still remove objects of older snapshots. So new
            # snapshots share objects with the newest one only.
            if number == newest:
                self._sent.update(entry.files)

    def _find_debris(self, claim: LogEntry) -> None:
        """Note objects for removal that JobManagers before this one have left.

        Listings may lack objects; these stay until the next run.
        """
        live = {one.sequence for one in self._log.live.values()}
        needed = self._all_needed()
        for key in self._objects.names("log/"):
            sequence = key.removeprefix("log/")
            if sequence.isdecimal() and int(sequence) < claim.sequence:
                self._old_entries.add(int(sequence))
        self._old_entries -= live
        for key in self._objects.names("files/"):
            # A number that was not given out before belongs to this JobManager or a later one.
            number = key.split("/")[1]
            if number.isdecimal() and int(number) < claim.next_number and key not in needed:
                self._old_objects.add(key)

    def skip_numbers(self, number: int) -> None:
        """Give out no snapshot number below `number` from now on.

        Raises:
            StoreError: if that cannot be recorded.
        """
        with raising_store_error("record snapshot numbers", self.paths.numbers):
            self._record.reserve_below(number)
        self._log.reserve(number)

    def remove_objects(self) -> None:
        """Remove all objects of a store that was only begun.

        Raises:
            StoreError: if they cannot be removed.
        """
        for kind in ("files/", "log/"):
            self._objects.delete(self._objects.names(kind))
        self._objects.delete(["job", "newest", _COMMITS])

    # ---- snapshots

    def reserve_numbers(self, count: int) -> range:
        """Reserve new snapshot numbers durably, in the folder and in the store."""
        numbers = super().reserve_numbers(count)
        self._log.reserve(numbers.stop)
        return numbers

    def uploads(self, number: int, handles: Iterable[OperatorHandle]) -> list[Upload]:
        """Return the files of some handles that have to be sent before snapshot `number`.

        Retention does not remove the objects of the other files until the snapshot ends.
        """
        folder, found = self.paths.snapshot(number), {}
        needed = self._needed.setdefault(number, set())
        for record in _records(handles):
            name = content_name(record)
            key = self._sent.get(name)
            if key is None:
                key = f"files/{number:06d}/{name}"
                # Another task of the snapshot may have sent, or be sending, a file like this one.
                # The snapshot does not become complete before that is done.
                if key not in needed:
                    found[key] = Upload(folder / record.name, name, key, record.size)
            needed.add(key)
        return list(found.values())

    def send(self, upload: Upload) -> None:
        """Send one file to the object store. Several threads may call this at a time.

        Raises:
            StoreError: if the file cannot be sent.
        """
        self._objects.put(upload.key, upload.path)

    def sent(self, uploads: Iterable[Upload]) -> None:
        """Record that files are in the object store."""
        self._sent.update({one.content: one.key for one in uploads})

    def publish(self, manifest: Manifest) -> Path:
        """Complete a snapshot in the object store, and then in the local folder.

        Raises:
            StoreError: if it cannot be completed, or another JobManager has taken the job over.
        """
        self._lock.require()
        files = {}
        for record in _records(manifest.handles):
            name = content_name(record)
            if name not in self._sent:
                raise StoreError(
                    f"snapshot {manifest.number} has a file that was not sent to the snapshot "
                    "store; this is a bug in Penstock",
                    record.name,
                )
            files[name] = self._sent[name]
        number = manifest.number
        entry = self._log.publish(number, manifest.kind.value, encode_manifest(manifest), files)
        self._needed[number] = set(files.values())
        # Claims before the snapshot are of no use any more.
        live = {one.sequence for one in entry.live.values()}
        self._old_entries |= set(range(self._since, entry.sequence)) - live
        self._since = entry.sequence
        return super().publish(manifest)

    def confirm(self, confirmed: Confirmed) -> None:
        """Write the record of published output, in the folder and in the store."""
        super().confirm(confirmed)
        self._objects.put(_COMMITS, packed(confirmed))

    # ---- retention

    def discard(self, number: int) -> None:
        """Remove a snapshot, or what was written for an incomplete snapshot."""
        super().discard(number)
        self._drop([number])

    def retain(self, keep: int, protect: AbstractSet[int] = frozenset()) -> tuple[int, ...]:
        """Remove all checkpoints except the newest `keep`, and except those in `protect`."""
        removed = super().retain(keep, protect)
        live = self._log.live
        checkpoints = sorted(n for n, one in live.items() if one.kind == _CHECKPOINT)
        kept = {*checkpoints[-keep:], *protect, *self.published()}
        self._drop([number for number in checkpoints if number not in kept])
        self._collect()
        return removed

    def remove_checkpoints(self) -> None:
        """Remove all snapshots of the job, except savepoints and damaged ones."""
        super().remove_checkpoints()
        savepoint = SnapshotKind.SAVEPOINT.value
        self._log.settle()
        self._drop([n for n, one in self._log.live.items() if one.kind != savepoint])
        # The snapshots leave the log before their objects are removed. This also finds out whether
        # another JobManager has taken the job over, which needs them.
        before = self._log.newest.sequence
        self._log.reserve(self._log.newest.next_number)
        self._old_entries.add(before)
        self._collect()

    def _drop(self, numbers: Sequence[int]) -> None:
        """Leave snapshots out of the log, and note their objects for removal."""
        live = self._log.live
        for number in numbers:
            if number in live:
                self._old_entries.add(live[number].sequence)
            self._needed.pop(number, None)
        self._log.forget(numbers)

    def _collect(self) -> None:
        """Remove entries of the log, and then objects, that nothing needs any more.

        An error is ignored, because the next call tries again.
        """
        with contextlib.suppress(StoreError):
            if self._claim is not None:
                self._find_debris(self._claim)
                self._claim = None
            self._old_entries -= self._log.remove(frozenset(self._old_entries))
            if self._old_entries:
                return
            needed = self._all_needed()
            self._old_objects |= {key for key in self._sent.values() if key not in needed}
            self._old_objects -= needed
            self._sent = {c: key for c, key in self._sent.items() if key in needed}
            if self._old_objects:
                self._objects.delete(sorted(self._old_objects))
                self._old_objects = set()

    def _all_needed(self) -> set[str]:
        return {key for keys in self._needed.values() for key in keys}


_CHECKPOINT = SnapshotKind.CHECKPOINT.value


def fetch_files(objects: Objects, entry: LogEntry, paths: JobPaths) -> Manifest:
    """Copy the files of a snapshot from a store into a local folder, and return its manifest.

    Files that are there already are not copied. The manifest is not written.

    Arguments:
        objects: the object store.
        entry: the entry of the snapshot in the log of the store.
        paths: the paths of the job's local folder, which has a folder for the snapshot.

    Raises:
        StoreError: if a file cannot be copied, or is damaged.
    """
    manifest = decode_manifest(entry.manifest, Path(f"log/{entry.sequence:010d}"))
    folder, files = paths.snapshot(manifest.number), FileSystem()
    with raising_store_error(f"copy snapshot {manifest.number}", folder):
        made = {folder}
        for record in _records(manifest.handles):
            target = folder / record.name
            if files.exists(target) and files.checksum(target) == record.checksum:
                continue
            for parent in reversed(target.relative_to(folder).parents[:-1]):
                (folder / parent).mkdir(exist_ok=True)
                made.add(folder / parent)
            _download(objects, entry.files.get(content_name(record), ""), target, record)
        for path in made:
            files.sync(path)
    return manifest


def _download(objects: Objects, key: str, target: Path, record: FileRecord) -> None:
    temporary = JobPaths.temporary(target, os.getpid())
    try:
        for attempt in range(_TRIES):
            try:
                found = bool(key) and objects.download(key, temporary)
            except StoreError as error:
                # The connection may have been cut in the middle of the content.
                if attempt == _TRIES - 1 or not _may_pass(error):
                    raise
                continue
            if not found:
                raise StoreError(
                    f"a file of the snapshot is gone from the snapshot store ({record.name}); "
                    "resume from another snapshot",
                    f"{objects.url}/{key}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
            if FileSystem().checksum(temporary) == record.checksum:
                temporary.replace(target)
                return
        raise StoreError(
            "an object has another checksum than recorded: its content was altered; resume from "
            "another snapshot",
            f"{objects.url}/{key}",
            recoverability=Recoverability.NON_RECOVERABLE,
        )
    finally:
        temporary.unlink(missing_ok=True)


def _may_pass(error: StoreError) -> bool:
    return error.recoverability is not Recoverability.NON_RECOVERABLE


def _records(handles: Iterable[OperatorHandle]) -> Iterable[FileRecord]:
    return (record for handle in handles for record in handle.files)


def content_name(record: FileRecord) -> str:
    """Return a name for the content of a file."""
    return f"{record.checksum}.{record.size}"
