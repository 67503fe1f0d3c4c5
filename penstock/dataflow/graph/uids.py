"""Give each operator of a program the uid that identifies its state in snapshots."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import JobGraph, Operator, function_name


def former_uids(graph: JobGraph, uids: Mapping[int, str]) -> dict[int, str]:
    """Return the former uid of each operator that has another uid now, keyed by operator id.

    A derived uid depends on the uids of the producers. So a derived uid is also another one if the
    uid of a producer has changed.

    Arguments:
        graph: the job graph.
        uids: the present uids, as `assign_uids` returns them.

    Raises:
        GraphError: if a former uid belongs, or belonged, to another operator.
    """
    owners = {uid: id for id, uid in uids.items()}
    names = {operator.id: operator.name for operator in graph.operators}
    for operator in graph.operators:
        former = operator.former_uid
        if former is None:
            continue
        owner = owners.setdefault(former, operator.id)
        if owner != operator.id:
            raise GraphError(
                f"{former!r} is given as the former uid of {operator.name!r}, and is a uid of "
                f"{names[owner]!r}: take one of the two away"
            )
    former_ids = _assigned(graph, {one.id: one.former_uid or one.uid for one in graph.operators})
    return {
        id: uid for id, uid in former_ids.items() if uid != uids[id] and owners.get(uid, id) == id
    }


def assign_uids(graph: JobGraph) -> dict[int, str]:
    """Return the uid of every operator that runs, as a dict from operator id to uid.

    If the user has set no uid, it is derived. A derived uid is a digest of the operator's kind,
    its name, the name of its function, and the uids of its producers. So the uid does not
    change when an unrelated operator is added. If two digests are equal, a number
    is appended to the second digest.

    Feedbacks among the inputs are ignored, so that an operator keeps its uid and its state when
    the user adds or changes a loop. If an operator reads only from feedbacks, their names are
    used in place of uids.

    Raises:
        GraphError: if the user gave the same uid to two operators.
    """
    given: dict[str, Operator] = {}
    for operator in graph.operators:
        if operator.uid is None:
            continue
        if operator.uid in given:
            raise GraphError(
                f"two operators have the uid {operator.uid!r}: {given[operator.uid].name!r} "
                f"and {operator.name!r}; give each its own with .uid(...)"
            )
        given[operator.uid] = operator
    return _assigned(graph, {operator.id: operator.uid for operator in graph.operators})


def _assigned(graph: JobGraph, given: Mapping[int, str | None]) -> dict[int, str]:
    """Return the uids of all operators. The user has set some of them."""
    uids = {id: uid for id, uid in given.items() if uid is not None}
    seen: dict[str, int] = {}
    names = {one.id: one.name for one in graph.operators if one.spec.is_feedback}
    # Operators are in order of creation, so every producer comes before its consumers.
    for operator in graph.running:
        if operator.id in uids:
            continue
        signature = [operator.spec.name_in_uids, operator.name, function_name(operator.function)]
        edges = graph.inputs_of(operator.id)
        regular = [edge for edge in edges if edge.source not in names]
        for edge in regular or edges:
            signature += [str(edge.input), uids.get(edge.source) or names[edge.source]]
            if edge.tag is not None:
                signature.append(f"side output {edge.tag}")
        digest = hashlib.blake2b(repr(signature).encode(), digest_size=6).hexdigest()
        count = seen[digest] = seen.get(digest, 0) + 1
        uids[operator.id] = digest if count == 1 else f"{digest}-{count}"
    return uids
