"""Pass the queries of clients to the workers, and gather their answers: `StateQueries`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.errors import PenstockError
from penstock.dataflow.graph.execution_graph import Chain, ExecutionGraph, Link, OperatorInfo
from penstock.dataflow.graph.key_groups import key_group, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.control import messages as m
from penstock.runtime.control.state_queries import (
    CONFLICT,
    MAX_LOOK_SECONDS,
    MAX_RECORDS,
    REFUSED,
    UNKNOWN,
    LiveQuery,
    RecordQuery,
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
    """A query of state that waits for the answers of some subtasks."""

    query: StateQuery
    region: Region
    waiting: set[int]
    answers: list[m.StateRead] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        """Whether all subtasks have answered, or one has refused."""
        refused = bool(self.answers) and self.answers[-1].problem not in ("", UNKNOWN)
        return refused or not self.waiting


@dataclass
class _OpenRecords:
    """A query of records on a link that waits for the answers of some subtasks."""

    query: RecordQuery
    region: Region
    link: Link
    waiting: set[int]
    answers: list[m.RecordsSampled] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        """Whether all subtasks have answered."""
        return not self.waiting


class StateQueries:
    """Answers the queries of clients for the state of running tasks, and for records on edges.

    Every query has an answer: if the job restarts meanwhile, the answer says this.

    Arguments:
        answer: called with each answer.
    """

    def __init__(self, answer: Callable[[StateAnswered], None]) -> None:
        self._answer = answer
        self._regions: RunningRegions | None = None
        self._types: list[Any] = []
        self._open: dict[str, _Open | _OpenRecords] = {}
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

    def ask(self, query: LiveQuery) -> None:
        """Pass a query to the workers that can answer it."""
        try:
            self._ask(query)
        except PenstockError as error:
            self._refuse(query.id, REFUSED, f"the query cannot be read: {error}")

    def _ask(self, query: LiveQuery) -> None:
        if len(self._open) >= MAX_OPEN:
            self._refuse(query.id, CONFLICT, f"{MAX_OPEN} queries are open: ask again in a moment")
            return
        of_state = isinstance(query, StateQuery)
        if not any(True for _ in self._regions or ()):
            self._refuse(
                query.id,
                CONFLICT,
                "the job starts or restarts, and no task runs: ask again in a moment"
                + (", or query the snapshot, without `live`" if of_state else ""),
            )
            return
        if isinstance(query, RecordQuery):
            self._ask_records(query)
        else:
            self._ask_state(query)

    def _ask_state(self, query: StateQuery) -> None:
        """Pass a query to the workers that own its keys, or to all of the operator."""
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
            region.workers.send_to(
                chain.id,
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

    def _ask_records(self, query: RecordQuery) -> None:
        """Pass a query to all tasks that send over a link."""
        if not (0 < query.seconds <= MAX_LOOK_SECONDS and 0 < query.limit <= MAX_RECORDS):
            self._refuse(
                query.id,
                REFUSED,
                f"tasks look at an edge for at most {MAX_LOOK_SECONDS:g} s, and at 1 to "
                f"{MAX_RECORDS:,} records",
            )
            return
        found = self._find_link(query)
        if found is None:
            return
        region, link = found
        subtasks = range(region.plan.chains[link.source].parallelism)
        self._open[query.id] = _OpenRecords(query, region, link, set(subtasks))
        for subtask in subtasks:
            place = link.source, subtask, query.id, link.id
            region.workers.send_to(*place[:2], m.SampleRecords(*place, query.limit, query.seconds))

    def _find_link(self, query: RecordQuery) -> tuple[Region, Link] | None:
        """Return the link that a query names; None if the query was refused."""
        links = {
            link.id: (region, link)
            for region in self._regions or ()
            for chain in region.plan.running_chains
            for link in region.plan.links
            if link.source == chain.id
        }
        named = [one for one in links.values() if query.edge in _names(one[0].plan, one[1])]
        if not query.edge:
            named = list(links.values())
        if len(named) == 1:
            return named[0]
        known = "; ".join(
            f"{id} {_names(region.plan, link)[-1]}" for id, (region, link) in sorted(links.items())
        )
        has = f"it has these edges between tasks: {known}" if known else "it has one task only"
        if not query.edge or not named:
            what = f"has no edge {query.edge!r}" if query.edge else "has not one edge"
            self._refuse(query.id, UNKNOWN, f"the job {what}; {has}")
        else:
            self._refuse(
                query.id, REFUSED, f"several edges are {query.edge!r}: give a number; {has}"
            )
        return None

    def answered(self, message: m.StateRead | m.RecordsSampled) -> None:
        """Take the answer of a task. Answers to queries that are over are ignored."""
        one = self._open.get(message.id)
        if one is None or message.subtask not in one.waiting:
            return
        match one, message:
            case _Open(), m.StateRead():
                one.answers.append(message)
            case _OpenRecords(), m.RecordsSampled():
                one.answers.append(message)
            case _:
                return
        one.waiting.discard(message.subtask)
        if one.enough:
            del self._open[message.id]
            if isinstance(one, _Open):
                self._finish(one)
            else:
                self._finish_records(one)

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

    def _finish_records(self, one: _OpenRecords) -> None:
        """Answer a query of records that all tasks have answered."""
        link = one.link
        records = [[a.subtask, time, text] for a in one.answers for time, text in a.records]
        self._answer(
            StateAnswered(
                {
                    "id": one.query.id,
                    "problem": "",
                    "reason": "",
                    "edge": link.id,
                    "producer": link.producer,
                    "consumer": link.consumer,
                    "seconds": one.query.seconds,
                    "seen": sum(answer.seen for answer in one.answers),
                    "records": sorted(records, key=lambda record: record[1]),
                }
            )
        )

    def _refuse(self, id: str, problem: str, reason: str) -> None:
        answer = refusal(id, problem, reason)
        del answer["event"]
        self._answer(StateAnswered(answer))


def _names(plan: ExecutionGraph, link: Link) -> list[str]:
    """Return the texts by which a query can name a link; the last one is shown."""
    ends = plan.operator(link.producer), plan.operator(link.consumer)
    tag = "" if link.tag is None else f" ({link.tag})"
    return [
        str(link.id),
        "->".join(end.uid for end in ends) + tag,
        "->".join(plan.shown_names[end.uid] for end in ends) + tag,
    ]
