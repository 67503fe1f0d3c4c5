"""A task: one chain's parallel instance, at work.

The core is synchronous: `step` takes one element from the gate (or reads its source), processes
a slice of a batch, or does what the snapshot protocol commands, and returns. It never awaits, so
every interleaving of channels can be tested through it. `run` is the loop around it: it waits
when there is nothing to do, and yields between slices.

User code runs in slices of about `SLICE_SECONDS`; outlets are looked at after each slice, so
that a record does not wait long in a buffer behind a busy function.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.dataflow.errors import JobError, PenstockError, ProtocolError
from penstock.dataflow.source import Split
from penstock.runtime.channel import Channel
from penstock.runtime.codec import Codec
from penstock.runtime.elements import Barrier, Batch, Element, EncodedBatch, EndOfInput
from penstock.runtime.gate import InputGate
from penstock.runtime.operators import RunningOperator, SinkOperator, explain, record_at_hand
from penstock.runtime.output import Outlet, Router
from penstock.runtime.persist import Cut, Persister
from penstock.runtime.source import SourceFeed
from penstock.snapshot.acyclic import AcyclicProtocol
from penstock.snapshot.events import (
    BarrierArrived,
    Block,
    Broadcast,
    Command,
    CopyState,
    SnapshotAborted,
    SnapshotKind,
    Unblock,
)
from penstock.snapshot.state import KeyedBackend

__all__ = ["ChainNode", "Task", "TaskListener"]

#: How long user code runs before the engine looks up. So short that what one slice makes is
#: still in the processor's cache when the next operator of the chain takes it.
SLICE_SECONDS = 0.001
#: And while a snapshot waits to be written, which takes turns with records.
SNAPSHOT_SLICE_SECONDS = 0.0004
#: Work that may wait in a channel, which bounds how long a barrier travels.
IN_FLIGHT_SECONDS = 0.010


class TaskListener(Protocol):
    """Hears what becomes of a task; the TaskManager."""

    def input_ended(self, task: Task) -> None:
        """The task has processed all of its bounded input."""


@dataclass
class ChainNode:
    """An operator of the chain, what is fused behind it, and the links that leave it."""

    operator: RunningOperator
    children: list[ChainNode]
    routers: list[Router]

    @property
    def consumers(self) -> int:
        """How many take its output; with more than one, mutable records are copied."""
        return len(self.children) + len(self.routers)


class Task:
    """One parallel instance of a chain.

    Arguments:
        id: (chain, subtask).
        name: of the chain.
        root: the chain's operators.
        gate: its input channels.
        outlets: all its outlets, over all links.
        protocol: the snapshot protocol of this task.
        persister: makes cuts durable.
        codec: decodes batches.
        listener: hears what becomes of it.
        clock: seconds, for waiting; virtual in a simulation.
        timer: seconds, finer, for how long work takes.
        feed: the source's reader and splits, if the chain begins with a source.
        backends: keyed state per operator uid.
        buffer_timeout: a record waits in a buffer at most so many seconds.
        keep_state: False if snapshots are kept nowhere, and only commit.
    """

    def __init__(
        self,
        *,
        id: tuple[int, int],
        name: str,
        root: ChainNode,
        gate: InputGate,
        outlets: list[Outlet],
        protocol: AcyclicProtocol,
        persister: Persister,
        codec: Codec,
        listener: TaskListener,
        clock: Callable[[], float],
        timer: Callable[[], float] = time.perf_counter,
        feed: SourceFeed | None = None,
        backends: dict[str, KeyedBackend] | None = None,
        buffer_timeout: float = 0.005,
        keep_state: bool = True,
    ) -> None:
        self.id, self.name = id, name
        self.root, self.gate, self.outlets = root, gate, outlets
        self.persister = persister
        self.feed = feed
        self.backends = backends or {}
        self._protocol = protocol
        self._codec = codec
        self._listener = listener
        self._clock, self._timer = clock, timer
        self._buffer_timeout = buffer_timeout
        self._keep_state = keep_state
        self._operators: list[RunningOperator] = []
        self._collect(root)
        #: Barriers and splits from the JobManager, in the order in which it sent them.
        self._inbox: deque[tuple[str, Any]] = deque()
        #: The rest of a batch that is processed in slices.
        self._rest: list[Any] = []
        self._slice = 64
        self._ended_channels: set[Hashable] = set()
        self._kinds: dict[int, SnapshotKind] = {}
        self._aligning_since: float | None = None
        self.ended = False
        #: A final barrier has passed: the source does not emit any more.
        self.paused = False
        self.busy_seconds = self.blocked_seconds = 0.0
        self._blocked_since: float | None = None

    def _collect(self, node: ChainNode) -> None:
        self._operators.append(node.operator)
        for child in node.children:
            self._collect(child)

    @property
    def operators(self) -> list[RunningOperator]:
        """The chain's operators, parents first."""
        return self._operators

    # ---- from the JobManager

    def inject(self, number: int, kind: SnapshotKind) -> None:
        """Barrier `number` for a source."""
        self._inbox.append(("barrier", Barrier(number, kind)))

    def assign(self, split: Split, position: Any = None) -> None:
        """A split for a source."""
        self._inbox.append(("split", (split, position)))

    def no_more_splits(self) -> None:
        """There are no more splits for this source."""
        self._inbox.append(("no more", None))

    def abort(self, number: int) -> None:
        """Snapshot `number` was given up."""
        self._do(self._protocol.handle(SnapshotAborted(number)))
        self._aligning_since = None
        self.persister.abort(number)

    # ---- life

    def open(self) -> None:
        """Open all functions, the last of the chain first, so that each can be fed."""
        for operator in reversed(self._operators):
            try:
                operator.open()
            except Exception as error:
                raise explain(error, operator, []) from error

    def close(self) -> None:
        """Close functions, readers, writers and state; all of them, whatever one raises."""
        failures: list[Exception] = []
        closers: list[Callable[[], None]] = [operator.close for operator in self._operators]
        if self.feed is not None:
            closers.append(self.feed.close)
        closers += [backend.close for backend in self.backends.values()]
        for close in closers:
            try:
                close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    # ---- the core

    def step(self) -> bool:
        """Make one piece of progress; False if there is nothing to do, or no room for output."""
        if not self.push():
            return False
        if self._rest:
            self._process_slice()
            return True
        if self.backends and any(backend.must_relieve for backend in self.backends.values()):
            return False
        if self._inbox:
            self._obey(*self._inbox.popleft())
            return True
        taken = self.gate.take()
        if taken is None:
            return self.feed is not None and self._read(self.feed)
        channel, element = taken
        self._receive(channel, element)
        return True

    def push(self) -> bool:
        """Send what is sealed as far as credits go; False if some of it must wait."""
        clear = True
        for outlet in self.outlets:
            if outlet.waiting and not outlet.push():
                clear = False
        if clear:
            if self._blocked_since is not None:
                self.blocked_seconds += self._clock() - self._blocked_since
                self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._clock()
        return clear

    def flush(self) -> bool:
        """The task is about to wait: seal and send everything. False if some must wait."""
        for outlet in self.outlets:
            if outlet.buffer:
                outlet.seal()
        for operator in self._operators:
            if isinstance(operator, SinkOperator):
                operator.writer.flush()
        return self.push()

    def _receive(self, channel: Channel, element: Element) -> None:
        if isinstance(element, EncodedBatch):
            records = self._codec.decode_batch(element.payload)
            channel.count_decoded(len(records))
            self._rest = records
            self._process_slice()
        elif isinstance(element, Batch):
            self._rest = element.records
            self._process_slice()
        elif isinstance(element, Barrier):
            self._kinds[element.number] = element.kind
            if self._aligning_since is None:
                self._aligning_since = self._clock()
            self._do(self._protocol.handle(BarrierArrived(channel.id, element.number)))
        else:
            self._ended_channels.add(channel.id)
            if len(self._ended_channels) == len(self.gate.channels):
                self._end()

    def _obey(self, what: str, value: Any) -> None:
        if what == "barrier":
            self._kinds[value.number] = value.kind
            self._do(self._protocol.handle(BarrierArrived(None, value.number)))
            return
        if self.feed is None:
            raise ProtocolError(f"{what} for task {self.id}, which is no source")
        if what == "split":
            self.feed.assign(*value)
        else:
            self.feed.no_more()

    def _read(self, feed: SourceFeed) -> bool:
        if self.ended or self.paused:
            return False
        if feed.ended:
            self._end()
            return True
        operator = self.root.operator
        try:
            records = feed.read(self._slice)
        except Exception as error:
            raise explain(error, operator, []) from error
        if records is None:
            return feed.ended
        if records:
            self._rest = records
            self._process_slice()
            return True
        # Nothing is due: wait until it is, unless the split has just ended.
        return feed.wake_at is None and not feed.pumping

    def _end(self) -> None:
        for outlet in self.outlets:
            outlet.mark(EndOfInput())
        self.ended = True
        self.push()
        self._listener.input_ended(self)

    def _process_slice(self) -> None:
        rest, size = self._rest, self._slice
        if len(rest) <= size:
            records, self._rest = rest, []
        else:
            records, self._rest = rest[:size], rest[size:]
        began = self._timer()
        self._run(self.root, records)
        seconds = self._timer() - began
        self.busy_seconds += seconds
        self._adapt(len(records), seconds)
        self._seal()
        self.push()

    def _adapt(self, records: int, seconds: float) -> None:
        """Size the next slices by what this one took, and tell senders how much to send."""
        per_record = max(seconds, 1e-7) / records
        wanted = SNAPSHOT_SLICE_SECONDS if self.persister.pending else SLICE_SECONDS
        fit = int(wanted / per_record)
        # Down at once; up by doubling, and only on evidence of a full slice.
        if fit < self._slice:
            self._slice = max(1, fit)
        elif records >= self._slice:
            self._slice = min(fit, self._slice * 2, 1 << 16)
        if self.gate.channels:
            desired = max(1, int(IN_FLIGHT_SECONDS / 4 / per_record))
            for channel in self.gate.channels.values():
                channel.desired_records = desired

    def _seal(self) -> None:
        now = -1.0
        for outlet in self.outlets:
            buffer = outlet.buffer
            if not buffer:
                continue
            if len(buffer) >= outlet.limit:
                outlet.seal_full()
                if not buffer:
                    continue
            if now < 0:
                now = self._clock()
            if outlet.since is None:
                outlet.since = now
            elif now - outlet.since >= self._buffer_timeout:
                outlet.seal()

    def _run(self, node: ChainNode, records: list[Any]) -> None:
        operator = node.operator
        operator.records_in += len(records)
        try:
            out = operator.process(records)
        except Exception as error:
            raise explain(error, operator, records) from error
        if not out:
            return
        operator.records_out += len(out)
        copies = node.consumers > 1
        for child in node.children:
            self._run(child, self._codec.copy_mutable(out) if copies else out)
        for router in node.routers:
            routed = self._codec.copy_mutable(out) if copies else out
            try:
                router.route(routed)
            except JobError as error:
                error.operator = error.operator or operator.context.name
                error.record = error.record or record_at_hand(router.iterator, routed)
                raise
            except PenstockError:
                raise
            except Exception as error:
                operator.iterator = router.iterator
                raise explain(error, operator, routed) from error

    # ---- snapshots

    def _do(self, commands: list[Command]) -> None:
        """Do what the protocol says, in its order."""
        for command in commands:
            match command:
                case Block(channel):
                    self.gate.channels[channel].block()  # type: ignore[index]
                case Unblock(channels):
                    for channel in channels:
                        self.gate.channels[channel].unblock()  # type: ignore[index]
                case CopyState(number):
                    self._copy_state(number)
                case Broadcast(number):
                    kind = self._kinds.get(number, SnapshotKind.CHECKPOINT)
                    for outlet in self.outlets:
                        outlet.mark(Barrier(number, kind))
                    self._kinds = {n: k for n, k in self._kinds.items() if n > number}
                    self.push()

    def _copy_state(self, number: int) -> None:
        kind = self._kinds[number]
        cut = Cut(number, kind)
        if self._aligning_since is not None:
            cut.aligned_seconds = self._clock() - self._aligning_since
            self._aligning_since = None
        if self._keep_state:
            cut.captures = {uid: b.capture(number) for uid, b in self.backends.items()}
            if self.feed is not None:
                cut.small[self.root.operator.context.uid] = self.feed.snapshot()
        for operator in self._operators:
            if isinstance(operator, SinkOperator):
                staged = operator.writer.prepare(number)
                if staged is not None:
                    cut.staged[operator.context.uid] = staged
        if kind is SnapshotKind.FINAL:
            self.paused = True
        self.persister.add(cut)

    # ---- the loop

    async def run(
        self,
        wait: Callable[[float | None], Awaitable[None]],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        """Work for ever; cancelled when the job is over.

        Arguments:
            wait: until the task is woken, or until a time on its clock.
            pause: let others run.
        """
        yielded = self._timer()
        while True:
            if self.step():
                now = self._timer()
                if now - yielded >= SLICE_SECONDS or self.persister.pending:
                    await pause()
                    yielded = self._timer()
                continue
            if self.flush() and self._can_go_on():
                continue
            self.persister.idle = not self.gate.ready
            await wait(self._wake_at())
            self.persister.idle = False
            yielded = self._timer()

    def _wake_at(self) -> float | None:
        """When the source has records again; None if something else must happen before."""
        held = self.paused or bool(self._rest) or self._blocked_since is not None
        return None if held or self.feed is None else self.feed.wake_at

    def _can_go_on(self) -> bool:
        """Whether there is something to take after a flush that was not there before it."""
        blocked = any(backend.must_relieve for backend in self.backends.values())
        return not blocked and bool(self._rest or self._inbox or self.gate.ready)
