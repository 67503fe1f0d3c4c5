"""Keep the files of the snapshot from which a fork starts.

The job that took the snapshot may still run, and its retention may remove the snapshot at any
moment. So the fork links or copies the files into its own folder. It keeps them until it has
published a snapshot of its own.
"""

from __future__ import annotations

from penstock.dataflow.errors import StoreError
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths


def adopt(manifest: Manifest, source: JobPaths, own: JobPaths) -> JobPaths:
    """Link or copy the files of a snapshot into the folder of the fork.

    Arguments:
        manifest: the snapshot.
        source: the paths of the folder of the job that took the snapshot.
        own: the paths of the fork's folder; the files are put into its subfolder `work`.

    Returns:
        The paths of the folder from which the fork restores the snapshot.

    Raises:
        StoreError: if the snapshot was removed meanwhile, or a file cannot be linked or copied.
    """
    files, kept = FileSystem(), own.parent
    before, after = source.snapshot(manifest.number), kept.snapshot(manifest.number)
    try:
        for handle in manifest.handles:
            for record in handle.files:
                target = after / record.name
                target.parent.mkdir(parents=True, exist_ok=True)
                # Two handles may refer to the same file, which is linked only once.
                if not target.exists() and not files.link_or_copy(before / record.name, target):
                    # Sync the copy here, since later snapshots of the fork link it without syncing.
                    files.sync(target)
    except FileNotFoundError as error:
        raise StoreError(
            f"snapshot {manifest.number} was removed while the fork was started: its job runs, and "
            f"keeps its newest snapshots only; fork from a newer one",
            before,
        ) from error
    except OSError as error:
        raise StoreError(
            f"the files of snapshot {manifest.number} cannot be taken into the fork's own folder "
            f"({error.strerror or error})",
            after,
        ) from error
    return kept
