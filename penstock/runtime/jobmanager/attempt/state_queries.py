"""Pass queries of keyed state to the workers, and gather their answers: `StateQueries`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.execution_graph import Chain, OperatorInfo
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.control import messages as m
from penstock.runtime.control.state_queries import (
    CONFLICT,
    REFUSED,
    UNKNOWN,
    StateQuery,
    refusal,
)
from penstock.runtime.jobmanager.attempt.region import Region, RunningRegions
from penstock.runtime.jobmanager.reporting.job_events import StateAnswered
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry

#: The number of queries that wait for answers at the same time.
MAX_OPEN = 1_000


@dataclass
class _Open:
    """A query that waits for the answers of some subtasks."""

    query: StateQuery
    region: Region
    waiting: set[int]
    answers: list[m.StateRead] = field(default_factory=list)


class StateQueries:
    """Answers the queries of clients from the state of the running tasks.

    Every query has an answer: if the job restarts meanwhile, the answer says this.

    Arguments:
        answer: called with each answer.
    """

    def __init__(self, answer: Callable[[StateAnswered], None]) -> None:
        self._answer = answer
        self._regions: RunningRegions | None = None
        self._types: list[Any] = []
        self._open: dict[str, _Open] = {}
        self._codec = Codec(TypeRegistry())

    def begin_attempt(self, regions: RunningRegions, types: list[Any]) -> None:
        """Take queries for an attempt.

        Arguments:
            regions: the regions whose tasks run, which may change.
            types: the schemas of the record classes, to which encoded values refer.
        """
        self._regions, self._types = regions, types

    def end_attempt(self) -> None:
        """Refuse the open queries, and those that come before the next attempt."""
        self._regions = None
        while self._open:
            id, _ = self._open.popitem()
            self._refuse(id, CONFLICT, "the job has stopped or restarts: ask again in a moment")

    def ask(self, query: StateQuery) -> None:
        """Pass a query to the workers that own its keys, or to all of the operator."""
        try:
            self._ask(query)
        except PenstockError as error:
            self._refuse(query.id, REFUSED, f"the query cannot be read: {error}")

    def _ask(self, query: StateQuery) -> None:
        if len(self._open) >= MAX_OPEN:
            self._refuse(query.id, CONFLICT, f"{MAX_OPEN} queries are open: ask again in a moment")
            return
        if not any(True for _ in self._regions or ()):
            self._refuse(
                query.id,
                CONFLICT,
                "the job starts or restarts, and no task runs: ask again in a moment, or query "
                "the snapshot, without `live`",
            )
            return
        found = self._find(query)
        if found is None:
            return
        region, chain, operator = found
        groups = region.plan.max_parallelism
        keys: dict[int, list[bytes]] = {}
        for data in query.keys:
            group = key_group(canonical(self._codec.decode_value(data)), groups)
            subtask = subtask_of_key_group(group, groups, operator.parallelism)
            keys.setdefault(subtask, []).append(data)
        subtasks = set(keys) if query.keys else set(range(operator.parallelism))
        self._open[query.id] = _Open(query, region, subtasks)
        for subtask in sorted(subtasks):
            region.workers.send(
                subtask,
                m.ReadState(
                    chain.id,
                    subtask,
                    query.id,
                    operator.uid,
                    query.state,
                    keys.get(subtask, []),
                    query.prefix,
                    query.top,
                    query.by,
                    query.limit,
                ),
            )

    def _find(self, query: StateQuery) -> tuple[Region, Chain, OperatorInfo] | None:
        """Return where an operator runs; None if the query was refused."""
        known: dict[str, bool] = {}
        for region in self._regions or ():
            for chain in region.plan.running_chains:
                for one in chain.walk():
                    operator = one.operator
                    known[operator.uid] = operator.spec.keyed
                    if operator.uid == query.operator and operator.spec.keyed:
                        return region, chain, operator
        keyed = ", ".join(sorted(uid for uid in known if known[uid])) or "none"
        if query.operator in known:
            self._refuse(
                query.id,
                REFUSED,
                f"the operator {query.operator!r} has no keyed state, so it answers no live query; "
                f"those with keyed state are, by uid: {keyed}",
            )
        else:
            self._refuse(
                query.id,
                UNKNOWN,
                f"no operator with the uid {query.operator!r} runs; those with keyed state are, by "
                f"uid: {keyed}",
            )
        return None

    def answered(self, message: m.StateRead) -> None:
        """Take the answer of a task. Answers to queries that are over are ignored."""
        one = self._open.get(message.id)
        if one is None or message.subtask not in one.waiting:
            return
        one.waiting.discard(message.subtask)
        one.answers.append(message)
        if message.problem not in ("", UNKNOWN) or not one.waiting:
            del self._open[message.id]
            self._finish(one)

    def lost(self, region: Region) -> None:
        """Refuse the open queries to a region that restarts alone."""
        for id in [id for id, one in self._open.items() if one.region is region]:
            del self._open[id]
            self._refuse(id, CONFLICT, "this part of the job restarts: ask again in a moment")

    def _finish(self, one: _Open) -> None:
        """Answer a query that all tasks have answered, or one has refused."""
        query = one.query
        for answer in one.answers:
            if answer.problem not in ("", UNKNOWN):
                self._refuse(query.id, answer.problem, answer.reason)
                return
        good = [answer for answer in one.answers if not answer.problem]
        if not good:
            names = sorted({name for a in one.answers for name in a.reason.split("\n") if name})
            self._refuse(
                query.id,
                UNKNOWN,
                f"the operator {query.operator!r} has no state {query.state!r}; it has: "
                f"{', '.join(names) or 'none'}",
            )
            return
        good.sort(key=lambda answer: answer.subtask)
        entries = [[a.subtask, key, value] for a in good for key, value in a.entries]
        self._answer(
            StateAnswered(
                {
                    "id": query.id,
                    "problem": "",
                    "reason": "",
                    "kind": good[0].kind,
                    "expires": good[0].expires,
                    "entries": entries,
                    "sample": next((a.sample for a in good if a.sample), b""),
                    "types": self._types,
                    "more": any(answer.more for answer in good),
                }
            )
        )

    def _refuse(self, id: str, problem: str, reason: str) -> None:
        answer = refusal(id, problem, reason)
        del answer["event"]
        self._answer(StateAnswered(answer))
