"""Builds the tasks of one worker from the job's plan: operators, partitioners, state, channels.

Everything is made here and nothing is run; `taskmanager.py` connects and runs what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.dataflow.config import CheckpointingMode
from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.execution_graph import (
    Chain,
    ChainedOperator,
    ChannelId,
    ExecutionGraph,
    Link,
    OperatorInfo,
)
from penstock.dataflow.graph.job_graph import Operator, OperatorKind, Partitioning
from penstock.dataflow.graph.key_groups import key_group_range
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.source import ReaderContext, SourceReader
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.network.channel_log import EdgeIdentity
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import (
    BatchTooLargeError,
    LocalOutputChannel,
    OutputChannel,
    RemoteOutputChannel,
    Sender,
)
from penstock.runtime.network.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    HashPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
    StreamPartitioner,
)
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.network.remote_channel import MAX_BATCH_BYTES
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.collect_sink import CollectWriter
from penstock.runtime.operators.columnar_fusion import fused
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.endpoints import SinkOperator
from penstock.runtime.operators.factory import make_operator
from penstock.runtime.operators.multiplexed_source import MultiplexedSourceInput
from penstock.runtime.operators.source_input import SequentialSourceInput, SourceInput
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import Records
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.system import System
from penstock.runtime.task.chain_runner import ChainRunner
from penstock.runtime.task.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.in_flight_data import BarrierRelay, InFlightRecorder
from penstock.runtime.task.operator_chain import ChainNode
from penstock.runtime.task.snapshot_driver import SnapshotProtocol
from penstock.runtime.task.task import Task, TaskListener, TaskSettings
from penstock.runtime.task.task_snapshot import CheckpointResponder
from penstock.runtime.task.write_scheduler import WriteScheduler
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.metadata.handles import OWN_INPUT
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.at_least_once import AtLeastOnceProtocol
from penstock.snapshot.protocols.synchronous import SynchronousProtocol
from penstock.snapshot.protocols.unaligned import UnalignedProtocol
from penstock.snapshot.state import KeyedBackend, SharedMemory
from penstock.snapshot.storage.job_paths import JobPaths

__all__ = ["TaskFactory", "BuiltTask"]

#: A back-edge may hold so much in memory, however little there is.
MIN_BACK_EDGE_BYTES = 64 * 1024


@dataclass
class BuiltTask:
    """A task with the signals that wake its parts.

    Arguments:
        task: the task.
        wake: wakes its loop; `persist` its checkpoint writer; `pump` the thread reader of a source.
    """

    task: Task
    wake: Signal
    persist: Signal
    pump: Signal = field(default_factory=Signal)

    @property
    def last_snapshot(self) -> int:
        """The newest snapshot that the task has made its cut for."""
        return self.task.last_snapshot

    @property
    def is_source(self) -> bool:
        """Whether the task reads a source."""
        return self.task.source_input is not None

    @property
    def runnable(self) -> bool:
        """Whether the task has something to do."""
        return not self.task.waiting or self.wake.pending

    def flush(self) -> None:
        """Send what is in the task's output buffers."""
        self.task.flush()


