"""Watermarks in small loops, in every order in which the tasks can run.

The support of `tests/runtime/task/test_loop_interleavings.py`, which says what is looked for
and how. Only `LoopWatermarks` is real here: channels are tuples, and a task forwards records and
sets timers. A world is a tuple, so that worlds that are alike are looked at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.dataflow.time.watermark import MIN_WATERMARK
from penstock.runtime.network.loop_probe import LoopProbe, ProbeRequest
from penstock.runtime.task.loop_watermarks import (
    AdvanceInside,
    LoopTimeCommand,
    LoopWatermarks,
    ReleaseBehind,
    SendProbe,
    SendRequest,
    SetIdle,
)
from tests.simulation.execution import Channel, Edge, Execution, Violation, explore

__all__ = ["Idle", "LoopGraph", "LoopTimeModel", "Mark", "Row", "round_length"]


@dataclass(frozen=True)
class Row:
    """A record. Where its hops end, it sets its first timer, whose record goes on with the rest.

    Arguments:
        id: chooses its way.
        time: its timestamp.
        hops: the number of tasks that it goes on to.
        timers: (delay, hops) of each timer that it and its descendants set.
        raises: what each task adds to the timestamp.
        fired_at: the watermark *inside* at which the last timer has fired that it descends from.
    """

    id: int
    time: int
    hops: int = 0
    timers: tuple[tuple[int, int], ...] = ()
    raises: int = 0
    fired_at: int = MIN_WATERMARK


@dataclass(frozen=True)
class Mark:
    """A watermark in a channel."""

    time: int


@dataclass(frozen=True)
class Idle:
    """A watermark status in a channel."""

    idle: bool


Item = Row | Mark | Idle | LoopProbe | ProbeRequest


@dataclass(frozen=True)
class LoopGraph:
    """A small loop.

    Arguments:
        edges: between operators, which are named by one letter each; all of them are in the loop.
        outside: per operator and subtask, what its channel from outside brings; None: no channel.
        parallelism: the number of subtasks of each operator.
    """

    edges: tuple[Edge, ...]
    outside: dict[str, tuple[tuple[Item, ...] | None, ...]]
    parallelism: int = 1


@dataclass(frozen=True)
class TaskWorld:
    """A task in one state.

    Arguments:
        protocol: the state of its `LoopWatermarks`.
        timers: the rows that its timers will emit.
        channels: the watermark of each regular input from inside.
    """

    protocol: tuple[Any, ...]
    timers: frozenset[Row] = frozenset()
    channels: tuple[int, ...] = ()
    idle: bool = False


World = tuple[tuple[tuple[Item, ...], ...], tuple[TaskWorld, ...]]


def round_length(channels: Sequence[Channel], first: Sequence[int], tasks: int) -> int:
    """The most back-edges that a probe must pass from any task to the farthest first task."""
    most = 1
    for task in range(tasks):
        distance, todo = {task: 0}, deque([task])
        while todo:  # regular edges cost nothing, so they come first
            one = todo.popleft()
            for channel in channels:
                cost = distance[one] + channel.back
                if channel.source == one and cost < distance.get(channel.target, 99):
                    distance[channel.target] = cost
                    (todo.append if channel.back else todo.appendleft)(channel.target)
        returned = (
            min(
                distance[c.source] + 1
                for c in channels
                if c.back and c.target == task and c.source in distance
            )
            if task in first
            else 0
        )
        reached = [returned if one == task else distance[one] for one in first if one in distance]
        most = max([most, *reached])
    return most


@dataclass
class Seen:
    """What a search has met."""

    worlds: int = 0
    waves: int = 0
    fired: int = 0


@dataclass
class LoopTimeModel:
    """All worlds of one loop.

    Arguments:
        graph: the loop.
        protocol: the class that the tasks run; or a mutant.
        liveness: whether a loop that does not come to the right rest is a violation.
        most_waves: a loop that needs more waves has no rest.
    """

    graph: LoopGraph
    protocol: type[LoopWatermarks] = LoopWatermarks
    liveness: bool = True
    most_waves: int = 40
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        graph = self.graph
        outside = [
            (o, i, rows)
            for o, parts in graph.outside.items()
            for i, rows in enumerate(parts)
            if rows is not None
        ]
        self.contents = [rows for _, _, rows in outside]
        execution = Execution(graph.edges, graph.parallelism, [(o, i) for o, i, _ in outside])
        self.execution, self.channels = execution, execution.channels
        self.tasks = range(len(execution.tasks))
        inside = [
            (c, channel) for c, channel in enumerate(self.channels) if channel.source is not None
        ]
        self.regular = [
            [c for c, ch in inside if ch.target == t and not ch.back] for t in self.tasks
        ]
        self.back = [[c for c, ch in inside if ch.target == t and ch.back] for t in self.tasks]
        self.entries = {ch.target for ch in self.channels if ch.source is None}
        self.first = [t for t in self.tasks if not self.regular[t]]
        self.waves = round_length([ch for _, ch in inside], self.first, len(self.tasks))
        self._protocols = [
            self.protocol(self.regular[t], self.back[t], self.waves, only_first=self.first == [t])
            for t in self.tasks
        ]
        for t in self.tasks:
            if t not in self.entries:
                self._protocols[t].no_outside()

    def search(self) -> Seen:
        """Look at every order; raise `Violation` at the first that goes wrong."""
        empty = [()] * (len(self.channels) - len(self.contents))
        tasks = tuple(
            TaskWorld(_read(p), channels=(MIN_WATERMARK,) * len(self.regular[t]))
            for t, p in enumerate(self._protocols)
        )
        start: World = ((*self.contents, *empty), tasks)
        self.seen.worlds = explore(start, self._over, self._moves, self._describe)
        return self.seen

    # ---- the end

    def _over(self, world: World) -> bool:
        queues, tasks = world
        if any(queues) or not self.liveness:
            return not any(queues) or any(self._wave(task) > self.most_waves for task in tasks)
        last = [self._last(rows) for rows in self.contents]
        active = [time for time, idle in last if not idle]
        expected = min(active) if active else max(time for time, _ in last)
        for t in self.tasks:
            protocol = self._load(t, tasks[t])
            if (protocol.inside, protocol.behind) != (expected, expected):
                raise Violation(f"{expected} was not released at {t}: {self._describe(world)}")
            if any(row.time <= expected for row in tasks[t].timers):
                raise Violation(f"a timer of {t} was left: {self._describe(world)}")
            if (tasks[t].idle if self.regular[t] else protocol.idle) != (not active):
                raise Violation(f"the status of {t} is wrong: {self._describe(world)}")
        return True

    @staticmethod
    def _last(rows: tuple[Item, ...]) -> tuple[int, bool]:
        marks = [row.time for row in rows if isinstance(row, Mark)]
        states = [row.idle for row in rows if isinstance(row, Idle)]
        return max(marks, default=MIN_WATERMARK), states[-1] if states else False

    # ---- the moves

    def _moves(self, world: World) -> Iterator[World]:
        for c, queue in enumerate(world[0]):
            if queue:
                yield _Step(self, world, self.channels[c].target).take(c)

    @staticmethod
    def _wave(task: TaskWorld) -> int:
        wave = task.protocol[0]
        assert isinstance(wave, int)
        return wave

    def _load(self, task: int, state: TaskWorld) -> LoopWatermarks:
        protocol = self._protocols[task]
        _write(protocol, state.protocol)
        return protocol

    def _describe(self, world: World) -> str:
        queues, tasks = world
        lines = [f"{self.channels[c]}: {queue}" for c, queue in enumerate(queues) if queue]
        for t, task in enumerate(tasks):
            lines.append(
                f"task {t}: {dict(zip(_FIELDS, task.protocol, strict=False))} {task.timers}"
            )
        return "\n".join(lines)


class _Step:
    """One move of one task, on copies of what it changes."""

    def __init__(self, model: LoopTimeModel, world: World, task: int) -> None:
        self.model, self.task = model, task
        self.queues, self.tasks = list(world[0]), list(world[1])
        self.state = self.tasks[task]
        self.protocol = model._load(task, self.state)

    def take(self, channel: int) -> World:
        item, *rest = self.queues[channel]
        self.queues[channel] = tuple(rest)
        outside = self.model.channels[channel].source is None
        match item:
            case Row():
                self._process(item)
            case Mark(time) if outside:
                self._obey(self.protocol.outside_changed(time, False))
            case Idle(idle) if outside:
                self._obey(self.protocol.outside_changed(self.protocol._outside[0], idle))
            case Mark(time):
                self._advance(channel, time)
            case Idle():
                self.state = replace(self.state, idle=item.idle)
                self._send(item, back=False)
            case LoopProbe():
                self._obey(self.protocol.probe_arrived(channel, item))
            case ProbeRequest():
                self._obey(self.protocol.request_arrived(item))
        model = self.model
        model.seen.waves = max(model.seen.waves, self.protocol.wave)
        self.tasks[self.task] = replace(self.state, protocol=_read(self.protocol))
        world = tuple(self.queues), tuple(self.tasks)
        if model.liveness and self.protocol.wave > model.most_waves:
            raise Violation(f"the loop has no rest: {model._describe(world)}")
        return world

    # ---- records

    def _process(self, row: Row) -> None:
        inside, behind = self.protocol.inside, self.protocol.behind
        if row.time <= inside and row.fired_at < inside:
            self._fail(f"{row} arrives behind {inside}")
        if row.time <= behind:
            self._fail(f"{row} leaves behind {behind}")
        if row.hops:
            self._route(row)
        elif row.timers:
            (delay, hops), *others = row.timers
            timer = replace(row, time=row.time + delay, hops=hops, timers=tuple(others))
            self.state = replace(self.state, timers=self.state.timers | {timer})

    def _route(self, row: Row) -> None:
        model = self.model
        ((channel, _),) = model.execution.route(self.task, (row.id, row.hops))
        sent = replace(row, hops=row.hops - 1, time=row.time + row.raises)
        self.queues[channel] = (*self.queues[channel], sent)
        if model.channels[channel].back:
            self.protocol.sent_back(sent.time)

    def _fire(self, watermark: int) -> None:
        while due := [row for row in self.state.timers if row.time <= watermark]:
            row = min(due, key=lambda row: (row.time, row.id))
            self.model.seen.fired += 1
            self.state = replace(self.state, timers=self.state.timers - {row})
            row = replace(row, fired_at=watermark)
            if row.time <= self.protocol.behind:
                self._fail(f"{row} leaves behind {self.protocol.behind}")
            if row.hops:
                self._route(row)

    # ---- watermarks

    def _advance(self, channel: int, time: int) -> None:
        at = self.model.regular[self.task].index(channel)
        values = list(self.state.channels)
        values[at] = max(values[at], time)
        self.state = replace(self.state, channels=tuple(values))
        if min(values) > self.protocol.inside:
            self._fire(min(values))
            self.protocol.inside_advanced(min(values))
            self._send(Mark(min(values)), back=False)

    def _obey(self, commands: list[LoopTimeCommand]) -> None:
        for command in commands:
            match command:
                case AdvanceInside(time):
                    self._fire(time)
                    if self.protocol.first:
                        self._send(Mark(time), back=False)
                    self._obey(self.protocol.fired())
                case SendProbe(probe):
                    self._send(probe)
                case SendRequest(request):
                    self._send(request)
                case SetIdle(idle):
                    self._send(Idle(idle), back=False)
                case ReleaseBehind(time):
                    assert self.protocol.behind >= time

    def _send(self, item: Item, back: bool = True) -> None:
        for c in self.model.execution.outputs[self.task]:
            if back or not self.model.channels[c].back:
                self.queues[c] = (*self.queues[c], item)

    def _fail(self, problem: str) -> None:
        self.tasks[self.task] = replace(self.state, protocol=_read(self.protocol))
        world = tuple(self.queues), tuple(self.tasks)
        raise Violation(f"{problem} at task {self.task}: {self.model._describe(world)}")


_FIELDS = (
    "wave", "inside", "behind", "idle", "lowest", "requested", "known", "cutting", "judged",
    "_outside",
)  # fmt: skip


def _fields(protocol: LoopWatermarks) -> tuple[str, ...]:
    more: tuple[str, ...] = getattr(protocol, "MORE_FIELDS", ())
    return (*_FIELDS, *more)


def _read(protocol: LoopWatermarks) -> tuple[Any, ...]:
    values = [getattr(protocol, name) for name in _fields(protocol)]
    queues = [tuple(map(tuple, q.values())) for q in (protocol.regular, protocol.back_edges)]
    return (*values, *queues)


def _write(protocol: LoopWatermarks, state: tuple[Any, ...]) -> None:
    for name, value in zip(_fields(protocol), state, strict=False):
        setattr(protocol, name, value)
    for queues, contents in zip((protocol.regular, protocol.back_edges), state[-2:], strict=True):
        for queue, content in zip(queues.values(), contents, strict=True):
            queue.clear()
            queue.extend(content)
