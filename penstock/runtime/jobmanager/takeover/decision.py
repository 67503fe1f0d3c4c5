"""Decide whether the workers of a dead JobManager are taken over. Sans-IO.

The facts are the offers of the workers and the newest snapshot. The workers are taken over only if
everything that the dead JobManager knew follows from these facts. In any doubt the answer is a
restart, which is always right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.runtime.control import messages as m
from penstock.runtime.jobmanager.attempt.deployment import deployed_plan
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.protocols.events import SnapshotKind


@dataclass(frozen=True)
class AssignedSplit:
    """A split that a worker got after the newest snapshot.

    Arguments:
        chain, subtask: the task that reads it.
        id, payload: the split.
        sequence: the number of splits that the attempt had assigned before it.
    """

    chain: int
    subtask: int
    id: str
    payload: Any
    sequence: int


@dataclass(frozen=True)
class TakeOver:
    """The decision to continue an attempt with its workers.

    Arguments:
        attempt: the number of the attempt.
        offers: the offers of the workers, in the order of the slots.
        completed: the newest snapshot. Workers may not know yet that it is complete.
        aborted: the later snapshots that the dead JobManager has begun or announced.
        splits: the splits that were assigned after the newest snapshot, in order.
        wanted: the tasks whose requests for a split have no answer.
        ended: the tasks that have processed all their input.
        outside_ended: the tasks of loops that have processed all input from outside.
    """

    attempt: int
    offers: tuple[m.Rejoin, ...]
    completed: int
    aborted: tuple[int, ...]
    splits: tuple[AssignedSplit, ...]
    wanted: tuple[tuple[int, int], ...]
    ended: tuple[tuple[int, int], ...]
    outside_ended: tuple[tuple[int, int], ...]


class TakeOverFailed(PenstockError):
    """The workers of an earlier JobManager cannot be taken over, which was found out late."""


@dataclass(frozen=True)
class RestartInstead:
    """The decision to restart the job from its newest snapshot.

    Arguments:
        reason: the reason, for the person who started the job.
    """

    reason: str


def decide_takeover(
    offers: Sequence[m.Rejoin],
    newest: Manifest | None,
    plan: ExecutionGraph,
    code: bytes,
    types: list[Any],
) -> TakeOver | RestartInstead:
    """Decide whether the workers that have offered their tasks are taken over.

    Arguments:
        offers: the offers of the workers.
        newest: the manifest of the newest snapshot; None if the run has none.
        plan: the execution graph of the job.
        code: the SHA-256 digest of the code of the job.
        types: the schema of each record class, as `RecordSchema.to_wire` returns it.
    """
    attempt = max((offer.attempt for offer in offers), default=0)
    by_slot = {offer.worker: offer for offer in offers if offer.attempt == attempt}
    missing = [slot for slot in range(plan.slots) if slot not in by_slot]
    if missing or len(by_slot) < sum(offer.attempt == attempt for offer in offers):
        which = ", ".join(map(str, missing))
        return RestartInstead(f"worker {which} has not come" if missing else "a worker came twice")
    mine = tuple(offer for _, offer in sorted(by_slot.items()))
    reason = _doubt(mine, newest, plan, code, types)
    if reason is not None or newest is None:
        return RestartInstead(reason or "there is no snapshot")
    number = newest.number
    splits = [
        AssignedSplit(chain, offer.worker, id, payload, sequence)
        for offer in mine
        for sequence, chain, id, payload, after in offer.splits
        if after >= number
    ]
    pending = {begun for offer in mine for begun, _ in offer.pending}
    return TakeOver(
        attempt=attempt,
        offers=mine,
        completed=number,
        aborted=tuple(sorted(begun for begun in pending if begun > number)),
        splits=tuple(sorted(splits, key=lambda split: split.sequence)),
        wanted=tuple((chain, offer.worker) for offer in mine for chain in offer.wanted),
        ended=tuple((chain, subtask) for offer in mine for chain, subtask in offer.ended),
        outside_ended=tuple(
            (chain, subtask) for offer in mine for chain, subtask in offer.outside_ended
        ),
    )


def _doubt(
    offers: Sequence[m.Rejoin],
    newest: Manifest | None,
    plan: ExecutionGraph,
    code: bytes,
    types: list[Any],
) -> str | None:
    """Return the first reason not to take over the workers of an attempt; None if there is none."""
    if any(offer.code != code for offer in offers):
        return "the workers run other code"
    if any(offer.types != types for offer in offers):
        return "the workers have other record classes"
    if any(deployed_plan(encoded) != plan for encoded in {offer.plan for offer in offers}):
        return "the workers run another graph"
    if not all(offer.started for offer in offers):
        return "its attempt had not begun"
    if newest is None or newest.attempt != offers[0].attempt:
        # The state of the enumerators of the attempt is in its own snapshots only.
        return "its attempt has no complete snapshot"
    if any(offer.completed > newest.number for offer in offers):
        return f"a later snapshot than {newest.number} is gone"
    final = SnapshotKind.FINAL
    if newest.kind is final or any(
        kind == final.value for offer in offers for number, kind in offer.pending
    ):
        # After a final barrier, sources do not read on.
        return "the final snapshot had begun"
    if any(offer.loop_ends for offer in offers):
        return "a loop was ending"
    return None
