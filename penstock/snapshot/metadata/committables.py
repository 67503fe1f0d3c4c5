"""The committables that a manifest holds: output that is staged and not known to be published."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.manifest import Manifest

__all__ = ["needed_numbers", "pending_committables"]


def pending_committables(manifest: Manifest) -> list[Committable]:
    """Return all committables to commit on restore, in order of (snapshot, uid, subtask).

    Each is returned once. Two of one identity that differ in payload are both returned, in the
    manifest's order: committing twice is harmless, and leaving one out is not.
    """
    # repr, because 1, 1.0 and True are equal.
    unique = {(item.identity, repr(item.payload)): item for item in manifest.committables}
    return sorted(
        unique.values(), key=lambda item: (item.snapshot, item.uid, item.subtask, item.attempt)
    )


def needed_numbers(committables: Sequence[Committable]) -> set[int]:
    """Return the snapshots that retention must keep while these are not confirmed."""
    return {item.snapshot for item in committables}
