"""What to start from, and whether a program fits a snapshot: decisions from facts.

Nothing here reads a file, a clock or a random number: the caller reads the facts from a store,
asks, and acts on the answer. A decision is a value; what is refused carries its sentence.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.sink import Committable
from penstock.snapshot.metadata.manifest import Manifest, OperatorEntry, SnapshotInfo

__all__ = [
    "NEWEST",
    "Decision",
    "Difference",
    "EdgeEntry",
    "Fork",
    "FreshStart",
    "Refuse",
    "RestoreNewest",
    "Verdict",
    "check_graph",
    "decide_resume",
    "edges_in_flight",
    "needed_numbers",
    "pending_committables",
    "require_compatible",
]

NEWEST = "newest"


@dataclass(frozen=True)
class FreshStart:
    """Start from the beginning of the input, in a new lineage."""

    lineage: str


@dataclass(frozen=True)
class RestoreNewest:
    """Go on from the newest snapshot, in its lineage."""

    manifest: Manifest
    lineage: str


@dataclass(frozen=True)
class Fork:
    """Go on from another snapshot, in a new lineage whose parent it is.

    Arguments:
        manifest: the snapshot to restore from.
        lineage: the new lineage.
        parent: (lineage, number) of the snapshot, for the manifests of the new lineage.
        later: snapshots whose output exists already and will be produced a second time.
    """

    manifest: Manifest
    lineage: str
    parent: tuple[str, int]
    later: tuple[int, ...]


@dataclass(frozen=True)
class Refuse:
    """Do not start; `reason` says why and what to do, and is meant for a `GraphError`."""

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
    """What a run starts from.

    Arguments:
        request: None (no `--resume`), `NEWEST`, a snapshot's number, or the path of another
            job's folder or snapshot. A path into the job's own folder is a number: the caller
            turns it into one.
        infos: the listing of the job's own folder.
        newest: the newest snapshot of the job's own folder; looked at for `NEWEST` only.
        fresh_lineage: the id of the lineage, should a new one begin.
        fork: whether `--fork` was given.
        chosen: the snapshot that a number or a path names, or None if there is none.
        chosen_infos: for a path, the listing of the folder it points into.
    """
    # Damaged ones count as well: that they were published means that output was committed.
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


class Verdict(enum.Enum):
    """What becomes of an operator's state when a program resumes from a snapshot."""

    RESCALED = "rescaled"
    NEW = "new"
    DROPPED = "dropped"
    LOST = "records lost"
    REFUSED = "refused"


@dataclass(frozen=True)
class Difference:
    """One operator that is not the same in the snapshot and in the program.

    Arguments:
        uid, name: the operator.
        verdict: what becomes of its state.
        reason: a sentence for people.
    """

    uid: str
    name: str
    verdict: Verdict
    reason: str


def edges_in_flight(manifest: Manifest) -> frozenset[tuple[str, str]]:
    """Return the edges that a snapshot has records for, by the uids of producer and consumer."""
    return frozenset(
        (log.producer, handle.uid)
        for handle in manifest.handles
        for log in handle.logs
        if log.records
    )


#: An edge of the program: uid of the producer, uid of the consumer, index of the consumer's input,
#: and its `Partitioning`.
EdgeEntry = tuple[str, str, int, Partitioning]

#: A record of such an edge belongs to one subtask and to no other.
_BY_RECORD = frozenset({Partitioning.HASH, Partitioning.CUSTOM, Partitioning.GLOBAL})


def check_graph(
    manifest: Manifest,
    operators: Sequence[OperatorEntry],
    edges: Sequence[EdgeEntry],
    hooks: Sequence[Sequence[str]] = (),
) -> list[Difference]:
    """Where a program differs from a snapshot, as far as state is concerned, in uid order.

    Operators that are not named in the answer are kept as they are, or have no state on either
    side: those may come, go and change freely. So may edges on which no records were in flight.

    Arguments:
        manifest: the snapshot.
        operators: of the program.
        edges: of the program; those within a chain do not matter.
        hooks: of each chain of the program, the uids of its operators with an end-of-input hook.
    """
    before = {entry.uid: entry for entry in manifest.operators}
    after = {entry.uid: entry for entry in operators}
    newcomers = [entry for entry in operators if entry.uid not in before]
    found = []
    for uid in sorted({*before, *after}):
        difference = _compare(before.get(uid), after.get(uid), newcomers)
        if difference is not None:
            found.append(difference)
    found += _compare_logs(manifest, before, after, edges)
    found += _compare_endings(manifest, before, after, hooks)
    return sorted(found, key=lambda item: item.uid)


def _compare(
    old: OperatorEntry | None, new: OperatorEntry | None, newcomers: Sequence[OperatorEntry]
) -> Difference | None:
    if old is None or not old.stateful:
        if new is None or not new.stateful:
            return None
        return Difference(new.uid, new.name, Verdict.NEW, "not in the snapshot: it starts empty")
    if new is None:
        reason = "the program has no operator with this uid: its state would be lost"
        namesakes = [o.uid for o in newcomers if (o.name, o.kind) == (old.name, old.kind)]
        if namesakes:
            reason += f"; if it is {namesakes[0]!r} now, give that its former uid {old.uid!r}"
        return Difference(old.uid, old.name, Verdict.DROPPED, reason)
    if new.kind != old.kind:
        reason = f"it was a {old.kind} and is a {new.kind}: give the new operator another uid"
        return Difference(old.uid, new.name, Verdict.REFUSED, reason)
    if not new.stateful:
        return Difference(old.uid, new.name, Verdict.DROPPED, "it has no state any more")
    if new.max_parallelism != old.max_parallelism:
        reason = (
            f"max_parallelism was {old.max_parallelism} and is {new.max_parallelism}: keys would "
            f"be in other key groups; set it to {old.max_parallelism}"
        )
        return Difference(old.uid, new.name, Verdict.REFUSED, reason)
    if new.parallelism != old.parallelism:
        reason = f"parallelism was {old.parallelism} and is {new.parallelism}"
        return Difference(old.uid, new.name, Verdict.RESCALED, reason)
    return None


