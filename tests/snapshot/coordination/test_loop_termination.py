"""Termination of loops: the detector's decisions, event by event and in simulated jobs.

The simulated jobs have several loops, the real protocols and the real detector, and run under a
seed. Records hop through the loops a limited number of times, and hooks emit for some rounds.
Snapshots begin when they are requested, are aborted, and are restored from. No loop may be
terminated while it contains a record or a hook would still emit. In the end all are terminated.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.snapshot.coordination.loop_termination import (
    ExternalInputEnded,
    Loop,
    LoopCommand,
    LoopEvent,
    LoopStatus,
    LoopTerminationDetector,
    RequestCheckpoint,
    RunEndOfInputHooks,
    SnapshotEnded,
    StatusReported,
    TasksRestart,
    TerminateLoop,
)
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.events import (
    BarrierAnnounced,
    BarrierArrived,
    BlockChannel,
    Broadcast,
    CopyState,
    DropLog,
    EndLog,
    Event,
    SnapshotAborted,
    StartLog,
    UnblockChannels,
)


def watch(hooks: bool = False, *others: Loop) -> LoopTerminationDetector:
    """Watches loop 0 of tasks a and b, and others."""
    return LoopTerminationDetector([Loop(0, frozenset("ab"), hooks), *others])


def status(rounds: int = 0, emitted: bool = False, **changes: Any) -> LoopStatus:
    """Of a task with nothing left to do, but for the changes."""
    values = {"outside_ended": True, "log_records": 0, **changes}
    return LoopStatus(rounds=rounds, emitted=emitted, **values)


def say(
    target: LoopTerminationDetector, number: int, a: LoopStatus, b: LoopStatus
) -> list[LoopCommand]:
    return handle(target, StatusReported("a", number, a), StatusReported("b", number, b))


def handle(target: LoopTerminationDetector, *events: LoopEvent) -> list[LoopCommand]:
    return [command for event in events for command in target.handle(event)]


def test_a_quiet_loop_without_hooks_is_closed() -> None:
    w = watch()
    assert handle(w, StatusReported("a", 1, status())) == []
    assert handle(w, StatusReported("b", 1, status())) == [TerminateLoop(0)]


@pytest.mark.parametrize(
    "busy", [{"outside_ended": False}, {"log_records": 1}, {"pending_timers": True}], ids=str
)
def test_a_loop_is_not_closed_while_one_task_has_something_left(busy: dict[str, Any]) -> None:
    w = watch()
    assert say(w, 1, status(), status(**busy)) == []
    assert say(w, 2, status(**busy), status()) == []
    assert say(w, 3, status(), status()) == [TerminateLoop(0)]


def test_what_is_said_with_different_snapshots_does_not_count_together() -> None:
    w = watch()
    assert handle(w, StatusReported("a", 1, status()), StatusReported("b", 2, status())) == []
    assert handle(w, StatusReported("a", 1, status(log_records=3))) == []
    assert handle(w, StatusReported("a", 2, status())) == [TerminateLoop(0)]


def test_a_closed_loop_is_left_alone() -> None:
    w = watch(hooks=False)
    handle(w, ExternalInputEnded("a"), ExternalInputEnded("b"))
    say(w, 1, status(), status())
    assert say(w, 2, status(), status()) == []
    assert handle(w, SnapshotEnded(2)) == []


def test_hooks_run_in_rounds_until_none_of_them_emits_into_the_loop() -> None:
    w = watch(hooks=True)
    assert say(w, 1, status(), status()) == [RunEndOfInputHooks(0, 1)]
    assert say(w, 2, status(1, True), status(1)) == [RunEndOfInputHooks(0, 2)]
    assert say(w, 3, status(2), status(2, True)) == [RunEndOfInputHooks(0, 3)]
    assert say(w, 4, status(3), status(3)) == [TerminateLoop(0)]


def test_timers_fire_at_the_last_watermark_before_hooks_run() -> None:
    w = watch(hooks=True)
    assert say(w, 1, status(), status(must_fire=True)) == [RunEndOfInputHooks(0, 0)]
    assert say(w, 2, status(log_records=1, must_fire=True), status()) == []
    assert say(w, 3, status(must_fire=True), status()) == [RunEndOfInputHooks(0, 0)]
    assert say(w, 4, status(), status()) == [RunEndOfInputHooks(0, 1)]
    assert say(w, 5, status(1, must_fire=True), status(1)) == [RunEndOfInputHooks(0, 0)]
    assert say(w, 6, status(1), status(1)) == [TerminateLoop(0)]


def test_a_round_is_commanded_once_and_then_waited_for() -> None:
    w = watch(hooks=True)
    assert say(w, 1, status(), status()) == [RunEndOfInputHooks(0, 1)]
    assert say(w, 2, status(), status()) == []
    assert say(w, 3, status(1, True), status()) == []
    assert say(w, 4, status(1, True, log_records=2), status(1)) == []
    assert say(w, 5, status(1, True), status(1)) == [RunEndOfInputHooks(0, 2)]
    assert say(w, 6, status(1, True), status(1)) == []


def test_a_loop_restored_in_the_middle_of_a_round_has_the_others_run_it() -> None:
    w = watch(hooks=True)
    # Task b has still to run round 2; whether its round 1 emitted does not matter any more.
    assert say(w, 7, status(2, False), status(1, True)) == [RunEndOfInputHooks(0, 2)]
    assert say(w, 8, status(2), status(2)) == [TerminateLoop(0)]


def test_a_loop_restored_after_its_last_round_is_closed_without_another() -> None:
    assert say(watch(hooks=True), 7, status(2), status(2)) == [TerminateLoop(0)]


def test_a_snapshot_is_wanted_when_the_outside_of_all_tasks_has_ended() -> None:
    w = watch()
    assert handle(w, SnapshotEnded(1)) == []
    assert handle(w, ExternalInputEnded("b")) == []
    assert handle(w, ExternalInputEnded("a")) == [RequestCheckpoint(0.02)]


def test_snapshots_are_wanted_ever_later_while_nothing_comes_of_them() -> None:
    w = watch(hooks=True)
    handle(w, ExternalInputEnded("a"), ExternalInputEnded("b"))
    busy = status(log_records=1)
    delays: list[LoopCommand] = []
    for number in range(8):
        assert say(w, number, busy, busy) == []
        delays += handle(w, SnapshotEnded(number))
    expected = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert delays == [RequestCheckpoint(delay) for delay in expected]
    assert say(w, 8, status(), status()) == [RunEndOfInputHooks(0, 1)]
    assert handle(w, SnapshotEnded(8)) == [RequestCheckpoint(0.02)]


def test_a_snapshot_that_was_given_up_is_wanted_again() -> None:
    w = watch()
    handle(w, ExternalInputEnded("a"), ExternalInputEnded("b"), StatusReported("a", 1, status()))
    assert handle(w, SnapshotEnded(1)) == [RequestCheckpoint(0.02)]


def test_a_loop_is_closed_beside_one_whose_outside_never_ends() -> None:
    w = watch(False, Loop(1, frozenset("c"), True))
    handle(w, ExternalInputEnded("a"), ExternalInputEnded("b"))
    assert handle(w, StatusReported("c", 1, status(outside_ended=False))) == []
    assert say(w, 1, status(), status()) == [TerminateLoop(0)]
    # The other one waits for its outside, not for snapshots.
    assert handle(w, SnapshotEnded(1)) == []
    assert handle(w, ExternalInputEnded("c")) == [RequestCheckpoint(0.02)]
    assert handle(w, StatusReported("c", 2, status())) == [RunEndOfInputHooks(1, 1)]


def test_restarted_tasks_report_the_end_of_their_input_again() -> None:
    w = watch()
    handle(w, ExternalInputEnded("a"), TasksRestart(frozenset({"a", "of no loop"})))
    assert handle(w, ExternalInputEnded("b")) == []
    assert handle(w, ExternalInputEnded("a")) == [RequestCheckpoint(w.SOON_SECONDS)]


def test_a_loop_is_ending_when_the_outside_of_all_its_tasks_has_ended() -> None:
    w = watch()
    task = frozenset({"a"})
    handle(w, ExternalInputEnded("a"))
    assert not w.is_ending(task)
    handle(w, ExternalInputEnded("b"))
    assert w.is_ending(task)
    assert not w.is_ending(frozenset({"of no loop"}))
    assert say(w, 1, status(), status()) == [TerminateLoop(0)]
    assert w.is_ending(task)


def test_impossible_events_are_refused() -> None:
    w = watch()
    handle(w, ExternalInputEnded("a"), StatusReported("a", 1, status()))
    with pytest.raises(ProtocolError, match="in no loop"):
        w.handle(ExternalInputEnded("z"))
    with pytest.raises(ProtocolError, match="in no loop"):
        w.handle(StatusReported("z", 1, status()))
    with pytest.raises(ProtocolError, match="ended twice"):
        w.handle(ExternalInputEnded("a"))
    with pytest.raises(ProtocolError, match="acknowledged snapshot 1 twice"):
        w.handle(StatusReported("a", 1, status()))
    with pytest.raises(ProtocolError, match="two loops"):
        watch(False, Loop(1, frozenset("bc"), False))


# ---- simulated jobs

END = "end"
#: Hops that a record has left, the number of a barrier (negative), or the end of input.
Item = int | str


@dataclass(frozen=True)
class Job:
    """Loops, edges (from, to, whether it is a back-edge), and which sources never end.

    Names of sources are lower case. A loop's tasks have hooks if it is named in `hooks`.
    """

    loops: tuple[str, ...]
    edges: tuple[tuple[str, str, bool], ...]
    hooks: frozenset[int] = frozenset()
    endless: str = ""


JOBS = {
    "self-loop": Job(("A",), (("s", "A", False), ("A", "A", True)), frozenset({0})),
    "two parallel tasks": Job(
        ("AB",),
        (
            ("s", "A", False),
            ("t", "B", False),
            ("A", "A", True),
            ("A", "B", True),
            ("B", "A", True),
            ("B", "B", True),
        ),
        frozenset({0}),
    ),
    "nested": Job(
        ("ABC",),
        (
            ("s", "A", False),
            ("A", "B", False),
            ("B", "C", False),
            ("C", "B", True),
            ("C", "A", True),
        ),
        frozenset({0}),
    ),
    "one loop behind another, beside an endless one": Job(
        ("AB", "CD", "E"),
        (
            ("s", "A", False),
            ("A", "B", False),
            ("B", "A", True),
            ("B", "C", False),
            ("t", "D", False),
            ("C", "D", False),
            ("D", "C", True),
            ("u", "E", False),
            ("E", "E", True),
        ),
        frozenset({1, 2}),
        "u",
    ),
}


@dataclass
class Saved:
    """A task, or a source, in a snapshot."""

    rounds: int = 0
    emitted: bool = False
    logs: dict[int, list[Item]] = field(default_factory=dict)
    position: int = 0


@dataclass
class Running:
    """A task that runs."""

    protocol: AlignedProtocol | AlignedCyclicProtocol
    saved: Saved
    outside: set[int]
    blocked: set[object] = field(default_factory=set)
    commands: deque[Any] = field(default_factory=deque)
    reports: deque[LoopEvent] = field(default_factory=deque)
    closed: bool = False
    #: The cut of the number that is logged, and the back-edges that are still logged.
    cut: tuple[Saved, bool] | None = None
    logging: set[object] = field(default_factory=set)


class Simulation:
    """One job under one seed."""

    def __init__(
        self, job: Job, seed: int, watch: type[LoopTerminationDetector] = LoopTerminationDetector
    ) -> None:
        self._watch_class = watch
        self.job, self.seed, self.rng = job, seed, random.Random(seed)
        self.loop_of = {task: i for i, tasks in enumerate(job.loops) for task in tasks}
        self.sources = sorted({source for source, _, _ in job.edges if source.islower()})
        self.into = {task: self._edges(1, task) for task in self.loop_of}
        self.out = {name: self._edges(0, name) for name in [*self.loop_of, *self.sources]}
        self.script = {s: [self.rng.randint(0, 6) for _ in range(6)] for s in self.sources}
        #: So many rounds of its hook emit.
        self.talks = {t: self.rng.randint(0, 3) for t, i in self.loop_of.items() if i in job.hooks}
        self.snapshots: dict[int, dict[str, Saved]] = {}
        self.number = 0
        self.troubles = 4
        self.restores = 0
        self.start({})

    def _edges(self, end: int, name: str) -> list[int]:
        return [c for c, edge in enumerate(self.job.edges) if edge[end] == name]

    def start(self, saved: dict[str, Saved]) -> None:
        """An attempt, from a snapshot."""
        self.watch = self._watch_class(
            Loop(i, frozenset(tasks), i in self.job.hooks) for i, tasks in enumerate(self.job.loops)
        )
        self.queues: list[deque[Item]] = [deque() for _ in self.job.edges]
        self.tasks: dict[str, Running] = {}
        self.closed: set[int] = set()
        self.in_flight: int | None = None
        self.wanted = False
        self.waiting_sources: set[str] = set()
        self.acknowledged: dict[str, Saved] = {}
        # A source that had ended ends again.
        self.positions = {s: saved[s].position if saved else 0 for s in self.sources}
        self.ended: set[str] = set()
        for name, inputs in self.into.items():
            back = [c for c in inputs if self.job.edges[c][2]]
            own = self.job.loops[self.loop_of[name]]
            state = saved.get(name, Saved())
            for channel, records in state.logs.items():
                self.queues[channel].extend(records)
            task = self.tasks[name] = Running(
                AlignedCyclicProtocol(inputs, back) if back else AlignedProtocol(inputs),
                Saved(state.rounds, state.emitted),
                {c for c in inputs if self.job.edges[c][0] not in own},
            )
            if not task.outside:
                task.reports.append(ExternalInputEnded(name))

    # ---- one move after the other

    def run(self) -> None:
        """Until all loops are closed whose outside ends."""
        targets = [self.job.edges[c][1] for s in self.job.endless for c in self.out[s]]
        endless = {self.loop_of[target] for target in targets}
        for _ in range(60_000):
            if len(self.closed | endless) == len(self.job.loops):
                assert not self.closed & endless, self.seed
                return
            self.move()
        raise AssertionError(f"seed {self.seed}: only {self.closed} are closed: {self.tasks}")

    def move(self) -> None:
        moves: list[tuple[Any, ...]] = []
        for channel, queue in enumerate(self.queues):
            name = self.job.edges[channel][1]
            if queue and channel not in self.tasks[name].blocked:
                moves.append((self.take, channel))
        for source in self.sources:
            full = any(len(self.queues[channel]) > 8 for channel in self.out[source])
            if source not in self.ended and not full:
                moves.append((self.emit, source))
        moves += [(self.inject, source) for source in sorted(self.waiting_sources)]
        for name, task in self.tasks.items():
            if task.commands:
                moves.append((self.command, name))
            if task.reports:
                moves.append((self.report, task))
        if self.in_flight is None and (self.wanted or self.rng.random() < 0.02):
            moves.append((self.begin,))
        if self.troubles and self.rng.random() < 0.02:
            moves.append((self.crash,))
            moves += [(self.abort,)] if self.in_flight is not None else []
        if moves:
            move, *arguments = self.rng.choice(moves)
            move(*arguments)

    def emit(self, source: str) -> None:
        script, position = self.script[source], self.positions[source]
        if position < len(script) or source in self.job.endless:
            self.send(source, script[position % len(script)], [self.rng.choice(self.out[source])])
            self.positions[source] += 1
        else:
            self.ended.add(source)
            self.send(source, END, self.out[source])

    def inject(self, source: str) -> None:
        assert self.in_flight is not None
        self.waiting_sources.discard(source)
        self.acknowledged[source] = Saved(position=self.positions[source])
        self.send(source, -self.in_flight, self.out[source])
        self.complete()

    def take(self, channel: int) -> None:
        name = self.job.edges[channel][1]
        task, item = self.tasks[name], self.queues[channel].popleft()
        if item == END:
            if channel in task.outside:
                task.outside.discard(channel)
                if not task.outside:
                    task.reports.append(ExternalInputEnded(name))
        elif isinstance(item, int) and item < 0:
            self.handle(name, BarrierArrived(channel, -item))
        elif isinstance(item, int):
            assert not task.closed and self.loop_of[name] not in self.closed, self.seed
            if item:
                self.send(name, item - 1, [self.rng.choice(self.out[name])])

    def send(self, name: str, item: Item, channels: list[int]) -> None:
        for channel in channels:
            target = self.job.edges[channel][1]
            task = self.tasks[target]
            self.queues[channel].append(item)
            if channel in task.logging:
                assert task.cut is not None
                if isinstance(item, int) and item >= 0:
                    task.cut[0].logs[channel].append(item)
                elif isinstance(item, int):
                    task.logging.discard(channel)
                    self.handle(target, BarrierAnnounced(channel, -item))

    # ---- snapshots

    def handle(self, name: str, event: Event) -> None:
        task = self.tasks[name]
        for command in task.protocol.handle(event):
            match command:
                case BlockChannel(channel):
                    task.blocked.add(channel)
                case UnblockChannels(channels):
                    task.blocked.difference_update(channels)
                case CopyState(number):
                    task.cut = Saved(task.saved.rounds, task.saved.emitted), not task.outside
                    if isinstance(task.protocol, AlignedProtocol):
                        self.acknowledge(name, number)
                case StartLog(number, channels):
                    self.start_log(name, number, channels)
                case Broadcast(number):
                    self.send(name, -number, self.out[name])
                case EndLog(number):
                    self.acknowledge(name, number)
                case DropLog(_):
                    task.cut = None
                    task.logging.clear()

    def start_log(self, name: str, number: int, channels: tuple[Any, ...]) -> None:
        task = self.tasks[name]
        assert task.cut is not None
        told = []
        for channel in channels:
            log = task.cut[0].logs[channel] = []
            task.logging.add(channel)
            for item in self.queues[channel]:
                if isinstance(item, int) and item >= 0:
                    log.append(item)
                elif isinstance(item, int) and -item >= number:
                    task.logging.discard(channel)
                    told.append(BarrierAnnounced(channel, -item))
                    break
        for event in told:
            self.handle(name, event)

    def acknowledge(self, name: str, number: int) -> None:
        task = self.tasks[name]
        assert task.cut is not None
        saved, outside_ended = task.cut
        task.cut = None
        records = sum(map(len, saved.logs.values()))
        status = LoopStatus(outside_ended, records, saved.rounds, saved.emitted)
        task.reports.append(StatusReported(name, number, status))
        if number == self.in_flight:
            self.acknowledged[name] = saved
            self.complete()

    def begin(self) -> None:
        self.number += 1
        self.in_flight, self.wanted = self.number, False
        self.waiting_sources, self.acknowledged = set(self.sources), {}

    def complete(self) -> None:
        if len(self.acknowledged) == len(self.tasks) + len(self.sources):
            assert self.in_flight is not None
            self.snapshots[self.in_flight] = self.acknowledged
            self.over()

    def over(self) -> None:
        number, self.in_flight = self.in_flight, None
        assert number is not None
        self.waiting_sources = set()
        self.decide(SnapshotEnded(number))

    def abort(self) -> None:
        self.troubles -= 1
        for task in self.tasks.values():
            task.commands.append(SnapshotAborted(self.in_flight or 0))
        self.over()

    def crash(self) -> None:
        self.troubles -= 1
        self.restores += 1
        self.start(self.snapshots[max(self.snapshots)] if self.snapshots else {})

    # ---- the detector

    def report(self, task: Running) -> None:
        self.decide(task.reports.popleft())

    def decide(self, event: LoopEvent) -> None:
        for command in self.watch.handle(event):
            match command:
                case RequestCheckpoint(delay):
                    assert 0.02 <= delay <= 1.0
                    self.wanted = True
                case RunEndOfInputHooks(loop, _) | TerminateLoop(loop):
                    if isinstance(command, TerminateLoop):
                        self.check_quiet(loop)
                        self.closed.add(loop)
                    for name in self.job.loops[loop]:
                        self.tasks[name].commands.append(command)

    def check_quiet(self, loop: int) -> None:
        names = self.job.loops[loop]
        rounds = {self.tasks[name].saved.rounds for name in names}
        assert len(rounds) == 1, self.seed
        for name in names:
            task = self.tasks[name]
            assert not task.outside, self.seed
            for channel in self.into[name]:
                records = [i for i in self.queues[channel] if isinstance(i, int) and i >= 0]
                assert not records, f"seed {self.seed}: closed over {records} on {channel}"
            assert not any(isinstance(command, RunEndOfInputHooks) for command in task.commands), (
                self.seed
            )
            if loop in self.job.hooks:
                assert task.saved.rounds and not task.saved.emitted, self.seed

    def command(self, name: str) -> None:
        task = self.tasks[name]
        match task.commands.popleft():
            case SnapshotAborted() as event:
                self.handle(name, event)
            case RunEndOfInputHooks(_, round) if task.saved.rounds < round:
                assert task.saved.rounds == round - 1 and not task.outside, self.seed
                channel = self.rng.choice(self.out[name])
                talks = round <= self.talks.get(name, 0)
                inside = self.job.edges[channel][1] in self.job.loops[self.loop_of[name]]
                task.saved.rounds, task.saved.emitted = round, talks and inside
                if talks:
                    self.send(name, self.rng.randint(0, 4), [channel])
            case TerminateLoop():
                task.closed = True
                self.send(name, END, self.out[name])


@pytest.mark.parametrize("name", JOBS)
def test_loops_are_closed_in_the_end_and_never_while_something_is_under_way(name: str) -> None:
    restores = rounds = 0
    for seed in range(300):
        simulation = Simulation(JOBS[name], seed)
        simulation.run()
        restores += simulation.restores
        rounds = max(rounds, *(task.saved.rounds for task in simulation.tasks.values()))
    # There was trouble, and there were hooks that had to be asked more than once.
    assert restores > 100 and rounds > 3


class IgnoresLogs(LoopTerminationDetector):
    """Does not look at the logs."""

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        if isinstance(event, StatusReported):
            event = replace(event, status=replace(event.status, log_records=0))
        return super().handle(event)


class IgnoresOutside(LoopTerminationDetector):
    """Takes the outside for ended."""

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        if isinstance(event, StatusReported):
            event = replace(event, status=replace(event.status, outside_ended=True))
        return super().handle(event)


class RunsOneRound(LoopTerminationDetector):
    """Does not look at what hooks emitted."""

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        if isinstance(event, StatusReported):
            event = replace(event, status=replace(event.status, emitted=False))
        return super().handle(event)


class TakesOneForAll(LoopTerminationDetector):
    """Takes a round for run as soon as one task has run it."""

    def handle(self, event: LoopEvent) -> list[LoopCommand]:
        if isinstance(event, StatusReported):
            self.rounds = max(getattr(self, "rounds", 0), event.status.rounds)
            event = replace(event, status=replace(event.status, rounds=self.rounds))
        return super().handle(event)


@pytest.mark.parametrize("wrong", [IgnoresLogs, IgnoresOutside, RunsOneRound, TakesOneForAll])
def test_a_watch_that_decides_wrongly_is_found_out(wrong: type[LoopTerminationDetector]) -> None:
    with pytest.raises(AssertionError):
        for job in JOBS.values():
            for seed in range(100):
                Simulation(job, seed, wrong).run()
