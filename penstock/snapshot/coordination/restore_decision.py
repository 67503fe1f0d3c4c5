"""Decide which snapshot a run starts from.

Nothing here reads a file, a clock or a random number: the caller reads the facts from a store, asks
for a decision and carries it out. A decision is a value; a refusal carries its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.snapshot.metadata.manifest import Manifest, SnapshotInfo

__all__ = [
    "NEWEST",
    "Decision",
    "Fork",
    "FreshStart",
    "Refuse",
    "RestoreNewest",
    "decide_resume",
]

NEWEST = "newest"


@dataclass(frozen=True)
class FreshStart:
    """Start from the beginning of the input, in a new lineage."""

    lineage: str


@dataclass(frozen=True)
class RestoreNewest:
    """Resume from the newest snapshot, in its lineage."""

    manifest: Manifest
    lineage: str


@dataclass(frozen=True)
class Fork:
    """Resume from another snapshot, in a new lineage whose parent it is.

    Arguments:
        manifest: the snapshot to restore from.
        lineage: the new lineage.
        parent: (lineage, number) of the snapshot, for the manifests of the new lineage.
        later: newer snapshots, whose output exists and will be produced a second time.
    """

    manifest: Manifest
    lineage: str
    parent: tuple[str, int]
    later: tuple[int, ...]


@dataclass(frozen=True)
class Refuse:
    """Do not start; `reason` is the message of a `GraphError`."""

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
    """Decide which snapshot a run starts from.

    Arguments:
        request: None (no `--resume`), `NEWEST`, a snapshot's number, or the path of another
            job's folder or snapshot. A path into the job's own folder is a number: the caller
            turns it into one.
        infos: the listing of the job's own folder.
        newest: the newest snapshot of the job's own folder; needed for `NEWEST` only.
        fresh_lineage: the id of the new lineage, if one begins.
        fork: whether `--fork` was given.
        chosen: the snapshot that a number or a path names, or None if there is none.
        chosen_infos: for a path, the listing of the folder that it points into.
    """
    # Damaged ones count as well: their output was committed when they were published.
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
