"""Decide from which snapshot a run starts.

This module reads no files, no clock and no random numbers. The caller reads the listing of
snapshots from a store, calls `decide_resume`, and executes the returned decision. If the run is
refused, the decision contains the message for the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.snapshot.metadata.manifest import Manifest, SnapshotInfo

NEWEST = "newest"


@dataclass(frozen=True)
class FreshStart:
    """Start from the beginning of the input, in a new lineage."""

    lineage: str


@dataclass(frozen=True)
class RestoreNewest:
    """Resume from the newest snapshot, and continue its lineage."""

    manifest: Manifest
    lineage: str


@dataclass(frozen=True)
class Fork:
    """Resume from an older snapshot, or from another job's snapshot, in a new lineage.

    Arguments:
        manifest: the manifest of the snapshot to restore from.
        lineage: the id of the new lineage.
        parent: the lineage and the number of the snapshot, which is the parent of the new lineage.
        later: the numbers of newer snapshots. Their output is already published, and the run will
            produce it a second time.
    """

    manifest: Manifest
    lineage: str
    parent: tuple[str, int]
    later: tuple[int, ...]


@dataclass(frozen=True)
class Refuse:
    """Do not start the run; raise a `GraphError` with `reason` as its message."""

    reason: str


Decision = FreshStart | RestoreNewest | Fork | Refuse


def decide_resume(
    request: str | int | Path | None,
    infos: Sequence[SnapshotInfo],
    newest: Manifest | None,
    *,
    fresh_lineage: str,
    fork: bool = False,
    chosen: Manifest | None = None,
    chosen_infos: Sequence[SnapshotInfo] = (),
) -> Decision:
    """Decide from which snapshot a run starts.

    Arguments:
        request: the value of `--resume`: None without the option, `NEWEST`, the number of a
            snapshot, or the path of another job's folder or snapshot. If the path leads to a
            snapshot in the job's own folder, the caller must replace it with the number.
        infos: the listing of the snapshots in the job's own folder.
        newest: the manifest of the newest snapshot in the job's own folder. It is used only if
            `request` is `NEWEST`.
        fresh_lineage: the id for a new lineage, if the run begins one.
        fork: whether the user gave `--fork`.
        chosen: the manifest of the snapshot with the number or path in `request`, or None if there
            is no such snapshot.
        chosen_infos: the listing of the snapshots in the folder to which the path in `request`
            leads. It is used only if `request` is a path.
    """
    # Damaged snapshots are included. When a snapshot became complete, its output was committed. A
    # run from an older snapshot would write this output again.
    published = sorted(info.number for info in infos if info.published)
    if request is None:
        if published:
            return Refuse(
                f"the folder already holds {_numbered(published)}: go on from the newest with "
                "--resume, or use another folder to start from the beginning"
            )
        return FreshStart(fresh_lineage)
    if request == NEWEST:
        if newest is None:
            return FreshStart(fresh_lineage)
        return RestoreNewest(newest, newest.lineage)
    if isinstance(request, int):
        return _decide_number(request, published, chosen, fork, fresh_lineage)
    if isinstance(request, Path):
        elsewhere = sorted(info.number for info in chosen_infos if info.published)
        return _decide_path(request, published, chosen, elsewhere, fork, fresh_lineage)
    return Refuse(f"cannot resume from {request!r}: give nothing, a snapshot's number, or a path")


def repeated_request(
    request: str | int | None, infos: Sequence[SnapshotInfo], lineage: str
) -> str | int | None:
    """Return the request of a run whose JobManager may have been started again.

    Arguments:
        request: the value of `--resume`.
        infos: the listing of the snapshots in the job's own folder.
        lineage: the lineage of the run's snapshots. If the newest snapshot has it, an earlier
            JobManager of the run has taken that snapshot, and the run continues from it.
    """
    published = [info for info in infos if info.published]
    newest = max(published, key=lambda info: info.number, default=None)
    return NEWEST if newest is not None and newest.lineage == lineage else request


def _decide_number(
    number: int, published: Sequence[int], chosen: Manifest | None, fork: bool, lineage: str
) -> Decision:
    if chosen is None:
        there = _numbered(published) if published else "none"
        return Refuse(f"there is no snapshot {number} in the folder; there is: {there}")
    later = tuple(other for other in published if other > number)
    if not later:
        return RestoreNewest(chosen, chosen.lineage)
    if not fork:
        return Refuse(
            f"snapshot {number} is not the newest: the output of {_numbered(later)} already "
            "exists and would be produced again; resume from the newest, or say --fork if that "
            "is what you want"
        )
    return Fork(chosen, lineage, (chosen.lineage, chosen.number), later)


def _decide_path(
    path: Path,
    published: Sequence[int],
    chosen: Manifest | None,
    elsewhere: Sequence[int],
    fork: bool,
    lineage: str,
) -> Decision:
    if chosen is None:
        return Refuse(f"there is no complete snapshot at {path}")
    if published:
        return Refuse(
            f"the job's own folder already holds {_numbered(published)}: use an empty folder to "
            f"start from {path}"
        )
    later = tuple(other for other in elsewhere if other > chosen.number)
    if not fork:
        exists = f" (the output of {_numbered(later)} already exists)" if later else ""
        return Refuse(
            f"{path} is snapshot {chosen.number} of job {chosen.job!r} in another folder: going "
            f"on from it makes a second line of output beside that job's{exists}; say --fork if "
            "that is what you want"
        )
    return Fork(chosen, lineage, (chosen.lineage, chosen.number), later)


def _numbered(numbers: Sequence[int]) -> str:
    word = "snapshot" if len(numbers) == 1 else "snapshots"
    if len(numbers) > 8:
        return f"{len(numbers)} {word} ({numbers[0]} to {numbers[-1]})"
    return f"{word} {', '.join(map(str, numbers))}"
