"""Which unfinished splits of a source each subtask restores."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.runtime.jobmanager.snapshots.restored_snapshot import assigned_splits
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest, OperatorEntry
from penstock.snapshot.protocols.events import SnapshotKind


def manifest(splits: list[list[Any]], state: dict[str, Any]) -> Manifest:
    """Return a snapshot of a source whose subtasks have these splits."""
    return Manifest(
        "job",
        "0a1b2c3d",
        None,
        1,
        SnapshotKind.CHECKPOINT,
        0,
        0,
        "0.1",
        "",
        operators=(OperatorEntry("source", "source", "source", len(splits), 8, True),),
        handles=tuple(
            OperatorHandle("source", subtask, small=small) for subtask, small in enumerate(splits)
        ),
        enumerators={"source": state},
    )


A, B, C, D = (["a", 1, 10], ["b", 1, 20], ["c", 1, None], ["d", 1, 40])


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, [[A, C, B]]), (2, [[A, C], [B]]), (3, [[A], [C], [B]]), (4, [[A], [C], [B], []])],
)
def test_all_splits_are_restored_at_any_parallelism(
    parallelism: int, expected: list[list[Any]]
) -> None:
    assert assigned_splits(manifest([[A, C], [B]], {}), "source", parallelism) == expected


def test_splits_that_no_task_had_in_an_older_snapshot_are_restored() -> None:
    older = manifest([[A], [B]], {"enumerator": [], "begun": [C, D]})
    assert assigned_splits(older, "source", 2) == [[A, C], [B, D]]
    assert assigned_splits(older, "source", 1) == [[A, B, C, D]]
