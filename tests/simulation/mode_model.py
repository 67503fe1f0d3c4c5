"""Whole jobs under each checkpointing mode, on model channels, in every order that is possible.

The tests of `tests/snapshot/protocols` use it. As in `protocol_model.py` only the protocols are
real. What that model has not is here: sources that read and can be halted, a coordinator that
injects, completes and gives up, outputs that wait for room, a record in the hands of a task,
barriers that overtake, and timers that go off at any moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.protocols.base import SnapshotProtocol
from penstock.snapshot.protocols.events import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierSent,
    BlockChannel,
    Broadcast,
    Command,
    CopyState,
    DropLog,
    EndLog,
    Event,
    Halt,
    Overtake,
    Resume,
    SnapshotAborted,
    SnapshotCompleted,
    StartAlignmentTimer,
    StartLog,
    UnblockChannels,
)
from tests.simulation.execution import Execution, Record, Violation, explore
from tests.simulation.mode_jobs import Job

__all__ = ["Found", "Make", "Mode", "ModeModel"]


@dataclass(frozen=True)
class Bar:
    """A barrier in a channel."""

    number: int
    urgent: bool = False


Item = Record | Bar
#: A channel (or None: a source's own hands), and what was logged of it, in order.
Log = tuple[int | None, Record]
#: A channel: what waits in the output, and what waits at the gate.
Line = tuple[tuple[Item, ...], tuple[Item, ...]]


#: Makes the protocol of a task: (inputs, back-edges).
Make = Callable[[Sequence[int], Sequence[int]], SnapshotProtocol]


@dataclass(frozen=True)
class Mode:
    """What the runtime does for a protocol, beside obeying it; the last three are defects.

    Arguments:
        make: its protocol, for one task.
        unaligned: a task tells of barriers as they arrive, and makes cuts with a record in hand.
        doubles: records may come twice after a restart.
        hand_lost, overtaken_lost: these are not logged.
        runs_on: a log goes on behind its barrier.
    """

    make: Make
    unaligned: bool = False
    doubles: bool = False
    hand_lost: bool = False
    overtaken_lost: bool = False
    runs_on: bool = False


@dataclass(frozen=True)
class Cut:
    """A snapshot of a task: its number, what it had processed, where a source was, and logs."""

    number: int
    processed: tuple[Record, ...]
    position: int
    logs: tuple[Log, ...] = ()


@dataclass(frozen=True)
class TaskWorld:
    """A task in one state."""

    protocol: tuple[Any, ...]
    processed: tuple[Record, ...] = ()
    position: int = 0
    #: What it has taken and not processed, with the channel; None in a source.
    hand: tuple[int | None, Record] | None = None
    blocked: frozenset[int] = frozenset()
    cut: Cut | None = None
    logging: frozenset[int] = frozenset()
    done: tuple[Cut, ...] = ()
    #: From the coordinator, in order.
    control: tuple[tuple[str, int], ...] = ()
    unsent: int = 0
    timer: int = 0
    halted: bool = False


#: Channels, tasks, the number in flight (0: none), how many numbers were used.
World = tuple[tuple[Line, ...], tuple[TaskWorld, ...], int, int]


@dataclass
class Found:
    """What a search has met: `logged` and `doubled` count records over different cuts."""

    worlds: int = 0
    cuts: int = 0
    logged: int = 0
    doubled: int = 0
    overtaken: int = 0
    in_hand: int = 0


class ModeModel:
    """All worlds of one job in one mode.

    Arguments:
        job: what runs.
        mode: how its snapshots are taken.
    """

    def __init__(self, job: Job, mode: Mode) -> None:
        self.job, self.mode = job, mode
        self.execution = Execution(job.edges, job.parallelism)
        self.tasks, self.channels = self.execution.tasks, self.execution.channels
        self.inputs, self.outputs = self.execution.inputs, self.execution.outputs
        self.route = self.execution.route
        self.reads = [job.sources[o][i] if o in job.sources else () for o, i in self.tasks]
        self.sources = {n for n, (o, _) in enumerate(self.tasks) if o in job.sources}
        self.protocols = [
            mode.make(inputs, self.execution.back_edges(task))
            for task, inputs in enumerate(self.inputs)
        ]
        self._steps: dict[Any, tuple[list[Command], tuple[Any, ...]]] = {}
        self._checked: set[Any] = set()
        self.found = Found()
        self.expected = self.execution.run(
            [()] * len(self.tasks), [(t, r) for t, reads in enumerate(self.reads) for r in reads]
        )

    # ---- the search

    def search(self) -> Found:
        """Look at every order, to the end of the job; `Violation` at the first that goes wrong."""
        tasks = tuple(TaskWorld(freeze(protocol)) for protocol in self.protocols)
        lines: tuple[Line, ...] = (((), ()),) * len(self.channels)
        start = self._inject((lines, tasks, 0, 0))
        self.found.worlds += explore(start, self._finished, self._moves, self.describe)
        return self.found

    def _inject(self, world: World) -> World:
        """The coordinator begins the next snapshot, if there is to be one."""
        lines, tasks, _, used = world
        if used == len(self.job.numbers):
            return lines, tasks, 0, used
        number = self.job.numbers[used]
        told = tuple(
            replace(task, control=(*task.control, ("inject", number)))
            if t in self.sources
            else task
            for t, task in enumerate(tasks)
        )
        return lines, told, number, used + 1

    def _over(self, world: World, what: str) -> World:
        lines, tasks, number, used = world
        event = SnapshotCompleted(number) if what == "complete" else SnapshotAborted(number)
        told = []
        for t, task in enumerate(tasks):
            # Who has nothing to do about it might as well have heard of it.
            deaf = not task.control and self.handle(t, task.protocol, event) == ([], task.protocol)
            told.append(task if deaf else replace(task, control=(*task.control, (what, number))))
        return self._inject((lines, tuple(told), 0, used))

    def _moves(self, world: World) -> Iterator[World]:
        lines, tasks, number, _ = world
        if number and all(any(cut.number == number for cut in task.done) for task in tasks):
            self._check(number, world)
            yield self._over(world, "complete")
            return  # the coordinator is as quick as can be: nothing is lost by that
        for c, (waiting, arrived) in enumerate(lines):
            # One batch of room on a regular channel; markers need none.
            if waiting and (
                self.channels[c].back
                or isinstance(waiting[0], Bar)
                or not any(not isinstance(item, Bar) for item in arrived)
            ):
                yield Step(self, world).push(c)
                if not self.job.delayed:
                    return
        if number in self.job.aborts:
            yield self._over(world, "abort")
        for t, task in enumerate(tasks):
            if task.timer:
                yield Step(self, world).time_out(t)
            if task.control and self._hears(world, t):
                yield Step(self, world).control(t)
            if any(lines[c][0] for c in self.outputs[t]):
                continue  # backpressure
            if task.hand is not None:
                yield Step(self, world).process(t)
                continue
            if task.position < len(self.reads[t]) and not task.halted:
                yield Step(self, world).read(t)
            for c in self.inputs[t]:
                if lines[c][1] and c not in task.blocked:
                    yield Step(self, world).take(c)

    def _hears(self, world: World, t: int) -> bool:
        """Whether a task can do what the coordinator says now."""
        lines, tasks, _, _ = world
        if self.mode.unaligned or tasks[t].control[0][0] != "inject":
            return True
        return tasks[t].hand is None and not any(lines[c][0] for c in self.outputs[t])

    def handle(
        self, task: int, state: tuple[Any, ...], event: Event
    ) -> tuple[list[Command], tuple[Any, ...]]:
        """What the protocol of a task that is in this state does about an event."""
        key = (task, state, event)
        known = self._steps.get(key)
        if known is None:
            protocol = self.protocols[task]
            thaw(protocol, state)
            commands = protocol.handle(event)
            protocol.validate()
            known = self._steps[key] = commands, freeze(protocol)
        return known

    # ---- what must hold

    def _finished(self, world: World) -> bool:
        """Whether all snapshots are over, and what goes on is just records."""
        _, tasks, number, used = world
        if number or used < len(self.job.numbers) or any(task.control for task in tasks):
            return False
        for task in tasks:
            if task.blocked or task.halted or task.logging or task.cut is not None:
                return False
        if not all(any(cut.number == self.job.numbers[-1] for cut in task.done) for task in tasks):
            raise Violation(f"the last snapshot is missing: {self.describe(world)}")
        return True

    def _check(self, number: int, world: World) -> None:
        parts = [next(c for c in task.done if c.number == number) for task in world[1]]
        if tuple(parts) in self._checked:
            return
        self._checked.add(tuple(parts))
        self.found.cuts += 1
        # Each record that came into being before the cut is in one state or one log, once.
        copies = [part.processed for part in parts]
        held = [Counter(copy) for copy in copies]
        born = self.execution.sent(copies)
        rest: list[tuple[int, Record]] = []
        for t, part in enumerate(parts):
            for c, record in part.logs:
                target = t if c is None else self.channels[c].target
                held[target][record] += 1
                rest.append((target, record))
                self.found.logged += 1
            born[t].update(self.reads[t][: part.position])
            rest += [(t, record) for record in self.reads[t][part.position :]]
        for t, name in enumerate(self.tasks):
            if missing := born[t] - held[t]:
                raise Violation(f"lost: {dict(missing)} at {name}: {self.describe(world)}")
            if extra := held[t] - born[t]:
                self.found.doubled += extra.total()
                if not self.mode.doubles:
                    raise Violation(f"doubled: {dict(extra)} at {name}: {self.describe(world)}")
        restored = self.execution.run(copies, rest)
        for t, total in enumerate(restored):
            if self.expected[t] - total or (total != self.expected[t] and not self.mode.doubles):
                raise Violation(f"restored to something else: {self.describe(world)}")

    def describe(self, world: World) -> str:
        """A world, for people."""
        tasks = [f"{name}: {task}" for name, task in zip(self.tasks, world[1], strict=True)]
        channels = [f"{c} {self.channels[c]}: {line}" for c, line in enumerate(world[0])]
        return "\n".join([*channels, *tasks])


def freeze(protocol: SnapshotProtocol) -> tuple[Any, ...]:
    """All that a protocol remembers."""
    values: list[tuple[str, Any]] = []
    for name, value in vars(protocol).items():
        if isinstance(value, set):
            values.append((name, frozenset(value)))
        elif isinstance(value, dict):
            values.append((name, tuple(value)))
        elif name not in ("inputs", "back_edges", "regular"):
            values.append((name, value))
    return tuple(values)


def thaw(protocol: SnapshotProtocol, state: tuple[Any, ...]) -> None:
    """Make it remember that again."""
    for name, value in state:
        before = getattr(protocol, name)
        if isinstance(before, set):
            value = set(value)
        elif isinstance(before, dict):
            value = dict.fromkeys(value)
        setattr(protocol, name, value)


@dataclass
class Step:
    """One move, on copies of what it changes."""

    model: ModeModel
    before: World
    lines: list[Line] = field(init=False)
    tasks: list[TaskWorld] = field(init=False)
    #: Events that tasks have yet to hear, since they are at work on one.
    events: dict[int, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines, self.tasks = list(self.before[0]), list(self.before[1])

    def world(self) -> World:
        return tuple(self.lines), tuple(self.tasks), *self.before[2:]

    def change(self, task: int, **changes: Any) -> None:
        self.tasks[task] = replace(self.tasks[task], **changes)

    # ---- moves

    def push(self, channel: int) -> World:
        waiting, arrived = self.lines[channel]
        self.lines[channel] = waiting[1:], arrived
        self.arrive(channel, waiting[0])
        source = self.model.channels[channel].source
        assert source is not None
        self.sent(source)
        return self.world()

    def time_out(self, task: int) -> World:
        number = self.tasks[task].timer
        self.change(task, timer=0)
        self.tell(task, AlignmentTimedOut(number))
        return self.world()

    def control(self, task: int) -> World:
        (what, number), *rest = self.tasks[task].control
        self.change(task, control=tuple(rest))
        match what:
            case "inject":
                self.tell(task, BarrierArrived(None, number))
            case "abort":
                self.tell(task, SnapshotAborted(number))
            case _:
                self.tell(task, SnapshotCompleted(number))
        return self.world()

    def read(self, task: int) -> World:
        position = self.tasks[task].position
        self.change(task, position=position + 1)
        return self.in_hand(task, None, self.model.reads[task][position])

    def take(self, channel: int) -> World:
        target = self.model.channels[channel].target
        waiting, (item, *rest) = self.lines[channel]
        self.lines[channel] = waiting, tuple(rest)
        if isinstance(item, Bar):
            self.tell(target, BarrierArrived(channel, item.number))
            return self.world()
        return self.in_hand(target, channel, item)

    def in_hand(self, task: int, channel: int | None, record: Record) -> World:
        self.change(task, hand=(channel, record))
        # Only unaligned protocols make a cut before the record is processed.
        return self.world() if self.model.mode.unaligned else self.process(task)

    def process(self, task: int) -> World:
        state = self.tasks[task]
        assert state.hand is not None
        _, record = state.hand
        self.change(task, hand=None, processed=tuple(sorted((*state.processed, record))))
        for channel, made in self.model.route(task, record):
            waiting, arrived = self.lines[channel]
            self.lines[channel] = (*waiting, made), arrived
        return self.world()

    # ---- channels

    def arrive(self, channel: int, item: Item) -> None:
        """At the gate: it is logged, or ends the log."""
        target = self.model.channels[channel].target
        state = self.tasks[target]
        waiting, arrived = self.lines[channel]
        self.lines[channel] = waiting, (*arrived, item)
        logging = channel in state.logging
        if not isinstance(item, Bar):
            if logging and state.cut is not None:
                self.log(target, [(channel, item)])
            return
        ends = logging and state.cut is not None and item.number >= state.cut.number
        if ends and not self.model.mode.runs_on:
            self.change(target, logging=state.logging - {channel})
        if ends or self.model.mode.unaligned:
            self.tell(target, BarrierAnnounced(channel, item.number, item.urgent))

    def log(self, task: int, logs: list[Log]) -> None:
        cut = self.tasks[task].cut
        assert cut is not None
        self.change(task, cut=replace(cut, logs=(*cut.logs, *logs)))

    def sent(self, task: int) -> None:
        """Whether the barrier that was broadcast has left."""
        number = self.tasks[task].unsent
        if number and not any(self.lines[c][0] for c in self.model.outputs[task]):
            self.change(task, unsent=0)
            self.tell(task, BarrierSent(number))

    # ---- the protocol

    def tell(self, task: int, event: Event) -> None:
        at_work = task in self.events
        queue = self.events.setdefault(task, [])
        queue.append(event)
        if at_work:
            return
        while queue:
            commands, state = self.model.handle(task, self.tasks[task].protocol, queue.pop(0))
            self.change(task, protocol=state)
            for command in commands:
                self.obey(task, command)
        del self.events[task]

    def obey(self, task: int, command: Command) -> None:
        state = self.tasks[task]
        match command:
            case CopyState(number):
                self.change(task, cut=Cut(number, state.processed, state.position))
                if state.hand is not None and not self.model.mode.hand_lost:
                    self.log(task, [state.hand])
                    self.model.found.in_hand += 1
            case StartLog(number, channels):
                self.start_log(task, number, channels)
            case Broadcast(number):
                for channel in self.model.outputs[task]:
                    waiting, arrived = self.lines[channel]
                    self.lines[channel] = (*waiting, Bar(number)), arrived
                if self.model.mode.unaligned:
                    self.change(task, unsent=number)
                    self.sent(task)
            case Overtake(number):
                for channel in self.model.outputs[task]:
                    self.overtake(task, channel, number)
            case EndLog(number):
                cut = state.cut
                if cut is None or cut.number != number:
                    raise ProtocolError(f"{command} in {state}")
                if state.logging and not self.model.mode.runs_on:
                    raise ProtocolError(f"{command} in {state}")
                cut = replace(cut, logs=tuple(sorted(cut.logs, key=repr)))
                self.change(task, cut=None, logging=frozenset(), done=(*state.done, cut))
            case DropLog(number):
                if state.cut is None or state.cut.number != number:
                    raise ProtocolError(f"{command} in {state}")
                self.change(task, cut=None, logging=frozenset())
            case BlockChannel(channel):
                self.change(task, blocked=state.blocked | {channel})
            case UnblockChannels(channels):
                if not state.blocked.issuperset(channels):
                    raise ProtocolError(f"{command} in {state}")
                self.change(task, blocked=state.blocked.difference(channels))
            case StartAlignmentTimer(number):
                self.change(task, timer=number)
            case Halt():
                self.change(task, halted=True)
            case Resume():
                self.change(task, halted=False)

    def start_log(self, task: int, number: int, channels: tuple[Any, ...]) -> None:
        logs: list[Log] = []
        found: list[tuple[int, Bar]] = []
        for channel in channels:
            for item in self.lines[channel][1]:
                if not isinstance(item, Bar):
                    logs.append((channel, item))
                elif item.number >= number:
                    found.append((channel, item))
                    break
        ended: set[int] = set() if self.model.mode.runs_on else {channel for channel, _ in found}
        self.change(task, logging=frozenset(channels) - ended)
        self.log(task, logs)
        for channel, item in found:
            self.tell(task, BarrierAnnounced(channel, item.number, item.urgent))

    def overtake(self, task: int, channel: int, number: int) -> None:
        waiting, arrived = self.lines[channel]
        place = next(
            (i for i, x in enumerate(waiting) if isinstance(x, Bar) and x.number == number), None
        )
        ahead = waiting if place is None else waiting[:place]
        overtaken: list[Log] = [(channel, x) for x in ahead if not isinstance(x, Bar)]
        if not self.model.mode.overtaken_lost:
            self.log(task, overtaken)
            self.model.found.overtaken += len(overtaken)
        rest = waiting if place is None else waiting[:place] + waiting[place + 1 :]
        if place is None and self.tasks[task].unsent == number:
            return  # it has left on this channel already
        self.lines[channel] = rest, arrived
        self.arrive(channel, Bar(number, True))