def _compare_logs(
    manifest: Manifest,
    before: dict[str, OperatorEntry],
    after: dict[str, OperatorEntry],
    edges: Sequence[EdgeEntry],
) -> Iterator[Difference]:
    partitionings = {edge[:3]: edge[3] for edge in edges}
    in_flight: Counter[tuple[str, str, int, str]] = Counter()
    for handle in manifest.handles:
        for log in handle.logs:
            in_flight[log.producer, handle.uid, log.input, log.partitioning] += log.records
    for (producer, consumer, input, name), records in sorted(in_flight.items()):
        if not records:
            continue
        old, was = before[consumer], Partitioning(name)
        now = partitionings.get((producer, consumer, input))
        what = f"{records} records from {producer!r} to its input {input} were in flight"
        if now is None:
            reason = f"{what}, and the program has no such edge: they would be lost"
            yield Difference(consumer, old.name, Verdict.LOST, reason)
            continue
        new = after[consumer]
        rescaled = new.parallelism != old.parallelism
        if rescaled and Partitioning.BROADCAST in (was, now):
            reason = (
                f"{what} on a broadcast edge, of which each of the {old.parallelism} subtasks had "
                f"its own copies: they cannot be dealt to {new.parallelism}; set the parallelism "
                f"to {old.parallelism}"
            )
        elif was is not now and Partitioning.BROADCAST in (was, now):
            reason = f"{what} on an edge that was {was.value} and is {now.value}: set that back"
        elif was is not now and now in _BY_RECORD and not rescaled:
            # They would stay with the subtasks that they were on their way to.
            reason = (
                f"{what} on an edge that was {was.value} and is {now.value}: set that back, or "
                "change the operator's parallelism too, so that they are dealt out anew"
            )
        else:
            continue
        yield Difference(consumer, new.name, Verdict.REFUSED, reason)


def _compare_endings(
    manifest: Manifest,
    before: dict[str, OperatorEntry],
    after: dict[str, OperatorEntry],
    hooks: Sequence[Sequence[str]],
) -> Iterator[Difference]:
    """Tasks of which some have had their last word: a new subtask would be both kinds of them."""
    ended: Counter[tuple[str, int]] = Counter()
    for handle in manifest.handles:
        # A subtask may have several handles: one more for what was overtaken on its way to it.
        at = handle.uid, handle.subtask
        ended[at] = max(handle.ended, ended[at])
    rounds = {
        entry.uid: [ended[entry.uid, subtask] for subtask in range(entry.parallelism)]
        for entry in manifest.operators
        if entry.uid in after
    }
    for uid, told in rounds.items():
        parallelism, new = before[uid].parallelism, after[uid]
        if len(set(told)) > 1 and new.parallelism != parallelism:
            reason = (
                f"end_input has run in some of its subtasks and not yet in others; resume at "
                f"parallelism {parallelism}"
            )
            yield Difference(uid, new.name, Verdict.REFUSED, reason)
    for chain in hooks:
        known = [uid for uid in chain if uid in rounds]
        for one, other in pairwise(known):
            # A task runs all of its hooks in one round.
            alike = rounds[one] == rounds[other]
            if len(rounds[one]) != len(rounds[other]):
                alike = set(rounds[one]) == set(rounds[other])
            if not alike:
                reason = (
                    f"end_input has run in some subtasks of it and not of {one!r}, or the other "
                    f"way round, and both have become one task: keep them apart as they were, "
                    f"with disable_chaining()"
                )
                yield Difference(other, after[other].name, Verdict.REFUSED, reason)


def require_compatible(differences: Sequence[Difference], *, allow_dropped: bool = False) -> None:
    """Raise a `GraphError` that lists everything that stands in the way of resuming.

    Arguments:
        differences: from `check_graph`.
        allow_dropped: whether state without an operator, and records without an edge, may be left
            behind.
    """
    in_the_way = {Verdict.REFUSED}
    if not allow_dropped:
        in_the_way |= {Verdict.DROPPED, Verdict.LOST}
    bad = [item for item in differences if item.verdict in in_the_way]
    if not bad:
        return
    lines = [f"  {item.uid} ({item.name}): {item.verdict.value}: {item.reason}" for item in bad]
    if any(item.verdict is Verdict.DROPPED for item in bad):
        lines.append("state that is not wanted any more is left behind with --allow-dropped")
    if any(item.verdict is Verdict.LOST for item in bad):
        lines.append(
            "records in flight are input that no sink has seen yet: put their edges back, with the "
            "former uids at both ends, and take them out when nothing is in flight there"
        )
    raise GraphError("the program does not fit the snapshot:\n" + "\n".join(lines))


def pending_committables(manifest: Manifest) -> list[Committable]:
    """All that must be committed on restore: in order of (snapshot, uid, subtask), each once.

    Two that share their identity and differ in payload are both kept, in the manifest's order:
    committing twice is harmless, and leaving one out is not.
    """
    # repr, since == takes 1, 1.0 and True for the same payload.
    unique = {(item.identity, repr(item.payload)): item for item in manifest.committables}
    return sorted(
        unique.values(), key=lambda item: (item.snapshot, item.uid, item.subtask, item.attempt)
    )


def needed_numbers(committables: Sequence[Committable]) -> set[int]:
    """The snapshots that retention must leave alone while these are not confirmed."""
    return {item.snapshot for item in committables}