class TaskFactory:
    """Builds all tasks of one slot.

    Arguments:
        code: the job.
        slot: which subtasks: slot i holds subtask i of every chain.
        attempt, ordinal: the execution attempt, by its number and counted from 0.
        lineage: of the run's snapshots.
        root: the job's folder; where state and snapshots are.
        keep: whether snapshots hold state.
        system: clock and random numbers.
        codec: for records and state.
    """

    def __init__(
        self,
        code: JobCode,
        slot: int,
        attempt: int,
        ordinal: int,
        lineage: str,
        root: Path,
        keep: bool,
        system: System,
        codec: Codec,
    ) -> None:
        assert code.plan is not None
        self.plan: ExecutionGraph = code.plan
        self.slot, self.attempt, self.lineage, self.keep = slot, attempt, lineage, keep
        self.ordinal = ordinal
        self.paths = JobPaths(root)
        self.code, self.system, self.codec = code, system, codec
        self.config = code.config
        self.unaligned = self.config.checkpointing_mode is CheckpointingMode.UNALIGNED
        self._relay = BarrierRelay()
        self.gates: dict[int, InputGate] = {}
        self._tasks: list[Task] = []
        self._write_scheduler = WriteScheduler(
            system.clock, system.runnable, lambda: all(task.waiting for task in self._tasks)
        )
        self.signals: dict[int, tuple[Signal, Signal]] = {}
        self.chains = [chain for chain in self.plan.chains if slot < chain.parallelism]
        keyed = [c for c in self.chains if c.root.operator.kind.keyed]
        memory = self.config.memory_bytes
        self.state_memory = memory // max(1, len(keyed))
        back = sum(
            id.target == slot
            for link in self.plan.links
            if link.is_back_edge
            for id in self.plan.channels(link)
        )
        #: An eighth of the memory for all back-edges together; what is more goes to disk.
        self.back_edge_memory = max(MIN_BACK_EDGE_BYTES, memory // 8 // max(1, back))
        self.shared = SharedMemory(memory // 4) if keyed else None
        self._operators = {operator.id: operator for operator in code.graph.operators}

    def prepare_inputs(self) -> dict[ChannelId, InputChannel]:
        """Make the gates and their channels, so that peers can connect to them."""
        channels: dict[ChannelId, InputChannel] = {}
        for chain in self.chains:
            wake = Signal()
            self.signals[chain.id] = (wake, Signal())
            gate = self.gates[chain.id] = InputGate(wake.set, self.system.clock)
            for number in chain.inputs:
                link = self.plan.links[number]
                for id in self.plan.channels(link):
                    if id.target != self.slot:
                        continue
                    if link.is_back_edge:
                        channels[id] = back_edge = self._back_edge(id, link, gate)
                        gate.add_back_edge(back_edge)
                        continue
                    if self.unaligned:
                        channels[id] = logged = self._logged(id, link, gate)
                        gate.add_recorded(logged)
                        continue
                    channels[id] = gate.add(id, self._capacity(id))
        return channels

    def _identity(self, link: Link) -> EdgeIdentity:
        producer, consumer = self.plan.operator(link.producer), self.plan.operator(link.consumer)
        return EdgeIdentity(
            producer.uid,
            consumer.uid,
            link.input,
            link.partitioning.value,
            f"{producer.name!r} → {consumer.name!r}",
        )

    def _logged(self, id: ChannelId, link: Link, gate: InputGate) -> RecordedChannel:
        return RecordedChannel(
            id,
            gate,
            self._capacity(id),
            self.system.clock,
            edge=self._identity(link),
            encode=self._encoder(link),
            eager=True,
        )

    def _capacity(self, id: ChannelId) -> int:
        # Within a process more than one batch under way hides no latency, and pushes what was
        # just made out of the processor's cache before it is used.
        return 1 if id.source == self.slot else self.config.channel_batches

    def _back_edge(self, id: ChannelId, link: Link, gate: InputGate) -> FeedbackChannel:
        return FeedbackChannel(
            id,
            gate,
            self.config.channel_batches,
            self.system.clock,
            edge=self._identity(link),
            encode=self._encoder(link),
            eager=self.unaligned,
            folder=self.paths.spill(self.attempt, id.link, id.source, id.target),
            memory_bytes=self.back_edge_memory,
        )

    def outgoing(self) -> list[ChannelId]:
        """The channels from this slot to others, which must be connected before `build`."""
        return [
            id
            for chain in self.chains
            for number in chain.outputs
            for id in self.plan.channels(self.plan.links[number])
            if id.source == self.slot and id.target != self.slot
        ]

    def build(
        self,
        senders: dict[ChannelId, Sender],
        listener: TaskListener,
        responder: Callable[[int], CheckpointResponder],
        request_split: Callable[[int], None],
    ) -> list[BuiltTask]:
        """Make the tasks.

        Arguments:
            senders: the sending halves of `outgoing`.
            listener: hears of the tasks.
            responder: makes, for a chain, what reports its snapshots.
            request_split: asks for a split for the source of a chain.
        """
        return [
            self._task(chain, senders, listener, responder(chain.id), request_split)
            for chain in self.chains
        ]

    def _task(
        self,
        chain: Chain,
        senders: dict[ChannelId, Sender],
        listener: TaskListener,
        responder: CheckpointResponder,
        request_split: Callable[[int], None],
    ) -> BuiltTask:
        wake, persist = self.signals[chain.id]
        outputs: list[OutputChannel] = []
        backends: dict[str, KeyedBackend] = {}
        root = self._node(chain.root, senders, outputs, backends, wake)
        pump = Signal()

        def wake_source() -> None:
            wake.set()
            pump.set()

        source_input: SourceInput | None = None
        if chain.is_source:
            context = ReaderContext(chain.root.operator.uid, self.slot, chain.parallelism)
            source = self._operators[chain.root.operator.id].function

            def create_reader() -> SourceReader:
                with calling(chain.root.operator.name, "the source could not create a reader"):
                    reader: SourceReader = source.create_reader(context)
                return reader

            clock, request = self.system.clock, partial(request_split, chain.id)
            if source.bounded:
                source_input = SequentialSourceInput(create_reader(), clock, request, wake_source)
            else:
                source_input = MultiplexedSourceInput(create_reader, clock, request, wake_source)
        gate = self.gates[chain.id]
        checkpoint_writer = CheckpointWriter(
            subtask=self.slot,
            lineage=self.lineage,
            attempt=self.attempt,
            backends=backends,
            responder=responder,
            paths=self.paths,
            clock=self.system.clock,
            write_scheduler=self._write_scheduler,
            inline_threshold=self.config.inline_threshold,
        )
        operators = [node.operator for node in root.walk()]
        end_of_input = EndOfInputTracker(gate.channels, self._outside(chain), operators)
        task = Task(
            id=(chain.id, self.slot),
            name=chain.name,
            chain=ChainRunner(root, self.codec, end_of_input),
            gate=gate,
            outputs=outputs,
            protocol=self._protocol(gate),
            checkpoint_writer=checkpoint_writer,
            end_of_input=end_of_input,
            listener=listener,
            settings=TaskSettings(
                clock=self.system.clock,
                timer=self.system.timer,
                buffer_timeout=self.config.buffer_timeout_seconds,
                target_seconds=self.config.buffer_debloat_target_seconds,
                keep_state=self.keep,
            ),
            source_input=source_input,
            in_flight=self._in_flight(chain.root.operator),
        )
        self._tasks.append(task)
        return BuiltTask(task, wake, persist, pump)

    def _protocol(self, gate: InputGate) -> SnapshotProtocol:
        inputs, back_edges = gate.channels, gate.back_edges
        match self.config.checkpointing_mode:
            case CheckpointingMode.AT_LEAST_ONCE:
                return AtLeastOnceProtocol(inputs, back_edges)
            case CheckpointingMode.SYNCHRONOUS:
                return SynchronousProtocol(inputs, back_edges)
            case CheckpointingMode.UNALIGNED:
                patient = self.config.aligned_checkpoint_timeout_seconds > 0
                return UnalignedProtocol(inputs, back_edges, align_first=patient)
        if back_edges:
            return AlignedCyclicProtocol(inputs, back_edges)
        return AlignedProtocol(inputs)

    def _in_flight(self, root: OperatorInfo) -> InFlightRecorder | None:
        if not self.unaligned:
            return None
        turns = Partitioning.REBALANCE.value
        own = EdgeIdentity(root.uid, root.uid, OWN_INPUT, turns, repr(root.name))
        timeout = self.config.aligned_checkpoint_timeout_seconds
        encode = self.codec.encode_batch
        return InFlightRecorder(self._relay, self.slot, timeout, own, encode, self.keep)

    def _outside(self, chain: Chain) -> list[ChannelId] | None:
        """The task's channels from outside of its loop; None if it is in none."""
        loop = self.plan.loop_of(chain.id)
        if loop is None:
            return None
        links = self.plan.links
        return [
            id
            for id in self.gates[chain.id].channels
            if self.plan.loop_of(links[id.link].source) != loop
        ]

    def _node(
        self,
        node: ChainedOperator,
        senders: dict[ChannelId, Sender],
        outputs: list[OutputChannel],
        backends: dict[str, KeyedBackend],
        wake: Signal,
    ) -> ChainNode:
        operator = self._operator(node, backends)
        links = [self.plan.links[number] for number in node.links]
        partitioners = [self._partitioner(link, senders, outputs, wake) for link in links]
        for link, partitioner in zip(links, partitioners, strict=True):
            partitioner.name_user_code(self._place(link))
        children = [self._node(child, senders, outputs, backends, wake) for child in node.children]
        loop_of = self.plan.loop_of
        inner = frozenset(
            partitioner
            for link, partitioner in zip(links, partitioners, strict=True)
            if loop_of(link.source) is not None and loop_of(link.source) == loop_of(link.target)
        )
        # Of what stays inside a loop the task has to see whether a hook has emitted it.
        if len(partitioners) == 1 and not children and not inner:
            alone = fused(operator, partitioners[0])
            if alone is not None:
                return ChainNode(alone, [], [])
        return ChainNode(operator, children, partitioners, inner)

    def _operator(
        self, node: ChainedOperator, backends: dict[str, KeyedBackend]
    ) -> RunningOperator:
        info = node.operator
        context = OperatorContext(
            info.name,
            info.uid,
            self.slot,
            info.parallelism,
            self.plan.max_parallelism,
            self.ordinal,
            self.codec,
        )
        operator: Operator = self._operators[info.id]
        if info.kind is OperatorKind.SINK:
            writer_context = WriterContext(
                info.uid, info.name, self.slot, info.parallelism, self.attempt, self.lineage
            )
            with calling(info.name, "the sink could not create a writer"):
                writer = operator.function.create_writer(writer_context)
            if isinstance(writer, CollectWriter):
                writer.codec = self.codec
            return SinkOperator(writer, context)
        if info.kind.keyed:
            context.backend = backends[info.uid] = KeyedBackend(
                folder=self.paths.task_work(self.attempt, info.uid, self.slot),
                codec=self.codec,
                canonical=canonical,
                max_parallelism=self.plan.max_parallelism,
                groups=key_group_range(self.slot, self.plan.max_parallelism, info.parallelism),
                inline_threshold=self.config.inline_threshold,
                memory_budget=self.state_memory,
                clock=self.system.timer,
                shared=self.shared,
            )
        return make_operator(info.kind, operator.function, operator.key_selector, context)

    def _partitioner(
        self,
        link: Link,
        senders: dict[ChannelId, Sender],
        outputs: list[OutputChannel],
        wake: Signal,
    ) -> StreamPartitioner:
        own: list[OutputChannel] = []
        for id in self.plan.channels(link):
            if id.source == self.slot:
                own.append(self._output_channel(id, senders, wake))
        outputs += own
        edge = self.code.graph.edges[link.edge]
        match link.partitioning:
            case Partitioning.FORWARD:
                return ForwardPartitioner(own)
            case Partitioning.HASH:
                targets = self.plan.chains[link.target].parallelism
                selector = method_of(edge.selector, "get_key")
                return HashPartitioner(own, selector, self.plan.max_parallelism, targets)
            case Partitioning.REBALANCE | Partitioning.RESCALE:
                # Subtasks begin at different outputs, or the first would get all of short streams.
                return RebalancePartitioner(own, self.slot)
            case Partitioning.SHUFFLE:
                return ShufflePartitioner(own, self.system.rng)
            case Partitioning.BROADCAST:
                return BroadcastPartitioner(own, self.codec.copy_mutable)
            case Partitioning.GLOBAL:
                return GlobalPartitioner(own)
            case Partitioning.CUSTOM:
                return CustomPartitioner(
                    own,
                    method_of(edge.selector, "get_key"),
                    method_of(edge.partitioner, "partition"),
                )

    def _place(self, link: Link) -> str | None:
        """Return what the user code of a link is to its consumer, for errors."""
        what = {Partitioning.HASH: "key", Partitioning.CUSTOM: "partitioner"}.get(link.partitioning)
        return None if what is None else f"{what} of {self.plan.operator(link.consumer).name}"

    def _encoder(self, link: Link) -> Callable[[Records], bytes]:
        """The codec, with errors that name the producer: batches are encoded long after it ran."""
        name = self.plan.operator(link.producer).name

        def encode(records: Records) -> bytes:
            try:
                return self.codec.encode_batch(records)
            except JobError as error:
                error.operator = error.operator or name
                raise

        return encode

    def _limited(self, link: Link) -> Callable[[Records], bytes]:
        """Return the encoder of a link to other workers, whose frames are limited."""
        encode, name = self._encoder(link), self.plan.operator(link.producer).name

        def limited(records: Records) -> bytes:
            data = encode(records)
            if len(data) > MAX_BATCH_BYTES:
                raise BatchTooLargeError(
                    f"a record of {len(data):,} bytes cannot be sent to another worker: the limit "
                    f"is {MAX_BATCH_BYTES:,} bytes; emit it in parts, or emit the name of a file "
                    f"that holds it",
                    operator=name,
                )
            return data

        return limited

    def _output_channel(
        self, id: ChannelId, senders: dict[ChannelId, Sender], wake: Signal
    ) -> OutputChannel:
        link = self.plan.links[id.link]
        if id.target != self.slot:
            config = self.config
            encode = self._limited(link)
            return self._told(
                RemoteOutputChannel(senders[id], encode, config.batch_records, config.batch_bytes),
                id,
            )
        channel = self.gates[link.target].channels[id]
        output = LocalOutputChannel(channel, self.config.batch_records)

        def give() -> None:
            # Only a sender that waits needs to be told.
            if output.waiting:
                wake.set()

        if not link.is_back_edge:  # whose sender never waits
            channel.attach_sender(give)
        return self._told(output, id)

    def _told(self, output: OutputChannel, id: ChannelId) -> OutputChannel:
        """The output, told which channel it is the end of."""
        output.set_identity(self._identity(self.plan.links[id.link]), id.target)
        return output
