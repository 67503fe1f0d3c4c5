"""Small execution graphs with model channels: where records go, and what must come of them.

What `protocol_model.py` and `mode_model.py` have in common. Tasks add up what they have processed;
where a record goes from there depends on the record alone, so what a job comes to is known.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

__all__ = ["Channel", "Edge", "Execution", "Record", "Violation", "explore"]

#: (identity, hops that are left).
Record = tuple[int, int]


class Violation(AssertionError):
    """A snapshot that is not feasible, or that never ends."""


@dataclass(frozen=True)
class Edge:
    """An edge of the graph of operators: "hash" (all to all) or "forward"."""

    source: str
    target: str
    how: str
    back: bool = False


@dataclass(frozen=True)
class Channel:
    """A channel of the execution graph; `source` is None from outside."""

    source: int | None
    target: int
    edge: int
    back: bool


class Execution:
    """The tasks and channels of a small job; both are numbers.

    Arguments:
        edges: between operators, which are named by one letter each.
        parallelism: subtasks of each operator.
        outside: (operator, subtask) of each channel from outside; these are the first channels.
    """

    def __init__(
        self, edges: Sequence[Edge], parallelism: int, outside: Iterable[tuple[str, int]] = ()
    ) -> None:
        self.edges, self.parallelism = edges, parallelism
        operators = sorted({o for edge in edges for o in (edge.source, edge.target)})
        self.tasks = [(o, i) for o in operators for i in range(parallelism)]
        index = {task: n for n, task in enumerate(self.tasks)}
        self.channels = [Channel(None, index[target], -1, False) for target in outside]
        self._routes: dict[tuple[int, int, int], int] = {}
        for e, edge in enumerate(edges):
            for i, j in product(range(parallelism), repeat=2):
                if edge.how == "hash" or i == j:
                    source, target = index[edge.source, i], index[edge.target, j]
                    self._routes[source, e, j] = len(self.channels)
                    self.channels.append(Channel(source, target, e, edge.back))
        each, of = range(len(self.tasks)), list(enumerate(self.channels))
        self.inputs = [[c for c, channel in of if channel.target == t] for t in each]
        self.outputs = [[c for c, channel in of if channel.source == t] for t in each]
        self._route_memo: dict[tuple[int, Record], tuple[tuple[int, Record], ...]] = {}

    def back_edges(self, task: int) -> list[int]:
        """Those of a task's inputs."""
        return [c for c in self.inputs[task] if self.channels[c].back]

    def route(self, task: int, record: Record) -> tuple[tuple[int, Record], ...]:
        """Where a record goes that a task has processed: (channel, record)."""
        known = self._route_memo.get((task, record))
        if known is None:
            identity, hops = record
            operator, i = self.tasks[task]
            edges = [e for e, edge in enumerate(self.edges) if edge.source == operator]
            known = ()
            if hops and edges:
                e = edges[(identity + hops) % len(edges)]
                hashed = self.edges[e].how == "hash"
                j = (identity + hops // 2) % self.parallelism if hashed else i
                known = ((self._routes[task, e, j], (identity, hops - 1)),)
            self._route_memo[task, record] = known
        return known

    def sent(self, states: Sequence[tuple[Record, ...]]) -> list[Counter[Record]]:
        """What came into being for each task out of what all tasks have processed."""
        born: list[Counter[Record]] = [Counter() for _ in self.tasks]
        for task, processed in enumerate(states):
            for record in processed:
                for channel, made in self.route(task, record):
                    born[self.channels[channel].target][made] += 1
        return born

    def run(
        self, states: Sequence[tuple[Record, ...]], work: Iterable[tuple[int, Record]]
    ) -> list[Counter[Record]]:
        """What all tasks have processed in the end, undisturbed, from these states on.

        Arguments:
            states: what each task has processed before.
            work: (task, record), what is still to be processed.
        """
        totals = [Counter(state) for state in states]
        rest = deque(work)
        while rest:
            task, record = rest.popleft()
            totals[task][record] += 1
            rest.extend((self.channels[c].target, made) for c, made in self.route(task, record))
        return totals


World = TypeVar("World", bound=Hashable)


def explore(
    start: World,
    over: Callable[[World], bool],
    moves: Callable[[World], Iterable[World]],
    describe: Callable[[World], str],
) -> int:
    """Look at every world that can be reached, up to those in which all is over; returns how many.

    Raises:
        Violation: if there is one in which nothing can move.
    """
    seen, stack, worlds = {start}, [start], 0
    while stack:
        world = stack.pop()
        worlds += 1
        if over(world):
            continue
        moved = False
        for following in moves(world):
            moved = True
            if following not in seen:
                seen.add(following)
                stack.append(following)
        if not moved:
            raise Violation(f"waits for ever: {describe(world)}")
    return worlds
