"""Find the output of a restored snapshot that no run has published yet."""

from __future__ import annotations

from penstock.dataflow.errors import GraphError, StoreError
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.snapshot.metadata.committables import pending_committables
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.storage.confirmed_output import require_published, unconfirmed
from penstock.snapshot.storage.store import Store


def take_over_output(
    commits: PendingCommits, manifest: Manifest, store: Store, own: Store, *, allow_dropped: bool
) -> list[str]:
    """Make those committables of a snapshot pending that no run has published.

    Arguments:
        commits: the pending commits of the run.
        manifest: the manifest of the snapshot that is restored.
        store: the store that has the snapshot. For a fork, this is the store of its parent.
        own: the store of the run. It may have a record of the commits of an earlier fork.
        allow_dropped: whether output that no sink of the program can publish is dropped.

    Returns:
        Notes for the person who started the job.

    Raises:
        GraphError: if no sink of the program can publish a part of the output, and
            `allow_dropped` is False.
        StoreError: if a record of published output is damaged, or names a snapshot that was never
            published.
    """
    for folder in {store.paths.root: store, own.paths.root: own}.values():
        confirmed = folder.confirmed()
        require_published(confirmed, manifest.lineage, store.highest_published(), folder.paths)
        commits.confirm(confirmed)
    # A folder of version 0.1 has no record of published output. There, a later manifest of the
    # lineage shows which committables were published: it no longer contains them.
    later = _next_of_lineage(store, manifest)
    held = None if later is None else later.committables
    commits.add(unconfirmed(pending_committables(manifest), {}, held))
    without_sink = commits.without_sink()
    if not without_sink:
        return []
    sinks = ", ".join(map(repr, without_sink))
    if not allow_dropped:
        raise GraphError(
            f"snapshot {manifest.number} holds output of {sinks} that was not published yet, and "
            f"the program has no sink with that uid that could publish it: give the sink its uid "
            f"back, or leave that output unpublished with --allow-dropped"
        )
    commits.drop(without_sink)
    return [
        f"output of {sinks} that snapshot {manifest.number} holds "
        f"({sum(without_sink.values())} staged files or the like) stays unpublished"
    ]


def _next_of_lineage(store: Store, manifest: Manifest) -> Manifest | None:
    for info in store.list():
        later = info.complete and info.number > manifest.number
        if later and info.lineage == manifest.lineage:
            try:
                return store.load(info.number)
            except StoreError:
                continue  # the retention of a running job has just removed this snapshot
    return None
