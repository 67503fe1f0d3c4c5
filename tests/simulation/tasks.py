"""All tasks of a job in one process, driven one step at a time, with their snapshots.

The compiler, the factory, gates, channels, back-edges, outputs, partitioners, operators, protocols,
persisters, replays and the watch over loops are the real ones. Made up is what joins them: wires
between slots, and a JobManager whose messages wait until they are delivered. `choices` says what
can happen next and `do` lets it happen, so that a search can try everything, or chance can choose.
"""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ChannelId, ExecutionGraph
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.source import Split
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.system.system import System
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.snapshots.background_work import drive
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.log_replay import LogReplayer, RestoredLog
from penstock.runtime.task.snapshots.task_snapshot import Acknowledgement, TaskSnapshot
from penstock.runtime.task.task import Task
from penstock.runtime.taskmanager import channel_factory, protocol_choice, task_factory
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.task_factory import TaskFactory
from penstock.snapshot.coordination import loop_termination as t
from penstock.snapshot.metadata.handles import OperatorHandle
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.in_flight_log import read_log
from penstock.snapshot.storage.job_paths import JobPaths
from tests.simulation.lineage import Program, Totals, key_of

CODEC = Codec(TypeRegistry())
Id = tuple[int, int]
Choice = tuple[Any, ...]
#: Per (uid, subtask), what a snapshot holds.
Handles = dict[tuple[str, int], OperatorHandle]
#: No two clusters share folders.
_ATTEMPTS = count(1)
#: So that a segment of a queue on disk has a frame or three.
SEGMENT_BYTES = 40
#: Behind the uid of a task's first operator: what the task has seen.
SEEN = "#seen"


class Violation(AssertionError):
    """A snapshot that is not feasible, or something that never ends."""


class RecordingRunner(ChainRunner):
    """Keeps what each operator of its task has taken in, and given out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        uids = [operator.context.uid for operator in self.operators]
        self.taken: dict[str, list[Any]] = {uid: [] for uid in uids}
        self.given: dict[str, list[Any]] = {uid: [] for uid in uids}

    def process(self, node: Any, batch: RecordBatch, count: int) -> None:
        self.taken[node.operator.context.uid] += batch.rows()
        super().process(node, batch, count)

    def emit(self, node: Any, out: RecordBatch) -> None:
        self.given[node.operator.context.uid] += out.rows()
        super().emit(node, out)


class Recording(Task):
    """A task with one more state: what each of its operators has taken in, and given out."""

    chain: RecordingRunner
    checkpoint_writer: RecordingWriter

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.taken, self.given = self.chain.taken, self.chain.given
        self.checkpoint_writer.chain = self.chain
        self._leave_out_event_time()

    def _leave_out_event_time(self) -> None:
        """Drop the watermarks at the end of the input; nothing here has event time.

        They would multiply the orders of events. `loop_time_model` explores watermarks.
        """
        tracker, outputs = self.event_time, self.outputs
        add, receive, broadcast = tracker.add, tracker.receive, outputs.broadcast
        tracker.add = lambda element: None if _is_time(element) else add(element)  # type: ignore[method-assign]
        tracker.receive = lambda id, element: None if _is_time(element) else receive(id, element)  # type: ignore[method-assign]
        outputs.broadcast = lambda element, *rest: (  # type: ignore[method-assign]
            None if _is_time(element) else broadcast(element, *rest)
        )

    def extra(self) -> Any:
        """What else there is that its future depends on; of mutants."""
        return None


def _is_time(element: object) -> bool:
    return isinstance(element, Watermark)


class RecordingWriter(CheckpointWriter):
    """Adds to each snapshot what the operators of its task have taken in, and given out."""

    chain: RecordingRunner

    def add(self, snapshot: TaskSnapshot) -> None:
        chain = self.chain
        seen = {uid: [sorted(chain.taken[uid]), sorted(chain.given[uid])] for uid in chain.taken}
        snapshot.small[chain.uid + SEEN] = seen
        super().add(snapshot)


@dataclass(frozen=True)
class Kit:
    """What is run: the real classes, or mutants of them."""

    task: type[Recording] = Recording
    aligned: type[AlignedProtocol] = AlignedProtocol
    aligned_cyclic: type[AlignedCyclicProtocol] = AlignedCyclicProtocol
    back_edge: type[FeedbackChannel] = FeedbackChannel
    gate: type[InputGate] = InputGate
    watch: type[t.LoopTerminationDetector] = t.LoopTerminationDetector

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have factories build with these."""
        own = {
            (task_factory, "Task"): self.task,
            (task_factory, "ChainRunner"): RecordingRunner,
            (task_factory, "CheckpointWriter"): RecordingWriter,
            (protocol_choice, "AlignedProtocol"): self.aligned,
            (protocol_choice, "AlignedCyclicProtocol"): self.aligned_cyclic,
            (channel_factory, "FeedbackChannel"): self.back_edge,
            (channel_factory, "InputGate"): self.gate,
        }
        real = {place: getattr(*place) for place in own}
        try:
            for place, kind in own.items():
                setattr(*place, kind)
            yield
        finally:
            for place, kind in real.items():
                setattr(*place, kind)


