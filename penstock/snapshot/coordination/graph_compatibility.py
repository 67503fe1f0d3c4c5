"""Compare the operators and edges of a program with those of a snapshot.

These functions take a manifest and a graph, and return the differences. They read no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.dataflow.graph.job_graph import Partitioning
from penstock.snapshot.coordination.compatibility import Difference, Verdict
from penstock.snapshot.metadata.manifest import Manifest, OperatorEntry


def edges_in_flight(manifest: Manifest) -> frozenset[tuple[str, str]]:
    """Return the edges on which the snapshot contains records in flight.

    Each edge is a pair of the producer's uid and the consumer's uid.
    """
    return frozenset(
        (log.producer, handle.uid)
        for handle in manifest.handles
        for log in handle.logs
        if log.records
    )


#: An edge of the program: the uid of the producer, the uid of the consumer, the index of the
#: consumer's input, and the partitioning of the edge.
EdgeEntry = tuple[str, str, int, Partitioning]

#: The kinds of partitioning with which the record determines the subtask that processes it.
_BY_RECORD = frozenset({Partitioning.HASH, Partitioning.CUSTOM, Partitioning.GLOBAL})


def compare_graph(
    manifest: Manifest,
    operators: Sequence[OperatorEntry],
    edges: Sequence[EdgeEntry],
    hooks: Sequence[Sequence[str]] = (),
) -> list[Difference]:
    """Return the differences between a program and a snapshot that affect state.

    The differences are sorted by the uids of the operators.

    An operator without a difference is unchanged, or has no state in both. The user may add, remove
    and change operators without state, and edges without records in flight.

    Arguments:
        manifest: the manifest of the snapshot.
        operators: the operators of the program.
        edges: the edges of the program. Edges within a chain may be left out.
        hooks: for each chain of the program, the uids of its operators with an end-of-input hook.
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
    found += _compare_end_of_input(manifest, before, after, hooks)
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
            reason += (
                f"; if it is {namesakes[0]!r} now, give that its former uid {old.uid!r}, or "
                f"uid(..., formerly={old.uid!r})"
            )
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
    if old.key_version != new.key_version:
        return _compare_keys(old, new)
    if new.parallelism != old.parallelism:
        reason = f"parallelism was {old.parallelism} and is {new.parallelism}"
        return Difference(old.uid, new.name, Verdict.RESCALED, reason)
    return None


def _compare_keys(old: OperatorEntry, new: OperatorEntry) -> Difference:
    """Return the difference between operators whose keys have different versions."""
    before, after = old.key_version, new.key_version
    text = f"its keys have version {before} in the snapshot, and {after} in the program"
    if before > after:
        reason = f"{text}: a newer program has made them; resume with that program"
        return Difference(old.uid, new.name, Verdict.REFUSED, reason)
    return Difference(old.uid, new.name, Verdict.REKEYED, text)


def _compare_logs(
    manifest: Manifest,
    before: dict[str, OperatorEntry],
    after: dict[str, OperatorEntry],
    edges: Sequence[EdgeEntry],
) -> Iterator[Difference]:
    present = set(edges)
    partitionings = {edge[:3]: edge[3] for edge in edges}
    in_flight: Counter[tuple[str, str, int, str]] = Counter()
    for handle in manifest.handles:
        for log in handle.logs:
            in_flight[log.producer, handle.uid, log.input, log.partitioning] += log.records
    for (producer, consumer, input, name), records in sorted(in_flight.items()):
        if not records:
            continue
        old, was = before[consumer], Partitioning(name)
        # The main output of an operator and its side outputs may lead to the same input, with
        # different partitionings.
        same = (producer, consumer, input, was) in present
        now = was if same else partitionings.get((producer, consumer, input))
        what = f"{records} records from {producer!r} to its input {input} were in flight"
        if now is None:
            reason = f"{what}, and the program has no such edge: they would be lost"
            yield Difference(consumer, old.name, Verdict.LOST, reason)
            continue
        new = after[consumer]
        # Other keys are redistributed as for another parallelism.
        rescaled = new.parallelism != old.parallelism or new.key_version != old.key_version
        if rescaled and Partitioning.BROADCAST in (was, now):
            reason = (
                f"{what} on a broadcast edge, of which each of the {old.parallelism} subtasks had "
                f"its own copies: they cannot be redistributed to {new.parallelism}; set the "
                f"parallelism to {old.parallelism}"
            )
        elif was is not now and Partitioning.BROADCAST in (was, now):
            reason = f"{what} on an edge that was {was.value} and is {now.value}: set that back"
        elif was is not now and now in _BY_RECORD and not rescaled:
            # Logs are redistributed only if the parallelism changes. Without redistribution, each
            # subtask would process the records that the old partitioning has sent to it.
            reason = (
                f"{what} on an edge that was {was.value} and is {now.value}: set that back, or "
                "change the operator's parallelism too, so that they are redistributed"
            )
        else:
            continue
        yield Difference(consumer, new.name, Verdict.REFUSED, reason)


def _compare_end_of_input(
    manifest: Manifest,
    before: dict[str, OperatorEntry],
    after: dict[str, OperatorEntry],
    hooks: Sequence[Sequence[str]],
) -> Iterator[Difference]:
    """Report changed operators whose end-of-input hook ran in only some subtasks.

    Such an operator cannot be rescaled. Otherwise a new subtask could get state both from subtasks
    whose hook has run, and from subtasks whose hook has not run. The operator also cannot be
    chained to an operator whose hook ran in other subtasks.
    """
    ended: Counter[tuple[str, int]] = Counter()
    for handle in manifest.handles:
        # In an unaligned snapshot, a subtask may have a second handle, which contains records that
        # were in flight to the subtask.
        at = handle.uid, handle.subtask
        ended[at] = max(handle.ended, ended[at])
    rounds = {
        entry.uid: [ended[entry.uid, subtask] for subtask in range(entry.parallelism)]
        for entry in manifest.operators
        if entry.uid in after
    }
    for uid, of_subtasks in rounds.items():
        parallelism, new = before[uid].parallelism, after[uid]
        rekeyed = new.key_version != before[uid].key_version
        if len(set(of_subtasks)) > 1 and (new.parallelism != parallelism or rekeyed):
            reason = (
                f"end_input has run in some of its subtasks and not yet in others; resume at "
                f"parallelism {parallelism}{' and with the former keys' if rekeyed else ''}"
            )
            yield Difference(uid, new.name, Verdict.REFUSED, reason)
    for chain in hooks:
        known = [uid for uid in chain if uid in rounds]
        for one, other in pairwise(known):
            if not _ran_together(rounds[one], rounds[other]):
                reason = (
                    f"end_input has run in some subtasks of it and not of {one!r}, or the other "
                    f"way round, and both have become one task: keep them apart as they were, "
                    f"with disable_chaining()"
                )
                yield Difference(other, after[other].name, Verdict.REFUSED, reason)


def _ran_together(one: list[int], other: list[int]) -> bool:
    """Return whether two operators can be in one task, by their end-of-input rounds.

    They can if their subtasks have run the same rounds, since a task runs the hooks of all its
    operators in each round.

    Arguments:
        one: for each subtask of the first operator, the number of rounds that it has run.
        other: for each subtask of the second operator, the number of rounds that it has run.
    """
    return one == other if len(one) == len(other) else set(one) == set(other)
