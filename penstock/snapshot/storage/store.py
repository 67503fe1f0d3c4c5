"""The store of a job's snapshots: a folder in which a manifest makes a snapshot.

The order of the file operations is what this module is about. Invariants:

* a snapshot is complete because its manifest exists; nothing else records it;
* a manifest appears whole or not at all, after everything it names, and at most once;
* a snapshot's manifest is gone for good before the first of its files is;
* a number that was given out is never given out again, crash or not.

They hold on a file system that forgets, in a crash, any part of what was not synced;
`MemoryFileSystem` is one, for tests. All functions block, and expect one caller at a time. Nothing
here knows what the files of a task contain, nor what to start from (`restore_decision.py`).
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from penstock.dataflow.errors import ProtocolError, Recoverability, StoreError
from penstock.snapshot.metadata.manifest import Manifest, SnapshotInfo, SnapshotKind, SnapshotNumber
from penstock.snapshot.metadata.manifest_format import decode_manifest, encode_manifest
from penstock.snapshot.storage.confirmed_output import Confirmed, read_confirmed, write_confirmed
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error, store_error
from penstock.snapshot.storage.filesystem.memory import MemoryFileSystem
from penstock.snapshot.storage.job_folder import make_folders, require_fit, sync_parents
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import create_record, read_record
from penstock.snapshot.storage.ownership import has_identity, require_real_folders, require_unused
from penstock.snapshot.storage.snapshot_numbers import NumberRecord

__all__ = ["MemoryStore", "Store"]

_LAYOUT = 1  # of the job's folder; on disk, never change what 1 means


class Store:
    """The snapshots of one job, in its checkpoint folder.

    Reading (`list`, `load`, `newest`, `verify`) may be done by anyone at any time; all that
    changes the folder needs the lock, except `open`.

    Arguments:
        root: the job's checkpoint folder.
        files: the file system; the disk's by default.
        clock: seconds since the epoch.
    """

    def __init__(
        self, root: Path, files: FileSystem | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.paths = JobPaths(root.absolute())
        self._files = FileSystem() if files is None else files
        self._clock = clock
        self._record = NumberRecord(self._files, self.paths)
        self._token: int | None = None
        #: The snapshot of which the folder's name is known to be durable.
        self._anchored: int | None = None
        self._kinds: dict[int, SnapshotKind] = {}

    def open(self, job_name: str) -> None:
        """Make the folder if there is none, and see that it is this job's and fit for use.

        Raises `StoreError` if it cannot be written, is full, knows no hard links, is another
        job's, or holds files that are not Penstock's.
        """
        with raising_store_error("use the checkpoint folder", self.paths.root):
            # Before anything is written: the folder may be somebody's.
            self.require_usable(job_name)
            make_folders(self._files, self.paths.checkpoints)
            require_fit(self._files, self.paths.root)
            if not self._files.exists(self.paths.job):
                sync_parents(self._files, self.paths.root)
                # Numbers first: a folder with an identity and no numbers has lost its numbers.
                create_record(self._files, self.paths.numbers, {"next": 1})
                created_ms = int(self._clock() * 1000)
                identity = {"layout": _LAYOUT, "job": job_name, "created_ms": created_ms}
                create_record(self._files, self.paths.job, identity)
        self._require_owner(job_name)
        with raising_store_error("read the checkpoint folder", self.paths.numbers):
            self._record.require()

    def require_usable(self, job_name: str) -> None:
        """Refuse a folder that is another job's or holds other files; changes nothing.

        Raises `StoreError` with the reason. A folder that does not exist can be used.
        """
        with raising_store_error("use the checkpoint folder", self.paths.root):
            require_real_folders(self._files, self.paths)
            if has_identity(self._files, self.paths):
                self._require_owner(job_name)
            elif self._files.exists(self.paths.root):
                require_unused(self._files, self.paths)
                self._require_snapshots_of(job_name)

    def _require_owner(self, job_name: str) -> None:
        owner = self.job_name()
        if owner != job_name:
            raise StoreError(
                f"the folder belongs to job {owner!r}, not to {job_name!r}; use another folder",
                self.paths.root,
            )

    def _require_snapshots_of(self, job_name: str) -> None:
        infos = self.list()
        whole = [info.number for info in infos if info.complete]
        if infos and not whole:
            # They may be somebody's folders that happen to have such names.
            raise StoreError(
                "the file `job` is missing, and no snapshot in the folder can be read; put it back "
                "from a backup, or use another folder",
                self.paths.root,
            )
        for number in whole:
            self.require_own(self.load(number), job_name)

    def require_own(self, manifest: Manifest, job_name: str) -> None:
        """Refuse a snapshot of this folder that another job took."""
        if manifest.job != job_name:
            raise StoreError(
                f"snapshot {manifest.number} in this folder is of job {manifest.job!r}, not of "
                f"{job_name!r}; run the job under its own name, or use another folder",
                self.paths.manifest(manifest.number),
            )

    def job_name(self) -> str:
        """The job whose folder this is; raises `StoreError` if it is none."""
        if not self._files.exists(self.paths.job):
            raise StoreError("this is not a job's checkpoint folder", self.paths.root)
        with raising_store_error("read the checkpoint folder", self.paths.job):
            identity = read_record(self._files, self.paths.job, "job", str)
        if not isinstance(identity.get("layout"), int):
            raise StoreError("the file is damaged; put it back from a backup", self.paths.job)
        if identity["layout"] > _LAYOUT:
            raise StoreError(
                f"the folder has layout {identity['layout']}, and this Penstock knows up to "
                f"{_LAYOUT}: upgrade Penstock",
                self.paths.root,
            )
        name: str = identity["job"]
        return name

    def lock(self) -> None:
        """Take the folder for this process, until `unlock` or the end of the process.

        What is seen in it from then on outlives a crash, whatever its last holder left undone.
        Raises `StoreError` if another process has it, or if locks do not work there.
        """
        if self._token is not None:
            raise ProtocolError("the store is locked already")
        holder = {"pid": os.getpid(), "host": os.uname().nodename}
        path = self.paths.lock
        try:
            self._token = self._files.lock(path, json.dumps(holder).encode())
        except BlockingIOError:
            raise StoreError(
                f"the folder is in use by {self._holder()}; stop that first, or use another folder",
                path,
            ) from None
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                raise StoreError(
                    f"locks do not work on this file system ({error.strerror}), so nothing would "
                    "keep two JobManagers apart; use a folder on a local disk",
                    path,
                ) from error
            raise store_error("lock the checkpoint folder", path, error) from error
        try:
            with raising_store_error("take over the checkpoint folder", self.paths.checkpoints):
                self._settle()
        except StoreError:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Let the folder go; does nothing if it is not held."""
        if self._token is not None:
            token, self._token = self._token, None
            self._files.unlock(self.paths.lock, token)

    def clean_debris(self) -> tuple[SnapshotNumber, ...]:
        """Remove snapshots without a manifest, and temporary files; returns those numbers."""
        self._require_lock()
        removed = []
        with raising_store_error("remove what crashes left", self.paths.checkpoints):
            self._remove_temporary(self.paths.root)
            lost = self._lost()
            for number in self._numbers():
                if self._is_published(number):
                    self._remove_temporary(self.paths.snapshot(number))
                if self._is_published(number) or number == lost:
                    continue  # its manifest may be put back
                try:
                    self._files.remove_tree(self.paths.snapshot(number))
                except OSError as error:
                    # A worker that has not yet noticed that it is dead still writes there.
                    if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                        raise
                removed.append(number)
        return tuple(removed)

    def reserve_numbers(self, count: int) -> range:
        """Give out `count` new snapshot numbers, durably: they are never given out again.

        Raises `StoreError` if that cannot be recorded; then none are given out.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        self._require_lock()
        with raising_store_error("reserve snapshot numbers", self.paths.numbers):
            # The folders have a say too, in case an old record was copied back from a backup.
            least = max((number + 1 for number in self._numbers()), default=0)
            return self._record.reserve(count, least)

    def create(self, number: int) -> Path:
        """Make the folder of a snapshot to be, and return it."""
        self._require_lock()
        folder = self.paths.snapshot(number)
        with raising_store_error(f"create snapshot {number}", folder):
            try:
                self._files.make_folder(folder)
            except FileExistsError:
                raise _fenced(number, folder) from None
        return folder

    def anchor(self, number: int) -> None:
        """Make the name of a snapshot's folder durable ahead, which `publish` does else."""
        self._require_lock()
        with raising_store_error(f"create snapshot {number}", self.paths.checkpoints):
            if self._files.exists(self.paths.snapshot(number)):
                self._files.sync(self.paths.checkpoints)
                self._anchored = number

    def publish(self, manifest: Manifest) -> Path:
        """Make a snapshot complete: write its manifest, durably, and return its path.

        The files it names must be durable before, up to and including the names of the tasks'
        folders' contents; those of the snapshot's own folder are seen to here.

        Raises `StoreError` if there is a manifest already, or it cannot be written. Then the
        snapshot counts as aborted. It may still be there after a crash right now, and restoring
        from it would be right, since what it staged stays in the next manifest.
        """
        self._require_lock()
        number, files = manifest.number, self._files
        folder, final = self.paths.snapshot(number), self.paths.manifest(number)
        data = encode_manifest(manifest)
        temporary = self.paths.temporary(final, os.getpid())
        with raising_store_error(f"publish snapshot {number}", final):
            try:
                files.write(temporary, data)
                files.sync(temporary)
                # The manifest must not survive a crash that the tasks' folders do not survive.
                files.sync(folder)
                # Not rename, which would replace the manifest of one who has fenced us off.
                files.link(temporary, final)
            except FileExistsError:
                self._remove_if_possible(temporary)
                raise _fenced(number, final) from None
            except OSError:
                self._remove_if_possible(temporary)
                raise
            try:
                files.remove(temporary)
                files.sync(folder)
                if self._anchored != number:
                    files.sync(self.paths.checkpoints)
            except OSError:
                # Nobody was told of it, so it can be taken back.
                self._remove_if_possible(final)
                raise
        self._record_published(number)
        self._kinds[number] = manifest.kind
        return final

    def confirmed(self) -> dict[tuple[str, str], int]:
        """Return which output is known to be published; see `confirmed.py`."""
        with raising_store_error("read the checkpoint folder", self.paths.commits):
            return read_confirmed(self._files, self.paths)

    def confirm(self, confirmed: Confirmed) -> None:
        """Record which output is published, durably."""
        self._require_lock()
        with raising_store_error("record what is published", self.paths.commits):
            write_confirmed(self._files, self.paths, confirmed)

    def list(self) -> Sequence[SnapshotInfo]:
        """All snapshots and what is left of some, oldest first.

        A newest snapshot that is gone is in it, too, as one that was published.
        """
        with raising_store_error("list the snapshots", self.paths.checkpoints):
            lost = self._lost()
            infos = [self._info(number) for number in self._numbers() if number != lost]
            if lost is not None:
                infos.append(SnapshotInfo(lost, published=True, problem=_gone(lost)))
            return sorted(infos, key=lambda info: info.number)

    def load(self, number: int) -> Manifest:
        """The manifest of one snapshot; raises `StoreError` if there is none or it is damaged."""
        path = self.paths.manifest(number)
        with raising_store_error(f"read snapshot {number}", path):
            if not self._files.exists(path):
                raise StoreError(f"there is no complete snapshot {number}", path)
            data = self._files.read(path)
        try:
            manifest = decode_manifest(data, path)
        except StoreError as error:
            error.recoverability = Recoverability.NON_RECOVERABLE
            raise
        if manifest.number != number:
            raise StoreError(
                f"the folder says snapshot {number} and its manifest {manifest.number}: it was "
                "copied or renamed; give it its own name back",
                path,
            )
        return manifest

    def newest(self, since: int = 0) -> Manifest | None:
        """The newest snapshot, or None if there is none.

        Raises `StoreError` if it is damaged or gone: an older one would produce output a second
        time, so that is for a person to decide.

        Arguments:
            since: look at no snapshot with a lower number.
        """
        with raising_store_error("look for the newest snapshot", self.paths.checkpoints):
            lost = self._lost()
            if lost is not None and lost >= since:
                raise StoreError(_gone(lost), self.paths.manifest(lost))
            number = max(self._published(), default=0)
            return self.load(number) if number >= max(since, 1) else None

    def verify(self, manifest: Manifest, *, checksums: bool = False) -> None:
        """See that all files of a snapshot are there with their sizes, and checksums if asked.

        Raises `StoreError` naming the first file that is not as the manifest says.
        """
        folder = self.paths.snapshot(manifest.number)
        for handle in manifest.handles:
            for record in handle.files:
                path = folder / record.name
                with raising_store_error(f"read snapshot {manifest.number}", path):
                    if not self._files.exists(path):
                        problem = "is missing"
                    elif (size := self._files.size(path)) != record.size:
                        problem = f"has {size} bytes instead of {record.size}"
                    elif checksums and self._files.checksum(path) != record.checksum:
                        problem = "has another checksum than recorded: its content was altered"
                    else:
                        continue
                raise StoreError(
                    f"snapshot {manifest.number} is damaged: a file of operator {handle.uid!r}, "
                    f"subtask {handle.subtask}, {problem}; resume from another snapshot",
                    path,
                    recoverability=Recoverability.NON_RECOVERABLE,
                )

    def discard(self, number: int) -> None:
        """Remove one snapshot, whatever its kind and however much of it there is."""
        self._require_lock()
        folder, manifest = self.paths.snapshot(number), self.paths.manifest(number)
        self._kinds.pop(number, None)
        with raising_store_error(f"remove snapshot {number}", folder):
            if self._files.exists(manifest):
                before = max((n for n in self._published() if n != number), default=0)
                if before < number:
                    self._record.withdraw(number, before)
                # First and for good: from here on it is debris and no longer a snapshot.
                self._files.remove(manifest)
                self._files.sync(folder)
            if self._files.exists(folder):
                self._files.remove_tree(folder)

    def retain(self, keep: int, protect: AbstractSet[int] = frozenset()) -> tuple[int, ...]:
        """Remove all checkpoints but the newest `keep` and those in `protect`; returns which.

        Savepoints, final snapshots and damaged ones are left alone.

        Arguments:
            keep: how many checkpoints to keep, at least 1.
            protect: numbers that unconfirmed committables need (`committables.needed_numbers`).
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._require_lock()
        with raising_store_error("list the snapshots", self.paths.checkpoints):
            published = self._published()
        checkpoints = [n for n in published if self._kind(n) is SnapshotKind.CHECKPOINT]
        candidates = [number for number in checkpoints[:-keep] if number not in protect]
        removed = tuple(number for number in candidates if self._info(number).problem is None)
        for number in removed:
            self.discard(number)
        return removed

    def _kind(self, number: SnapshotNumber) -> SnapshotKind | None:
        """Return the kind of a published snapshot; None if its manifest is damaged."""
        # Retention looks at the same few snapshots again and again, and a kind never changes.
        if number not in self._kinds:
            with suppress(StoreError):
                self._kinds[number] = self.load(number).kind
        return self._kinds.get(number)

    def _info(self, number: SnapshotNumber) -> SnapshotInfo:
        if not self._files.exists(self.paths.manifest(number)):
            problem = "it has no manifest: it is being taken, or was never completed"
            return SnapshotInfo(number, published=False, problem=problem)
        try:
            manifest = self.load(number)
        except StoreError as error:
            return SnapshotInfo(number, published=True, problem=str(error))
        return SnapshotInfo(
            number,
            True,
            manifest.kind,
            manifest.lineage,
            manifest.created_ms,
            manifest.sizes.total,
        )

    def _numbers(self) -> Sequence[SnapshotNumber]:
        if not self._files.exists(self.paths.checkpoints):
            return []
        found = map(JobPaths.number_of, self._files.names(self.paths.checkpoints))
        return sorted(number for number in found if number is not None)

    def _record_published(self, number: int) -> None:
        # A trace that is behind raises no alarm, so its failure does not fail the snapshot.
        with suppress(StoreError, OSError):
            self._record.publish(number)

    def _lost(self) -> SnapshotNumber | None:
        with raising_store_error("read the checkpoint folder", self.paths.numbers):
            return self._record.lost(self._published)

    def _published(self) -> Sequence[SnapshotNumber]:
        return [number for number in self._numbers() if self._is_published(number)]

    def _is_published(self, number: int) -> bool:
        return self._files.exists(self.paths.manifest(number))

    def _require_lock(self) -> None:
        if self._token is None:
            raise ProtocolError("the store must be locked before its folder is changed")
        with raising_store_error("look at the lock", self.paths.lock):
            if not self._files.holds(self.paths.lock, self._token):
                raise StoreError(
                    "the lock was removed or replaced while this job ran, and another job may "
                    "have taken the folder, so this one ends",
                    self.paths.lock,
                    recoverability=Recoverability.NON_RECOVERABLE,
                )

    def _holder(self) -> str:
        try:
            record = json.loads(self._files.read(self.paths.lock))
            return f"process {record['pid']} on host {record['host']}"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "another process"

    def _settle(self) -> None:
        # One that was killed between a change and its sync has left what can be seen and could
        # yet be forgotten: a manifest whose output a restore commits, or the lack of one.
        if self._files.exists(self.paths.checkpoints):
            for number in self._numbers():
                self._files.sync(self.paths.snapshot(number))
            self._files.sync(self.paths.checkpoints)
            # It may have been killed before it had recorded what is restored from now.
            self._record_published(max(self._published(), default=0))

    def _remove_temporary(self, folder: Path) -> None:
        for name in self._files.names(folder):
            if JobPaths.is_temporary(name):
                self._files.remove(folder / name)

    def _remove_if_possible(self, path: Path) -> None:
        with suppress(OSError):
            self._files.remove(path)


def _gone(number: int) -> str:
    return (
        f"snapshot {number} was the newest, and its manifest is gone: somebody removed it, or the "
        "disk lost it. Output up to it exists and would be produced again from an older one; put "
        "it back, or name an older one with --resume NUMBER --fork if that is what you want"
    )


def _fenced(number: int, path: Path) -> StoreError:
    return StoreError(
        f"snapshot {number} is there already, and this JobManager did not make it: another one "
        "has taken the job over, so this one must stop",
        path,
        recoverability=Recoverability.NON_RECOVERABLE,
    )


class MemoryStore(Store):
    """A store for jobs without a checkpoint folder, and for simulation: gone with the process.

    It holds manifests, and so the state that travels in them. State in RocksDB lies in files of
    the disk, which this store does not have; such jobs take a `Store` on a temporary folder.

    Arguments:
        seed: of all random choices.
        failure_rate: how likely a changing operation is to fail, 0 to 1.
        clock: seconds since the epoch.
    """

    def __init__(
        self, seed: int = 0, failure_rate: float = 0.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.files = MemoryFileSystem(seed, failure_rate)
        super().__init__(Path("/memory"), self.files, clock)

    def crash(self, keep: float = 0.0) -> None:
        """The machine of the store stops and starts again; see `MemoryFileSystem.crash`."""
        self.files.crash(keep)
        self._token = None
