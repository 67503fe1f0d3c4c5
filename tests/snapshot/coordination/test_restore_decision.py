"""The snapshot that a run starts from: facts in, decision out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from penstock.snapshot.coordination.restore_decision import (
    NEWEST,
    Fork,
    FreshStart,
    Refuse,
    RestoreNewest,
    decide_resume,
    repeated_request,
)
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotInfo,
    SnapshotKind,
    SnapshotNumber,
)


def manifest(number: int, *operators: OperatorEntry) -> Manifest:
    kind = SnapshotKind.CHECKPOINT
    return Manifest(
        "words", "old", None, SnapshotNumber(number), kind, 0, 1, "0.1.0", "f", operators
    )


def complete(*numbers: int) -> list[SnapshotInfo]:
    return [SnapshotInfo(SnapshotNumber(number), published=True) for number in numbers]


def aborted(number: int) -> SnapshotInfo:
    return SnapshotInfo(SnapshotNumber(number), published=False, problem="no manifest")


def damaged(number: int) -> SnapshotInfo:
    return SnapshotInfo(SnapshotNumber(number), published=True, problem="truncated")


def refusal(decision: object) -> str:
    assert isinstance(decision, Refuse)
    return decision.reason


def test_an_empty_folder_is_a_fresh_start() -> None:
    assert decide_resume(None, [], None, fresh_lineage="new") == FreshStart("new")


def test_aborted_snapshots_do_not_stand_in_the_way_of_a_fresh_start() -> None:
    assert decide_resume(None, [aborted(1)], None, fresh_lineage="new") == FreshStart("new")


def test_a_folder_with_snapshots_is_not_started_over() -> None:
    decision = decide_resume(None, complete(1, 2), manifest(2), fresh_lineage="new", fork=True)
    assert "already holds snapshots 1, 2" in refusal(decision)
    assert "--resume" in refusal(decision)
    assert "another folder" in refusal(decision)


def test_a_damaged_snapshot_counts_as_one_since_its_output_exists() -> None:
    decision = decide_resume(None, [damaged(3)], None, fresh_lineage="new")
    assert "already holds snapshot 3:" in refusal(decision)


def test_the_newest_is_restored_in_its_own_lineage() -> None:
    decision = decide_resume(NEWEST, complete(1, 2), manifest(2), fresh_lineage="new")
    assert decision == RestoreNewest(manifest(2), "old")


def test_to_resume_where_nothing_is_starts_fresh() -> None:
    assert decide_resume(NEWEST, [], None, fresh_lineage="new") == FreshStart("new")


def test_the_number_of_the_newest_is_no_fork() -> None:
    infos = [*complete(1, 2), aborted(3)]
    decision = decide_resume(2, infos, None, fresh_lineage="new", chosen=manifest(2), fork=True)
    assert decision == RestoreNewest(manifest(2), "old")


def test_an_older_one_is_refused_and_says_whose_output_exists() -> None:
    infos = [*complete(5, 6), damaged(7), aborted(8)]
    decision = decide_resume(5, infos, None, fresh_lineage="new", chosen=manifest(5))
    assert "output of snapshots 6, 7 already exists" in refusal(decision)
    assert "--fork" in refusal(decision)


def test_an_older_one_forks_when_told_to() -> None:
    infos = complete(5, 6, 7)
    decision = decide_resume(5, infos, None, fresh_lineage="new", chosen=manifest(5), fork=True)
    assert decision == Fork(manifest(5), "new", ("old", 5), (6, 7))


def test_a_number_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert "there is: snapshots 1, 2" in refusal(
        decide_resume(9, complete(1, 2), None, fresh_lineage="new")
    )
    assert "there is: none" in refusal(decide_resume(9, [], None, fresh_lineage="new"))


def test_many_numbers_are_not_all_listed() -> None:
    decision = decide_resume(None, complete(*range(1, 100)), None, fresh_lineage="new")
    assert "99 snapshots (1 to 99)" in refusal(decision)


def test_another_folder_is_a_fork_and_only_when_told_to() -> None:
    path = Path("/backup/words")
    decide = partial(
        decide_resume,
        fresh_lineage="new",
        chosen=manifest(5),
        chosen_infos=complete(4, 5, 6),
    )
    decision = decide(path, [], None)
    assert "snapshot 5 of job 'words'" in refusal(decision)
    assert "output of snapshot 6 already exists" in refusal(decision)
    assert "--fork" in refusal(decision)
    decision = decide(path, [], None, fork=True)
    assert decision == Fork(manifest(5), "new", ("old", 5), (6,))


def test_another_folder_is_refused_where_there_are_snapshots_already() -> None:
    path = Path("/backup/words")
    decision = decide_resume(
        path, complete(1), manifest(1), fresh_lineage="new", fork=True, chosen=manifest(5)
    )
    assert "own folder already holds snapshot 1" in refusal(decision)


def test_a_path_without_a_snapshot_is_refused() -> None:
    decision = decide_resume(Path("/nowhere"), [], None, fresh_lineage="new", fork=True)
    assert "no complete snapshot at /nowhere" in refusal(decision)


def test_a_request_that_means_nothing_is_refused() -> None:
    assert "'oldest'" in refusal(decide_resume("oldest", [], None, fresh_lineage="new"))


def test_a_run_that_has_a_snapshot_already_goes_on_from_its_newest_one() -> None:
    """Its JobManager was started again, and the user's request is that of the first start."""

    def infos(*lineages: str) -> list[SnapshotInfo]:
        return [
            SnapshotInfo(SnapshotNumber(number), published=True, lineage=lineage)
            for number, lineage in enumerate(lineages, 5)
        ]

    for request in (None, 5, "../other/checkpoints/5", NEWEST):
        # A fork of snapshot 5 has no snapshot of its own yet, and snapshot 6 is not one of it.
        assert repeated_request(request, infos("old", "old"), "fork") == request
        assert repeated_request(request, infos("old", "old", "fork"), "fork") == NEWEST
        assert repeated_request(request, [], "fork") == request
        unknown = [*infos("fork"), aborted(8)]
        assert repeated_request(request, unknown, "fork") == NEWEST
        assert repeated_request(request, [*unknown, damaged(9)], "fork") == request