@dataclass(frozen=True)
class Mode:
    """How much is left to chance, or to a search.

    Arguments:
        lazy: cuts are written in steps of their own.
        wires: what goes to another slot is under way for a while.
        messages: what tasks tell the JobManager is under way for a while.
        spill: back-edges hold next to nothing in memory.
        files: no log is so small that it travels in the manifest.
        by_slot: all tasks of a slot hear the JobManager at once, as they do in a worker; else each
            may hear it earlier or later than the others, which is more than can happen.
        closes: loops are closed when they are quiet, and the job ends.
        slow: a slice of work is one record.
        snapshots: at most so many are begun, beside those that a loop needs in order to end.
        aborts: at most so many of them are given up.
        eager: each is begun as early as can be. The barrier is late all the same if its message
            is, so a search loses nothing.
    """

    lazy: bool = False
    wires: bool = False
    messages: bool = False
    spill: bool = False
    files: bool = False
    by_slot: bool = False
    closes: bool = False
    slow: bool = False
    snapshots: int = 1
    aborts: int = 0
    eager: bool = False


#: The real classes; and nothing left to chance but the order of steps.
REAL, PLAIN = Kit(), Mode()


@dataclass
class Snapshot:
    """A complete snapshot."""

    number: int
    handles: Handles

    def totals(self, program: Program, uids: dict[str, str]) -> tuple[Totals, Totals]:
        """What each operator had taken and given, by name."""
        taken, given = Totals(program), Totals(program)
        for (uid, _), handle in self.handles.items():
            if uid.endswith(SEEN):
                for own, (took, gave) in handle.small.items():
                    taken[uids[own]].update(took)
                    given[uids[own]].update(gave)
        return taken, given


class Wire:
    """The sending half of a connection whose other end is a channel of another slot."""

    def __init__(self, channel: InputChannel, credits: int, direct: bool) -> None:
        self.channel, self.credits, self.direct = channel, credits, direct
        self.desired_records = 1 << 30
        self.queue: deque[Element] = deque()
        channel.attach_sender(self._credit)

    def _credit(self) -> None:
        self.credits += 1
        self.desired_records = self.channel.desired_records

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """Nothing is reported: a task looks when it sends."""

    def send_batch(self, payload: bytes, count: int) -> None:
        self.credits -= 1
        self._send(EncodedBatch(payload, count))

    def send_marker(self, element: Element) -> None:
        self._send(element)

    def _send(self, element: Element) -> None:
        self.queue.append(element)
        if self.direct:
            self.deliver()

    def deliver(self) -> None:
        self.channel.put(self.queue.popleft())


@dataclass
class _Ear:
    """Hears a task for the JobManager."""

    cluster: Cluster
    task: Id

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self.cluster.say(self.task, acknowledgement)

    def decline(self, number: int, reason: str) -> None:
        raise Violation(f"snapshot {number} declined by {self.task}: {reason}")


@dataclass
class Compiled:
    """A program and what the compiler made of it."""

    program: Program
    graph: JobGraph
    plan: ExecutionGraph
    #: Names of operators by uid.
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {info.uid: info.name for info in self.plan.operators}

    @classmethod
    def of(cls, program: Program) -> Compiled:
        graph = program.job_graph()
        return cls(program, graph, compile_graph(graph, program.config))


