"""The protocols of a whole cyclic graph on model channels, in every order that is possible.

The support of `tests/snapshot/protocols/test_aligned_cyclic.py`, which says what is looked for and
how. Only the protocols are real here; channels are lists, and a task adds up what it has
processed. A world is a tuple, so that worlds that are alike are looked at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.base import Phase
from penstock.snapshot.protocols.events import (
    BarrierAnnounced,
    BarrierArrived,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    SnapshotAborted,
    StartLog,
    UnblockChannels,
)
from tests.simulation.execution import Edge, Execution, Record, Violation, explore

__all__ = ["Found", "Graph", "Model", "Outside"]

#: A record, or the number of a barrier.
Item = Record | int
#: A back-edge, and what was logged of it.
Log = tuple[int, tuple[Record, ...]]
#: Per subtask, per channel from outside: the records that it brings.
Outside = tuple[tuple[tuple[Record, ...], ...], ...]


@dataclass(frozen=True)
class Graph:
    """A small cyclic graph.

    Arguments:
        edges: between operators, which are named by one letter each.
        outside: per operator, what its regular channels from outside bring: for each subtask, a
            sequence of records for each channel. Barriers are put into them at every position.
        parallelism: subtasks of each operator.
        numbers: barriers on each channel from outside.
        unsent: barriers that are never sent, as (operator, subtask, number): their source had heard
            of the abort first.
        aborts: numbers of which tasks hear at any time that they are given up, each on its own.
    """

    edges: tuple[Edge, ...]
    outside: dict[str, Outside]
    parallelism: int = 2
    numbers: tuple[int, ...] = (1,)
    unsent: tuple[tuple[str, int, int], ...] = ()
    aborts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TaskWorld:
    """A task in one state; `cut` while it logs, `done` the snapshots it has acknowledged."""

    protocol: tuple[Any, ...]
    processed: tuple[Record, ...] = ()
    blocked: frozenset[int] = frozenset()
    cut: tuple[int, tuple[Record, ...]] | None = None
    logs: tuple[Log, ...] = ()
    logging: frozenset[int] = frozenset()
    done: tuple[tuple[int, tuple[Record, ...], tuple[Log, ...]], ...] = ()
    untold: tuple[int, ...] = ()


#: What each channel holds, and each task.
World = tuple[tuple[tuple[Item, ...], ...], tuple[TaskWorld, ...]]


@dataclass
class Found:
    """What a search has met."""

    worlds: int = 0
    cuts: int = 0
    logged: int = 0


class Model:
    """All worlds of one graph.

    Arguments:
        graph: what runs.
        aligned_cyclic: the protocol of tasks with back-edges; or a mutant.
        late: what the gate says while commands are being done is heard after them, not at once.
    """

    def __init__(
        self,
        graph: Graph,
        aligned_cyclic: type[AlignedCyclicProtocol] = AlignedCyclicProtocol,
        late: bool = False,
    ) -> None:
        self.graph, self.late = graph, late
        outside = [
            (operator, i, records)
            for operator, subtasks in graph.outside.items()
            for i, contents in enumerate(subtasks)
            for records in contents
        ]
        self.contents = [records for _, _, records in outside]
        self.execution = Execution(
            graph.edges, graph.parallelism, [(operator, i) for operator, i, _ in outside]
        )
        self.tasks, self.channels = self.execution.tasks, self.execution.channels
        self.outputs, self.route = self.execution.outputs, self.execution.route
        self._protocols: list[AlignedProtocol | AlignedCyclicProtocol] = []
        for task, inputs in enumerate(self.execution.inputs):
            back = self.execution.back_edges(task)
            self._protocols.append(
                aligned_cyclic(inputs, back) if back else AlignedProtocol(inputs)
            )
        self._start = tuple(TaskWorld(self._read(p), untold=graph.aborts) for p in self._protocols)
        self._steps: dict[tuple[int, tuple[Any, ...], Event], tuple[list[Command], Any]] = {}
        self._checked: set[Any] = set()
        self.found = Found()
        self.expected = self.execution.run(
            [()] * len(self.tasks),
            [
                (self.channels[c].target, record)
                for c, records in enumerate(self.contents)
                for record in records
            ],
        )

    # ---- the search

    def search(self) -> Found:
        """Look at every order; `Violation` at the first that goes wrong."""
        sent = [
            [n for n in self.graph.numbers if (*self.tasks[ch.target], n) not in self.graph.unsent]
            for ch in self.channels[: len(self.contents)]
        ]
        choices = [
            list(combinations_with_replacement(range(len(records) + 1), len(numbers)))
            for records, numbers in zip(self.contents, sent, strict=True)
        ]
        for positions in product(*choices):
            self._search(list(zip(sent, positions, strict=True)))
        return self.found

    def _search(self, barriers: list[tuple[list[int], tuple[int, ...]]]) -> None:
        """All orders, with the barriers at these positions of the channels from outside."""
        filled: list[tuple[Item, ...]] = []
        self._positions = []
        for records, (numbers, positions) in zip(self.contents, barriers, strict=True):
            items: list[Item] = list(records)
            for number, position in reversed(list(zip(numbers, positions, strict=True))):
                items.insert(position, number)
            filled.append(tuple(items))
            self._positions.append(dict(zip(numbers, positions, strict=True)))
        self._checked.clear()
        empty: list[tuple[Item, ...]] = [()] * (len(self.channels) - len(filled))
        start: World = (tuple(filled + empty), self._start)
        self.found.worlds += explore(start, self._complete, self._moves, self._describe)

    def _moves(self, world: World) -> Iterator[World]:
        queues, tasks = world
        for c, queue in enumerate(queues):
            if queue:
                task = self.channels[c].target
                if c not in tasks[task].blocked:
                    yield self._take(world, c, task)
        for t, state in enumerate(tasks):
            for number in state.untold[:1]:
                step = _Step(self, world, t)
                step.state = replace(state, untold=state.untold[1:])
                step.hear(SnapshotAborted(number))
                yield step.world()

    def _take(self, world: World, channel: int, task: int) -> World:
        step = _Step(self, world, task)
        item, *rest = step.queues[channel]
        step.queues[channel] = tuple(rest)
        if isinstance(item, int):
            step.hear(BarrierArrived(channel, item))
            return step.world()
        processed = tuple(sorted((*step.state.processed, item)))
        step.state = replace(step.state, processed=processed)
        for output, record in self.route(task, item):
            step.put(output, record)
        return step.world()

    # ---- protocols, whose steps are remembered

    def _read(self, p: AlignedProtocol | AlignedCyclicProtocol) -> tuple[Any, ...]:
        # The order in which channels were blocked or marked makes no difference to anything.
        marked = p.marked if isinstance(p, AlignedCyclicProtocol) else ()
        return p.phase, p.number, p.settled, tuple(sorted(p.blocked)), tuple(sorted(marked))

    def handle(
        self, task: int, state: tuple[Any, ...], event: Event
    ) -> tuple[list[Command], tuple[Any, ...]]:
        """What the protocol of a task that is in this state does about an event."""
        key = (task, state, event)
        known = self._steps.get(key)
        if known is None:
            protocol = self._protocols[task]
            protocol.phase, protocol.number, protocol.settled, blocked, marked = state
            protocol.blocked = dict.fromkeys(blocked)
            if isinstance(protocol, AlignedCyclicProtocol):
                protocol.marked = dict.fromkeys(marked)
            commands = protocol.handle(event)
            if type(protocol) in (AlignedProtocol, AlignedCyclicProtocol):
                protocol.validate()
            known = self._steps[key] = commands, self._read(protocol)
        return known

    # ---- what must hold

    def _complete(self, world: World) -> bool:
        """Check the snapshots that are complete; whether the last one is."""
        _, tasks = world
        for number in self.graph.numbers:
            parts = [[d for d in task.done if d[0] == number] for task in tasks]
            if not all(parts):
                continue
            if any(len(part) > 1 for part in parts):
                raise Violation(f"{number} acknowledged twice: {self._describe(world)}")
            cut = (number, tuple(part[0][1:] for part in parts))
            if cut not in self._checked:
                self._checked.add(cut)
                self._check(number, [part[0] for part in parts], world)
            if number == self.graph.numbers[-1]:
                for task in tasks:
                    if task.protocol[0] is not Phase.IDLE or task.blocked:
                        raise Violation(f"still at it: {self._describe(world)}")
                return True
        return False

    def _check(self, number: int, parts: list[Any], world: World) -> None:
        self.found.cuts += 1
        copies = [part[1] for part in parts]
        logs = [log for part in parts for log in part[2]]
        self.found.logged += sum(len(records) for _, records in logs)
        # Each record that came into being before the cut is in one state or one log, once.
        held = [Counter(copy) for copy in copies]
        for c, records in logs:
            held[self.channels[c].target].update(records)
        born = self.execution.sent(copies)
        rest = [(self.channels[c].target, record) for c, records in logs for record in records]
        for c, records in enumerate(self.contents):
            position, target = self._positions[c][number], self.channels[c].target
            born[target].update(records[:position])
            rest += [(target, record) for record in records[position:]]
        for task, name in enumerate(self.tasks):
            if extra := held[task] - born[task]:
                raise Violation(f"doubled: {dict(extra)} at {name}: {self._describe(world)}")
            if missing := born[task] - held[task]:
                raise Violation(f"lost: {dict(missing)} at {name}: {self._describe(world)}")
        restored = self.execution.run(copies, rest)
        if restored != self.expected:
            raise Violation(f"restored to something else: {self._describe(world)}")

    def _describe(self, world: World) -> str:
        queues, tasks = world
        lines = [f"{name}: {task}" for name, task in zip(self.tasks, tasks, strict=True)]
        return "\n".join([f"channels {dict(enumerate(queues))}", *lines])


class _Step:
    """One move of one task, on copies of what it changes."""

    def __init__(self, model: Model, world: World, task: int) -> None:
        self.model, self.task = model, task
        self.queues, self.tasks = list(world[0]), list(world[1])
        self._told: list[tuple[int, Event]] = []
        self._busy = False

    @property
    def state(self) -> TaskWorld:
        return self.tasks[self.task]

    @state.setter
    def state(self, state: TaskWorld) -> None:
        self.tasks[self.task] = state

    def world(self) -> World:
        return tuple(self.queues), tuple(self.tasks)

    def hear(self, event: Event) -> None:
        self._handle(self.task, event)
        while self._told:
            self._handle(*self._told.pop(0))

    def put(self, channel: int, item: Item) -> None:
        """Into a channel: it is logged, or ends the log, on arrival."""
        target = self.model.channels[channel].target
        state = self.tasks[target]
        self.queues[channel] = (*self.queues[channel], item)
        if channel not in state.logging:
            return
        if not isinstance(item, int):
            logs = tuple((c, (*r, item) if c == channel else r) for c, r in state.logs)
            self.tasks[target] = replace(state, logs=logs)
        elif state.cut is not None and item >= state.cut[0]:
            self.tasks[target] = replace(state, logging=state.logging - {channel})
            self._tell(target, BarrierAnnounced(channel, item))

    def _tell(self, task: int, event: Event) -> None:
        if self.model.late and self._busy:
            self._told.append((task, event))
        else:
            self._handle(task, event)

    def _handle(self, task: int, event: Event) -> None:
        commands, protocol = self.model.handle(task, self.tasks[task].protocol, event)
        self.tasks[task] = replace(self.tasks[task], protocol=protocol)
        before, self._busy = self._busy, True
        for command in commands:
            self._obey(task, command)
        self._busy = before

    def _obey(self, task: int, command: Command) -> None:
        state = self.tasks[task]
        match command:
            case CopyState(number) if isinstance(
                self.model._protocols[task], AlignedCyclicProtocol
            ):
                self.tasks[task] = replace(state, cut=(number, state.processed))
            case CopyState(number):
                self._acknowledge(task, number, state.processed, ())
            case StartLog(number, channels):
                self._start(task, number, channels)
            case Broadcast(number):
                for channel in self.model.outputs[task]:
                    self.put(channel, number)
            case EndLog(number):
                if state.cut is None or state.cut[0] != number or state.logging:
                    raise ProtocolError(f"{command} in {state}")
                self._acknowledge(task, number, state.cut[1], state.logs)
            case DropLog(number):
                if state.cut is None or state.cut[0] != number:
                    raise ProtocolError(f"{command} in {state}")
                self.tasks[task] = replace(state, cut=None, logs=(), logging=frozenset())
            case BlockChannel(channel):
                self.tasks[task] = replace(state, blocked=state.blocked | {channel})
            case UnblockChannels(channels):
                if not state.blocked.issuperset(channels):
                    raise ProtocolError(f"{command} in {state}")
                self.tasks[task] = replace(state, blocked=state.blocked.difference(channels))

    def _start(self, task: int, number: int, channels: tuple[Any, ...]) -> None:
        logs, told = [], []
        for channel in channels:
            log: list[Record] = []
            for item in self.queues[channel]:
                if not isinstance(item, int):
                    log.append(item)
                elif item >= number:
                    told.append((channel, item))
                    break
            logs.append((channel, tuple(log)))
        open = frozenset(channels) - {channel for channel, _ in told}
        self.tasks[task] = replace(self.tasks[task], logs=tuple(logs), logging=open)
        for channel, item in told:
            self._tell(task, BarrierAnnounced(channel, item))

    def _acknowledge(
        self, task: int, number: int, copy: tuple[Record, ...], logs: tuple[Log, ...]
    ) -> None:
        state = self.tasks[task]
        logs = tuple(log for log in logs if log[1])
        self.tasks[task] = replace(
            state, cut=None, logs=(), done=(*state.done, (number, copy, logs))
        )
