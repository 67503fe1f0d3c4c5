"""What must hold at each step of a simulated run, and what is no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.snapshot.storage.job_paths import JobPaths
from penstock.testing.simulation.invariants import Invariants


def make_manifest(root: Path, number: int) -> Path:
    manifest = JobPaths(root).manifest(number)
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    return manifest


@pytest.mark.parametrize("newer", [False, True])
def test_the_newest_snapshot_may_go_only_if_a_newer_one_is_durable(
    tmp_path: Path, newer: bool
) -> None:
    manifest, invariants = make_manifest(tmp_path, 5), Invariants()
    make_manifest(tmp_path, 4)
    invariants.snapshot_completed(5, "checkpoint")
    JobPaths(tmp_path).manifest(6).parent.mkdir(parents=True)
    if newer:
        JobPaths(tmp_path).manifest(6).touch()  # and its event has not arrived
    invariants.file_changes("remove", manifest)
    assert bool(invariants.violations) is not newer
