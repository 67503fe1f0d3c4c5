"""Describe the differences between a program and a snapshot.

The differences decide whether the program can resume from the snapshot.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.dataflow.errors import GraphError


class Verdict(enum.Enum):
    """The effect of resuming from a snapshot on the state of one operator."""

    RESCALED = "rescaled"
    REKEYED = "migrated"
    NEW = "new"
    DROPPED = "dropped"
    LOST = "records lost"
    REFUSED = "refused"


@dataclass(frozen=True)
class Difference:
    """A difference between snapshot and program in one operator or record class.

    Arguments:
        uid, name: the uid and the name of the operator. For a record class, these are the name and
            the kind of the class.
        verdict: the effect on the state of the operator.
        reason: the explanation that is shown to the user.
    """

    uid: str
    name: str
    verdict: Verdict
    reason: str


def require_compatible(differences: Sequence[Difference], *, allow_dropped: bool = False) -> None:
    """Raise a `GraphError` with all differences if one of them prevents resuming.

    Arguments:
        differences: the results of `compare_graph` and `compare_schemas`.
        allow_dropped: whether to drop the state of operators and the records of edges that the
            program no longer has.
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