class Cluster:
    """All tasks of one program in one state.

    Arguments:
        compiled, kit, mode: what runs, and how.
        root: folder for what is on disk.
        restore: a snapshot to start from.
        rng: for what the engine itself leaves to chance.
    """

    def __init__(
        self,
        compiled: Compiled,
        root: Path,
        kit: Kit = REAL,
        mode: Mode = PLAIN,
        restore: Snapshot | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.compiled, self.program, self.plan = compiled, compiled.program, compiled.plan
        self.kit, self.mode, self.root = kit, mode, root
        self.now = 0.0
        self.tasks: dict[Id, Recording] = {}
        self.wires: dict[ChannelId, Wire] = {}
        #: What tasks will hear of the JobManager.
        self.down: dict[Any, deque[tuple[str, int, frozenset[Id]]]] = {}
        self.up: dict[Id, deque[Any]] = {}
        self.number = 0 if restore is None else restore.number
        self.flight: dict[Id, Acknowledgement] | None = None
        self.begun = self.given_up = self.fruitless = 0
        self.snapshots: list[Snapshot] = []
        self.closed: set[int] = set()
        self._attempt = next(_ATTEMPTS)
        self._ticks = 0.0
        with kit.installed():
            self._build(rng or random.Random(0))
        self.watch = kit.watch(
            t.Loop(
                index,
                frozenset(task for task in self.tasks if task[0] in chains),
                self.plan.has_end_input(index),
            )
            for index, chains in enumerate(self.plan.loops)
        )
        for id, task in self.tasks.items():
            self._open(id, task, restore)
        self._begin_at_once()

    # ---- making it

    def _build(self, rng: random.Random) -> None:
        system = System(
            clock=self._clock,
            transport=None,  # type: ignore[arg-type]
            launcher=None,  # type: ignore[arg-type]
            offload=at_once,
            pid=0,
            rng=rng,
            timer=self._timer,
            runnable=lambda: 0,  # there is no event loop
        )
        graph, config, mode = self.compiled.graph, self.program.config, self.mode
        slots: list[tuple[DeploymentDescriptor, ChannelFactory]] = []
        channels: dict[ChannelId, InputChannel] = {}
        for slot in range(self.plan.slots):
            # Each slot has functions of its own, as if it had unpacked them.
            own = [replace(one, function=copy.copy(one.function)) for one in graph.operators]
            code = JobCode(replace(graph, operators=own), config, self.plan, [], (), "")
            descriptor = DeploymentDescriptor(
                code, slot, self._attempt, 0, "l", self.root, True, CODEC
            )
            factory = ChannelFactory(descriptor, system, 1 if mode.spill else None)
            slots.append((descriptor, factory))
            channels.update(factory.create_inputs())
            if mode.spill:
                for gate in factory.gates.values():
                    for back_edge in gate.back_edges.values():
                        back_edge._spill._segment_bytes = SEGMENT_BYTES
        self._replays = [LogReplayer(d.code, self.plan, CODEC, d.slot) for d, _ in slots]
        for descriptor, factory in slots:
            senders = {}
            for id in factory.remote_outputs():
                wire = Wire(channels[id], config.channel_batches, not mode.wires)
                senders[id] = self.wires[id] = wire
            slot = descriptor.slot
            built = TaskFactory(descriptor, system, factory).create_tasks(
                senders,  # type: ignore[arg-type]
                self,
                lambda chain, slot=slot: _Ear(self, (chain, slot)),  # type: ignore[misc]
                lambda chain: None,
            )
            for one in built:
                assert isinstance(one.task, Recording)
                if mode.files:
                    one.task.checkpoint_writer._writer._inline_threshold = 0
                self.tasks[one.task.id] = one.task
        self.tasks = dict(sorted(self.tasks.items()))
        self.down = {self._line(id): deque() for id in self.tasks}
        self.up = {id: deque() for id in self.tasks}
        self._sources = frozenset(id for id, t in self.tasks.items() if t.source_input is not None)

    def _open(self, id: Id, task: Recording, restore: Snapshot | None) -> None:
        """As a TaskManager does it."""
        root = task.chain.root.operator.context.uid
        handles = {} if restore is None else restore.handles
        folder = JobPaths(self.root).snapshot(0 if restore is None else restore.number)
        own = handles.get((root, id[1]))
        if own is not None:
            if own.ended:
                task.end_of_input.restore(own.ended, own.emitted)
            if own.logs:
                logs = [RestoredLog(log, folder, False) for log in own.logs]
                task.gate.replay(self._replays[id[1]].replay(id[0], task.gate, logs))
        for uid, backend in task.backends.items():
            handle = handles.get((uid, id[1]))
            if handle is not None and handle.keyed is not None:
                finish(drive(backend.restore([(folder, handle.keyed)]), at_once, no_pause))
        if restore is not None:
            for uid, (taken, given) in handles[root + SEEN, id[1]].small.items():
                task.taken[uid], task.given[uid] = [*taken], [*given]
        if task.source_input is not None:
            if restore is None:
                task.source_input.assign(Split(str(id[1])))
            elif own is not None:
                task.source_input.restore(own.small)
            task.source_input.no_more()
        task.open()

    def _clock(self) -> float:
        return self.now

    def _timer(self) -> float:
        # In a slow job each look at it finds that more time has passed than a slice may take.
        self._ticks += 0.01 if self.mode.slow else 0.0
        return self._ticks

    # ---- what can happen

    def choices(self) -> list[Choice]:
        """Everything that can happen now; nothing in the end."""
        mode = self.mode
        found: list[Choice] = [("step", id) for id in self.tasks if self.can_step(id)]
        if mode.lazy:
            found += [
                ("write", id) for id, t in self.tasks.items() if t.checkpoint_writer.has_work()
            ]
        if mode.wires:
            found += [("deliver", id) for id, wire in self.wires.items() if wire.queue]
        if mode.messages:
            found += [("hear", id) for id, queue in self.up.items() if queue]
        found += [("tell", id) for id, queue in self.down.items() if queue]
        if self.flight is None and self.begun < mode.snapshots and not mode.eager:
            found.append(("begin",))
        if self.flight is not None and self.given_up < mode.aborts:
            found.append(("give up",))
        if not found and mode.closes and self.flight is None and not self.ended:
            # The watch wants one. A loop that has ended needs one, and one per round of hooks.
            self.fruitless += 1
            if self.fruitless > 30:
                raise Violation("the job never ends")
            return [("begin",)]
        return found

    def can_step(self, id: Id) -> bool:
        """Whether a step of this task would change anything."""
        task = self.tasks[id]
        waits = buffered = False
        for output in task.outputs.channels:
            if output.sealed:
                if output.has_credit():
                    return True
                waits = True
            elif output.pending.records:
                buffered = True
        if waits:
            return False
        gate, source_ended = task.gate, task.ended or task.snapshots.final_barrier_passed
        return bool(
            buffered
            or gate._ready
            or gate._ready_back
            or task.slices.batch is not None
            or task._mailbox._messages
            or gate.replaying
            or (task.source_input is not None and not source_ended)
            or task.end_of_input.running
            or task.event_time.running
            or (task.ended and task.snapshots.events)
            or task.extra() is not None
        )

    @property
    def ended(self) -> bool:
        """Whether all tasks have."""
        return all(task.ended for task in self.tasks.values())

    def do(self, choice: Choice) -> None:
        """Let one thing happen."""
        match choice:
            case ("step", id):
                task = self.tasks[id]
                if not task.step():
                    task.flush()
            case ("write", id):
                self._write(self.tasks[id])
            case ("deliver", id):
                self.wires[id].deliver()
            case ("hear", id):
                self._hear(id, self.up[id].popleft())
            case ("tell", line):
                what, number, tasks = self.down[line].popleft()
                for id in sorted(tasks):
                    if self._line(id) == line:
                        self._tell(id, what, number)
            case ("begin",):
                self._begin()
            case ("give up",):
                self.given_up += 1
                self.flight = None
                self._send("abort", self.number, frozenset(self.tasks))
                self._watch(t.SnapshotEnded(self.number))
        if not self.mode.lazy:
            for task in self.tasks.values():
                if task.checkpoint_writer._snapshots or task.checkpoint_writer._logging:
                    self._write(task)
        self._begin_at_once()

    def _begin_at_once(self) -> None:
        if self.mode.eager and self.flight is None and self.begun < self.mode.snapshots:
            self._begin()

    def _begin(self) -> None:
        self.begun += 1
        self.number += 1
        self.flight = {}
        if self.mode.spill or self.mode.files:
            JobPaths(self.root).snapshot(self.number).mkdir(parents=True, exist_ok=True)
        self._send("inject", self.number, self._sources)

    @staticmethod
    def _write(task: Task) -> None:
        while task.checkpoint_writer.has_work():
            finish(task.checkpoint_writer.work(at_once, no_pause))

    # ---- the JobManager

    def say(self, task: Id, message: Any) -> None:
        """A task tells the JobManager something."""
        self.up[task].append(message)
        if not self.mode.messages:
            self._hear(task, self.up[task].popleft())

    def input_ended(self, task: Task) -> None:
        """Of no interest: it can be seen."""

    def outside_ended(self, task: Task) -> None:
        """Told to the watch."""
        self.say(task.id, "outside ended")

    def _tell(self, id: Id, what: str, number: int) -> None:
        task = self.tasks[id]
        if what == "inject":
            task.inject(number, SnapshotKind.CHECKPOINT)
        elif what == "abort":
            task.snapshots.abort(number)
        elif what == "end input":
            task.end_input(number)
        else:
            task.close_loop()

    def _hear(self, id: Id, message: Any) -> None:
        if message == "outside ended":
            self._watch(t.ExternalInputEnded(id))
            return
        if self.flight is None or message.number != self.number:
            return
        if id in self.flight:
            raise Violation(f"{id} acknowledged snapshot {self.number} twice")
        self.flight[id] = message
        if message.loop is not None:
            self._watch(t.StatusReported(id, message.number, message.loop))
        if self.flight is not None and len(self.flight) == len(self.tasks):
            handles = {
                (handle.uid, handle.subtask): handle
                for part in self.flight.values()
                for handle in part.handles
            }
            self.snapshots.append(Snapshot(self.number, handles))
            self.flight = None
            self._watch(t.SnapshotEnded(self.number))

    def _watch(self, event: t.LoopEvent) -> None:
        if not self.mode.closes:
            return
        for command in self.watch.handle(event):
            match command:
                case t.RunEndOfInputHooks(loop, round):
                    self._tell_loop(loop, "end input", round)
                case t.TerminateLoop(loop):
                    self._see_that_it_is_empty(loop)
                    self.closed.add(loop)
                    self._tell_loop(loop, "close", 0)

    def _tell_loop(self, loop: int, what: str, number: int) -> None:
        self.fruitless = 0
        inside = frozenset(id for id in self.tasks if id[0] in self.plan.loops[loop])
        self._send(what, number, inside)

    def _line(self, id: Id) -> Any:
        return id[1] if self.mode.by_slot else id

    def _send(self, what: str, number: int, tasks: frozenset[Id]) -> None:
        for line in sorted({self._line(id) for id in tasks}):
            self.down[line].append((what, number, tasks))

    def _see_that_it_is_empty(self, loop: int) -> None:
        """Nothing is in flight in a loop that is closed, and nothing can come."""
        inside = self.plan.loops[loop]
        for id, task in self.tasks.items():
            if id[0] not in inside:
                continue
            held = [e for c in task.gate.channels.values() for e in c._queue if _is_batch(e)]
            held += [
                e
                for channel, wire in self.wires.items()
                if self.plan.links[channel.link].target == id[0] and channel.target == id[1]
                for e in wire.queue
                if _is_batch(e)
            ]
            spilled = sum(b._spill.records for b in task.gate.back_edges.values())
            # What lies in outputs to the outside is none of the loop's business.
            inner = [
                record
                for node in _walk(task.chain.root)
                for partitioner in node.inner
                for output in partitioner.outputs
                for record in (*output.buffer, *filter(_is_batch, output.sealed))
            ]
            if (
                held
                or spilled
                or inner
                or task.slices.batch is not None
                or task.end_of_input.running
            ):
                raise Violation(f"loop {loop} is closed while {id} has work")
            if not task.end_of_input.over:
                raise Violation(f"loop {loop} is closed before the outside of {id} has ended")

    # ---- looks

    def totals(self) -> tuple[Totals, Totals]:
        """What each operator has taken and given, by name."""
        taken, given = Totals(self.program), Totals(self.program)
        for task in self.tasks.values():
            for uid in task.taken:
                taken[self.compiled.names[uid]].update(task.taken[uid])
                given[self.compiled.names[uid]].update(task.given[uid])
        return taken, given

    def logged(self, snapshot: Snapshot) -> Totals:
        """The records that a snapshot's logs hold, by consumer."""
        found = Totals(self.program)
        folder = JobPaths(self.root).snapshot(snapshot.number)
        for (uid, _), handle in snapshot.handles.items():
            for log in handle.logs:
                records = [
                    record
                    for payload in read_log(log, folder)
                    for record in CODEC.decode_batch(payload)
                ]
                if len(records) != log.records:
                    raise Violation(f"a log of {log.records} records has {len(records)}")
                found[self.compiled.names[uid]].update(records)
        return found

    def check_snapshot(self, snapshot: Snapshot) -> int:
        """Each record is in exactly one of a state and a log; how many are in logs."""
        taken, given = snapshot.totals(self.program, self.compiled.names)
        logged = self.logged(snapshot)
        for name in self.program.sources:
            self._check_source(name, snapshot)
        for name in self.program.operators:
            sent = self.program.sent_to(name, given)
            held = taken[name] + logged[name]
            if extra := held - sent:
                raise Violation(f"doubled at {name} in snapshot {snapshot.number}: {dict(extra)}")
            if missing := sent - held:
                raise Violation(f"lost at {name} in snapshot {snapshot.number}: {dict(missing)}")
        return sum(counter.total() for counter in logged.values())

    def _check_source(self, name: str, snapshot: Snapshot) -> None:
        for subtask, rows in enumerate(self.program.rows[name]):
            splits = snapshot.handles[name, subtask].small
            position = (splits[0][2] or 0) if splits else len(rows)
            _, given = snapshot.handles[name + SEEN, subtask].small[name]
            if given != sorted(rows[:position]):
                raise Violation(f"source {name} is at {position} and has given {given}")

    def check_end(self) -> None:
        """Nothing can happen any more: see that nothing is left."""
        for id, task in self.tasks.items():
            for channel in task.gate.channels.values():
                if len(channel) or channel.blocked:
                    raise Violation(f"{id} waits for ever; blocked: {channel.blocked}")
            if any(output.sealed or output.buffer for output in task.outputs.channels):
                raise Violation(f"{id} waits for room for ever")
            if (self.mode.closes or task.source_input is not None) and not task.ended:
                raise Violation(f"{id} has not ended")
        if self.flight is not None:
            raise Violation(f"snapshot {self.number} never ends; waits for ever")

    def check_result(self, expected: Totals) -> None:
        """All operators have taken what they take in an undisturbed run, one by one."""
        taken, _ = self.totals()
        for name in self.program.operators:
            if extra := taken[name] - expected[name]:
                raise Violation(f"the result has too much at {name}: {dict(extra)}")
            if missing := expected[name] - taken[name]:
                raise Violation(f"the result lacks at {name}: {dict(missing)}")
        for task in self.tasks.values():
            for uid, backend in task.backends.items():
                if dict(backend.scan("count")) != Counter(map(key_of, task.taken[uid])):
                    raise Violation(f"the state of {self.compiled.names[uid]} is not its records'")

    def close(self) -> None:
        """Close what is open on disk."""
        for task in self.tasks.values():
            task.close()


def _is_batch(element: Any) -> bool:
    return isinstance(element, RecordBatch | EncodedBatch)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in node.children:
        yield from _walk(child)


def shown(element: Element) -> Any:
    """An element as a value."""
    if isinstance(element, RecordBatch):
        return tuple(element.rows())
    if isinstance(element, EncodedBatch):
        return bytes(element.payload)
    return element.number if isinstance(element, Barrier) else "end"


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
