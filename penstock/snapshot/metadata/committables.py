"""List the committables of a manifest: staged output that may not be published yet."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.manifest import Manifest


def pending_committables(manifest: Manifest) -> list[Committable]:
    """Return the committables that a job must commit after it has been restored.

    They are sorted by (snapshot, uid, subtask, attempt). Each committable is returned once. If two
    committables have the same identity but different payloads, both are returned. A commit that is
    repeated does no harm, but a commit that is left out loses output.
    """
    # Payloads are compared by their repr, because 1, 1.0 and True are equal.
    unique = {(item.identity, repr(item.payload)): item for item in manifest.committables}
    return sorted(
        unique.values(), key=lambda item: (item.snapshot, item.uid, item.subtask, item.attempt)
    )


def needed_numbers(committables: Sequence[Committable]) -> set[int]:
    """Return the numbers of the snapshots that retention must keep for these committables."""
    return {item.snapshot for item in committables}
