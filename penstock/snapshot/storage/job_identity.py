"""Record which job owns a checkpoint folder, and check it when the job starts."""

from __future__ import annotations

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.file_errors import raising_store_error
from penstock.snapshot.storage.job_folder import make_folders, require_fit, sync_parents
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import create_record, read_record
from penstock.snapshot.storage.ownership import has_identity, require_real_folders, require_unused
from penstock.snapshot.storage.snapshot_reader import SnapshotReader

#: The version of the folder's layout. It is written to disk, so never change its meaning. In layout
#: 1, the folder had no file `commits` before the first commit, and its files had no checksums.
_LAYOUT = 2


class JobIdentity:
    """Determines which job owns a checkpoint folder.

    The file `job` records the name of the owner. If that file is missing, the name is taken from
    the manifests of the snapshots in the folder.

    Arguments:
        files: the file system.
        paths: the paths in the job's folder.
        reader: the reader of the job's snapshots.
    """

    def __init__(self, files: FileSystem, paths: JobPaths, reader: SnapshotReader) -> None:
        self._files, self._paths, self._reader = files, paths, reader

    def establish(self, job_name: str, created_ms: int) -> None:
        """Create the folder if it does not exist, and check that it belongs to the job.

        Raises:
            StoreError: if the folder belongs to another job, holds other files, or cannot be used.
        """
        with raising_store_error("use the checkpoint folder", self._paths.root):
            # Check this before anything is written: the folder may contain files of the user.
            self.require_usable(job_name)
            make_folders(self._files, self._paths.checkpoints)
            require_fit(self._files, self._paths.root)
            if not self._files.exists(self._paths.job):
                sync_parents(self._files, self._paths.root)
                # Write the file `job` last. So if a folder has the file `job` but lacks one of the
                # others, that file was lost later.
                create_record(self._files, self._paths.numbers, {"next": 1, "published": 0})
                create_record(self._files, self._paths.commits, {"confirmed": []})
                identity = {"layout": _LAYOUT, "job": job_name, "created_ms": created_ms}
                create_record(self._files, self._paths.job, identity)
        self._require_owner(job_name)

    def require_usable(self, job_name: str) -> None:
        """Check that the job may use the folder; do not change the folder.

        Raises:
            StoreError: if the folder belongs to another job, or contains files of other programs.
        """
        with raising_store_error("use the checkpoint folder", self._paths.root):
            require_real_folders(self._files, self._paths)
            if has_identity(self._files, self._paths):
                self._require_owner(job_name)
            elif self._files.exists(self._paths.root):
                require_unused(self._files, self._paths)
                self._require_snapshots_of(job_name)

    def require_own(self, manifest: Manifest, job_name: str) -> None:
        """Raise a `StoreError` if another job took this snapshot of the folder."""
        if manifest.job != job_name:
            raise StoreError(
                f"snapshot {manifest.number} in this folder is of job {manifest.job!r}, not of "
                f"{job_name!r}; run the job under its own name, or use another folder",
                self._paths.manifest(manifest.number),
            )

    def job_name(self) -> str:
        """Return the name of the job that owns the folder.

        Raises:
            StoreError: if this is not a checkpoint folder, or its file `job` cannot be used.
        """
        _, name = self._read()
        return name

    def has_commits(self) -> bool:
        """Return whether the folder had a file `commits` from the start.

        Raises:
            StoreError: if this is not a checkpoint folder, or its file `job` cannot be used.
        """
        layout, _ = self._read()
        return layout > 1

    def _read(self) -> tuple[int, str]:
        """Return the layout of the folder, and the name of its job."""
        path = self._paths.job
        if not self._files.exists(path):
            raise StoreError("this is not a job's checkpoint folder", self._paths.root)
        with raising_store_error("read the checkpoint folder", path):
            types, defaults = {"layout": int, "job": str, "created_ms": int}, {"created_ms": 0}
            identity = read_record(self._files, path, types, defaults)
        layout, name = identity["layout"], identity["job"]
        assert isinstance(layout, int) and isinstance(name, str)
        if layout > _LAYOUT:
            raise StoreError(
                f"the folder has layout {layout}, and this Penstock knows up to "
                f"{_LAYOUT}: upgrade Penstock",
                self._paths.root,
            )
        return layout, name

    def _require_owner(self, job_name: str) -> None:
        owner = self.job_name()
        if owner != job_name:
            raise StoreError(
                f"the folder belongs to job {owner!r}, not to {job_name!r}; use another folder",
                self._paths.root,
            )

    def _require_snapshots_of(self, job_name: str) -> None:
        infos = self._reader.list()
        whole = [info.number for info in infos if info.complete]
        if infos and not whole:
            # The user may have folders of their own whose names are numbers.
            raise StoreError(
                "the file `job` is missing, and no snapshot in the folder can be read; put it back "
                "from a backup, or use another folder",
                self._paths.root,
            )
        for number in whole:
            self.require_own(self._reader.load(number), job_name)
