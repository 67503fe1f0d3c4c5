"""Small execution graphs of real tasks, driven one step at a time, and a search over all orders.

The support of `tests/test_interleavings.py`, which says what is looked for and how.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from penstock.dataflow.compile import ChannelId
from penstock.dataflow.errors import PenstockError
from penstock.dataflow.keys import canonical
from penstock.dataflow.source import Read, SourceReader, Split
from penstock.runtime.codec import Codec, TypeTable
from penstock.runtime.elements import Barrier, Batch, Element
from penstock.runtime.gate import InputGate
from penstock.runtime.operators import (
    KeyedCountOperator,
    OperatorContext,
    RunningOperator,
    SourceOperator,
)
from penstock.runtime.output import (
    BroadcastRouter,
    ForwardRouter,
    HashRouter,
    LocalOutlet,
    Outlet,
    Router,
)
from penstock.runtime.persist import Acknowledgement, Persister, drive
from penstock.runtime.source import SourceFeed
from penstock.runtime.task import ChainNode, Task
from penstock.snapshot.acyclic import AcyclicProtocol
from penstock.snapshot.events import (
    SnapshotKind,
)
from penstock.snapshot.handles import OperatorHandle
from penstock.snapshot.state import KeyedBackend

CODEC = Codec(TypeTable())
GROUPS = 4
Choice = tuple[Any, ...]


class Violation(AssertionError):
    """A snapshot that is not feasible, or that never ends."""


@dataclass(frozen=True)
class Graph:
    """A small execution graph.

    Arguments:
        sources: records of each source, by name.
        tasks: names of the other tasks, in topological order.
        edges: (from, to, how): "forward", "broadcast" or "hash".
        barriers: how many snapshots are begun, one after the other.
        aborts: whether one of them may be given up, at any time.
        lazy: cuts are written in steps of their own.
    """

    sources: dict[str, tuple[str, ...]]
    tasks: tuple[str, ...]
    edges: tuple[tuple[str, tuple[str, ...], str], ...]
    barriers: int = 1
    aborts: bool = False
    lazy: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sources, *self.tasks)


class _Reader(SourceReader):
    """One record per read."""

    def __init__(self, records: tuple[str, ...]) -> None:
        self._records = records
        self._next = 0

    def open(self, split: Split, position: Any) -> None:
        self._next = position or 0

    def read(self, max_records: int) -> Read:
        record = self._records[self._next]
        self._next += 1
        return Read([record], self._next, self._next == len(self._records))


class _Reporter:
    def __init__(self) -> None:
        self.acknowledged: dict[int, Acknowledgement] = {}

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self.acknowledged[acknowledgement.number] = acknowledgement

    def decline(self, number: int, reason: str) -> None:
        raise Violation(f"snapshot {number} declined: {reason}")


class _Listener:
    def input_ended(self, task: Task) -> None:
        return None


def finish(coroutine: Coroutine[Any, Any, Any] | Awaitable[Any]) -> Any:
    """Run a coroutine that never really waits."""
    try:
        coroutine.send(None)  # type: ignore[union-attr]
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


async def at_once(function: Callable[[], Any]) -> Any:
    return function()


async def no_pause() -> None:
    return None


# State as an acknowledgement has it: per task, the packed entries, or the source's position.
Content = tuple[Any, ...]


@dataclass
class Kit:
    """What is run: the real classes, or mutants of them."""

    protocol: type[AcyclicProtocol] = AcyclicProtocol
    task: type[Task] = Task


class Machine:
    """One graph in one state.

    Arguments:
        graph, kit: what runs.
        restore: a snapshot to start from, as handles per task.
    """

    def __init__(
        self, graph: Graph, kit: Kit, restore: dict[str, tuple[OperatorHandle, ...]] | None = None
    ) -> None:
        self.graph = graph
        names = graph.names
        self.gates = {name: InputGate(_nothing, _zero) for name in names}
        self.tasks: dict[str, Task] = {}
        self.protocols: dict[str, AcyclicProtocol] = {}
        self.reporters = {name: _Reporter() for name in names}
        self.number = 0
        self.injected: set[str] = set()
        self.aborted: int | None = None
        self.told: set[str] = set()
        self.may_abort = graph.aborts
        self.completed: list[int] = []
        self.found: list[tuple[Content, dict[str, tuple[OperatorHandle, ...]]]] = []
        outlets: dict[str, list[Outlet]] = {name: [] for name in names}
        routers: dict[str, list[Router]] = {name: [] for name in names}
        for link, (source, targets, how) in enumerate(graph.edges):
            own: list[Outlet] = []
            for target in targets:
                id = ChannelId(link, names.index(source), names.index(target))
                own.append(LocalOutlet(self.gates[target].add(id, 1), 1))
            outlets[source] += own
            router: Router = ForwardRouter(own)
            if how == "broadcast":
                router = BroadcastRouter(own, CODEC.copy_mutable)
            elif how == "hash":
                router = HashRouter(own, str, GROUPS, len(own))
            routers[source].append(router)
        for index, name in enumerate(names):
            handles = () if restore is None else restore[name]
            self._make(index, name, kit, outlets[name], routers[name], handles, restore is not None)
        self._begin()

    def _make(
        self,
        index: int,
        name: str,
        kit: Kit,
        outlets: list[Outlet],
        routers: list[Router],
        handles: tuple[OperatorHandle, ...],
        restored: bool,
    ) -> None:
        context = OperatorContext(name, name, 0, 1, GROUPS, 0, CODEC)
        feed, backends = None, {}
        operator: RunningOperator
        if name in self.graph.sources:
            records = self.graph.sources[name]
            operator = SourceOperator(None, context)
            feed = SourceFeed(_Reader(records), _zero, _nothing, _nothing)
            if restored:
                feed.restore(handles[0].small)
            elif records:
                feed.assign(Split(name), None)
            feed.no_more()
        else:
            backend = KeyedBackend(
                folder=Path("/nowhere"),
                codec=CODEC,
                canonical=canonical,
                max_parallelism=GROUPS,
                groups=range(GROUPS),
                clock=_zero,
            )
            if restored and handles[0].keyed is not None:
                finish(
                    drive(
                        backend.restore([(Path("/nowhere"), handles[0].keyed)]), at_once, no_pause
                    )
                )
            context.backend = backends[name] = backend
            operator = KeyedCountOperator(None, context, lambda record: (name, record))
        protocol = self.protocols[name] = kit.protocol(self.gates[name].channels)
        self.tasks[name] = kit.task(
            id=(index, 0),
            name=name,
            root=ChainNode(operator, [], routers),
            gate=self.gates[name],
            outlets=outlets,
            protocol=protocol,
            persister=Persister(
                subtask=0,
                lineage="l",
                attempt=0,
                backends=backends,
                reporter=self.reporters[name],
                folder=lambda number, uid: Path("/nowhere"),
                clock=_zero,
            ),
            codec=CODEC,
            listener=_Listener(),
            clock=_zero,
            timer=_zero,
            feed=feed,
            backends=backends,
        )
        self.tasks[name].open()

    def _begin(self) -> None:
        """Begin the next snapshot, if there is to be one."""
        self.injected, self.told, self.aborted = set(), self.told, None
        self.number += 1

    # ---- choices

    def choices(self) -> list[Choice]:
        """Everything that can happen now."""
        found: list[Choice] = [("step", name) for name in self.tasks if self._can_step(name)]
        if self.graph.lazy:
            found += [("write", n) for n, t in self.tasks.items() if t.persister.has_work()]
        if self.number <= self.graph.barriers:
            for source in self.graph.sources:
                # One connection: a source hears that a snapshot was given up before it hears
                # of the next.
                if source not in self.injected and ("abort", source) not in self._owed():
                    found.append(("inject", source))
            if self.may_abort:
                found.append(("give up",))
        found += self._owed()
        return found

    def _owed(self) -> list[Choice]:
        if self.aborted is None and not self.told:
            return []
        return [("abort", name) for name in self.graph.names if name in self.told]

    def _can_step(self, name: str) -> bool:
        task = self.tasks[name]
        if getattr(task, "extra", None) is not None:
            return True  # of a mutant
        waiting = [outlet for outlet in task.outlets if outlet.waiting]
        if waiting:
            return any(outlet.has_credit() for outlet in waiting)
        feed = task.feed
        return bool(
            task._rest
            or task._inbox
            or task.gate.ready
            or (feed is not None and not task.ended and not task.paused)
        )

    def do(self, choice: Choice) -> None:
        """Let one thing happen, and look at what came of it."""
        match choice:
            case ("step", name):
                task = self.tasks[name]
                task.step()
                if not self.graph.lazy:
                    self._write(task)
            case ("write", name):
                self._write(self.tasks[name])
            case ("inject", name):
                self.injected.add(name)
                self.tasks[name].inject(self.number, SnapshotKind.CHECKPOINT)
            case ("give up",):
                self.may_abort = False
                for source in self.graph.sources:
                    if source not in self.injected:
                        self.tasks[source].inject(self.number, SnapshotKind.CHECKPOINT)
                self.gone = self.number
                self.told = set(self.graph.names)
                self._begin()
            case ("abort", name):
                self.told.discard(name)
                self.tasks[name].abort(self.gone)
        self._complete()

    def _write(self, task: Task) -> None:
        while task.persister.has_work():
            finish(task.persister.work(at_once, no_pause))

    def _complete(self) -> None:
        if self.number > self.graph.barriers:
            return
        parts = [reporter.acknowledged.get(self.number) for reporter in self.reporters.values()]
        if all(part is not None for part in parts):
            handles = {
                name: part.handles
                for name, part in zip(self.graph.names, parts, strict=True)
                if part is not None
            }
            content = tuple(self._content(name, handles[name]) for name in self.graph.names)
            self.found.append((content, handles))
            self.completed.append(self.number)
            self._begin()

    def _content(self, name: str, handles: tuple[OperatorHandle, ...]) -> Any:
        (handle,) = handles
        if name in self.graph.sources:
            return handle.small[0][2] or 0 if handle.small else len(self.graph.sources[name])
        assert handle.keyed is not None and handle.keyed.inline is not None
        return frozenset((bytes(k), bytes(v)) for k, v in msgpack.unpackb(handle.keyed.inline)[0])

    # ---- looks

    def states(self) -> Content:
        """The keyed state of every task now, as a snapshot would have it."""
        result: list[Any] = []
        for name in self.graph.tasks:
            entries = self.tasks[name].backends[name].scan("value")
            pairs = ((CODEC.encode_value(k), CODEC.encode_value(v)) for k, v in entries)
            result.append(frozenset(pairs))
        return tuple(result)

    def check_end(self) -> None:
        """Nothing can happen any more: see that nothing is left."""
        for name, task in self.tasks.items():
            queued = [len(channel) for channel in task.gate.channels.values()]
            blocked = [channel.blocked for channel in task.gate.channels.values()]
            if (
                not task.ended
                or any(queued)
                or any(blocked)
                or any(o.waiting for o in task.outlets)
            ):
                raise Violation(f"{name} waits for ever; queued {queued}, blocked {blocked}")
        if self.number <= self.graph.barriers:
            raise Violation(f"snapshot {self.number} never completes")

    def fingerprint(self) -> Any:
        """Equal for states with the same future."""
        tasks = []
        for name, task in self.tasks.items():
            protocol, feed = self.protocols[name], task.feed
            tasks.append(
                (
                    None if feed is None else (repr(feed.snapshot()), task.ended),
                    tuple((what, value) for what, value in task._inbox),
                    tuple(task._rest),
                    tuple(tuple(map(_shown, outlet._sealed)) for outlet in task.outlets),
                    tuple(channel.id for channel in task.gate._ready),
                    tuple(
                        (tuple(map(_shown, channel._queue)), channel.blocked)
                        for channel in task.gate.channels.values()
                    ),
                    (protocol.number, tuple(protocol.blocked), protocol.settled),
                    len(task._ended_channels),
                    tuple(
                        (cut.number, cut.aborted, _captured(cut)) for cut in task.persister._cuts
                    ),
                    tuple(sorted(self.reporters[name].acknowledged)),
                    getattr(task, "extra", None),
                )
            )
        states = [
            tuple(sorted(map(repr, self.tasks[name].backends[name].scan("value"))))
            for name in self.graph.tasks
        ]
        acknowledged = [
            repr(reporter.acknowledged[self.number].handles)
            for reporter in self.reporters.values()
            if self.number in reporter.acknowledged
        ]
        own = (self.number, frozenset(self.injected), frozenset(self.told), self.may_abort)
        return hash((tuple(tasks), tuple(states), tuple(acknowledged), own))


def _captured(cut: Any) -> Any:
    maps = [capture._maps for capture in cut.captures.values()]
    return repr(sorted(repr(entries) for pairs in maps for _, entries in pairs)), repr(cut.small)


def _shown(element: Element) -> Any:
    if isinstance(element, Batch):
        return tuple(element.records)
    return element.number if isinstance(element, Barrier) else "end"


def _zero() -> float:
    return 0.0


def _nothing() -> None:
    return None


@dataclass
class Explored:
    """What a search has seen: states, transitions, interleavings and distinct snapshots."""

    states: int = 0
    transitions: int = 0
    interleavings: int = 0
    snapshots: set[Content] = field(default_factory=set)


class Search:
    """Depth-first, over everything that can happen."""

    def __init__(self, graph: Graph, kit: Kit) -> None:
        self.graph, self.kit = graph, kit
        self.explored = Explored()
        self._oracle: dict[tuple[int, ...], Content] = {}
        self._ids: dict[Any, int] = {}
        self._next: list[list[int]] = []

    def run(self) -> Explored:
        """Search all; raises `Violation` with the choices that lead to it."""
        todo: list[tuple[tuple[Choice, ...], int]] = [((), -1)]
        while todo:
            path, parent = todo.pop()
            try:
                self._follow(path, parent, todo)
            except (Violation, PenstockError) as error:
                raise Violation(f"{error}\nafter {self._path}") from error
        self.explored.states = len(self._next)
        self.explored.transitions = sum(map(len, self._next))
        self.explored.interleavings = self._count()
        return self.explored

    def _follow(self, path: tuple[Choice, ...], parent: int, todo: list[Any]) -> None:
        machine = Machine(self.graph, self.kit)
        self._path = path
        for choice in path:
            machine.do(choice)
        while True:
            self._check(machine)
            mark = machine.fingerprint()
            known = self._ids.get(mark)
            id = self._ids.setdefault(mark, len(self._next))
            if parent >= 0:
                self._next[parent].append(id)
            if known is not None:
                return
            self._next.append([])
            choices = machine.choices()
            if not choices:
                machine.check_end()
                return
            todo += [((*self._path, choice), id) for choice in choices[1:]]
            parent = id
            self._path = (*self._path, choices[0])
            machine.do(choices[0])

    def _check(self, machine: Machine) -> None:
        """Every snapshot that was completed is feasible."""
        for protocol in machine.protocols.values():
            protocol.validate()
        for content, handles in machine.found:
            if content in self.explored.snapshots:
                continue
            count = len(self.graph.sources)
            positions, states = content[:count], content[count:]
            expected = self._emitted(positions)
            if states != expected:
                raise Violation(f"at positions {positions} the states are {states}")
            restored = Machine(_quiet(self.graph), Kit(), handles)
            everything = tuple(len(records) for records in self.graph.sources.values())
            if _run(restored) != self._emitted(everything):
                raise Violation(f"restored at {positions}, it ends in {restored.states()}")
            self.explored.snapshots.add(content)
        machine.found.clear()

    def _emitted(self, positions: tuple[int, ...]) -> Content:
        """The states after the sources have emitted so much and no more."""
        if positions not in self._oracle:
            sources = {
                name: records[:position]
                for (name, records), position in zip(
                    self.graph.sources.items(), positions, strict=True
                )
            }
            self._oracle[positions] = _run(Machine(_quiet(self.graph, sources), Kit()))
        return self._oracle[positions]

    def _count(self) -> int:
        """How many paths lead from the first state to a last one; there are no cycles."""
        paths: dict[int, int] = {}
        stack = [0]
        while stack:
            id = stack[-1]
            missing = [after for after in self._next[id] if after not in paths]
            if missing:
                stack += missing
                continue
            stack.pop()
            paths[id] = sum(paths[after] for after in self._next[id]) or 1
        return paths[0]


def _quiet(graph: Graph, sources: dict[str, tuple[str, ...]] | None = None) -> Graph:
    return Graph(graph.sources if sources is None else sources, graph.tasks, graph.edges, 0)


def _run(machine: Machine) -> Content:
    while choices := machine.choices():
        machine.do(choices[0])
    machine.check_end()
    return machine.states()
