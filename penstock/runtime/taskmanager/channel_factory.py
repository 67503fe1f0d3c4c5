"""Create the input and output channels of one slot, and its partitioners.

Input channels are created first, so that the tasks of other workers can connect to them. Output
channels are created with the tasks, after the connections to other workers were opened.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from penstock.dataflow.errors import JobError
from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.execution_graph import ChannelId, Link
from penstock.dataflow.graph.job_graph import Partitioning
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
from penstock.runtime.network.resumable_channel import ResumableChannel
from penstock.runtime.network.step_logs import LoggingSender, StepLogs
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.system import System
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.task_signals import TaskSignals

#: The minimum memory of a feedback channel, in bytes, even if the job has little memory.
MIN_FEEDBACK_BYTES = 64 * 1024


class ChannelFactory:
    """Creates the channels of one slot.

    Arguments:
        descriptor: describes the tasks of the slot.
        system: provides the clock and the random number generator.
        feedback_bytes: the memory of a feedback channel, in bytes; further records are written to
            disk. With None, the feedback channels of the slot share an eighth of the job's memory.
    """

    def __init__(
        self,
        descriptor: DeploymentDescriptor,
        system: System,
        feedback_bytes: int | None = None,
    ) -> None:
        self._descriptor, self._system = descriptor, system
        self._plan, self._config = descriptor.plan, descriptor.config
        self._subtask = descriptor.subtask
        self._feedback_bytes = feedback_bytes or self._share_of_memory()
        #: The signals that wake the parts of each task, by the id of its chain.
        self.signals = {chain.id: TaskSignals() for chain in descriptor.chains}
        self.gates: dict[int, InputGate] = {}
        #: The logs of steps that the worker knows; None if no task logs its steps.
        self.step_logs = StepLogs(descriptor.restored or 0) if self._plan.logged else None

    def _share_of_memory(self) -> int:
        back_edges = sum(
            len(self._plan.feedback_channels(chain.id, self._subtask))
            for chain in self._descriptor.chains
        )
        return max(MIN_FEEDBACK_BYTES, self._config.memory_bytes // 8 // max(1, back_edges))

    # ---- inputs

    def create_inputs(self) -> dict[ChannelId, InputChannel]:
        """Create the input gates, and return all their channels by id."""
        for chain in self._descriptor.chains:
            wake = self.signals[chain.id].loop.set
            gate = self.gates[chain.id] = InputGate(wake, self._system.clock)
            for number in chain.inputs:
                link = self._plan.links[number]
                for id in self._plan.channels(link):
                    if id.target == self._subtask:
                        self._add_input(id, link, gate)
        gates = self.gates.values()
        return {id: channel for gate in gates for id, channel in gate.channels.items()}

    def _add_input(self, id: ChannelId, link: Link, gate: InputGate) -> None:
        if link.is_back_edge:
            gate.add_back_edge(self._feedback_channel(id, link, gate))
        elif self._descriptor.unaligned:
            gate.add_recorded(self._recorded_channel(id, link, gate))
        elif self._plan.isolated:
            capacity, clock = self._capacity(id), self._system.clock
            base = self._descriptor.restored or 0
            learn = None if self.step_logs is None else self.step_logs.learn
            gate.add_resumable(ResumableChannel(id, gate, capacity, clock, base, learn))
        else:
            gate.add(id, self._capacity(id))

    def _capacity(self, id: ChannelId) -> int:
        # A channel within a process has no network latency, so one batch in flight is enough. A
        # second batch would only displace the first one from the processor's cache.
        return 1 if self._is_local(id) else self._config.channel_batches

    def _is_local(self, id: ChannelId) -> bool:
        """Return whether both ends of a channel are in one worker."""
        sender, receiver = self._plan.ends(id)
        return sender == receiver

    def _recorded_channel(self, id: ChannelId, link: Link, gate: InputGate) -> RecordedChannel:
        return RecordedChannel(
            id,
            gate,
            self._capacity(id),
            self._system.clock,
            edge=self._edge_of(link),
            encode=self._encoder(link),
            eager=True,
        )

    def _feedback_channel(self, id: ChannelId, link: Link, gate: InputGate) -> FeedbackChannel:
        descriptor = self._descriptor
        return FeedbackChannel(
            id,
            gate,
            self._config.channel_batches,
            self._system.clock,
            edge=self._edge_of(link),
            encode=self._encoder(link),
            eager=descriptor.unaligned,
            folder=descriptor.paths.spill(descriptor.attempt, id.link, id.source, id.target),
            memory_bytes=self._feedback_bytes,
        )

    def _edge_of(self, link: Link) -> EdgeIdentity:
        producer, consumer = self._plan.operator(link.producer), self._plan.operator(link.consumer)
        return EdgeIdentity(
            producer.uid,
            consumer.uid,
            link.input,
            link.partitioning.value,
            f"{producer.name!r} → {consumer.name!r}",
        )

    # ---- outputs

    def remote_outputs(self) -> dict[ChannelId, Callable[[], None]]:
        """Return the channels to other slots, with functions that wake their senders."""
        return {
            id: self.signals[chain.id].loop.set
            for chain in self._descriptor.chains
            for number in chain.outputs
            for id in self._plan.channels(self._plan.links[number])
            if id.source == self._subtask and not self._is_local(id)
        }

    def create_partitioner(
        self, link: Link, senders: dict[ChannelId, Sender], wake: Signal
    ) -> StreamPartitioner:
        """Create the partitioner of a link, with its output channels.

        Arguments:
            link: the link whose records the partitioner distributes.
            senders: the sending halves of the connections, for the channels of `remote_outputs`.
            wake: the signal that wakes the sending task.
        """
        outputs = [
            self._output_channel(id, link, senders, wake)
            for id in self._plan.channels(link)
            if id.source == self._subtask
        ]
        partitioner = self._partitioner(link, outputs)
        partitioner.name_user_code(self._place_of(link))
        return partitioner

    def _partitioner(self, link: Link, outputs: list[OutputChannel]) -> StreamPartitioner:
        edge = self._descriptor.code.graph.edges[link.edge]
        match link.partitioning:
            case Partitioning.FORWARD:
                return ForwardPartitioner(outputs)
            case Partitioning.HASH:
                targets = self._plan.chains[link.target].parallelism
                selector = method_of(edge.selector, "get_key")
                return HashPartitioner(outputs, selector, self._plan.max_parallelism, targets)
            case Partitioning.REBALANCE | Partitioning.RESCALE:
                # Each subtask begins at another output. Otherwise the first output would receive
                # all records of short streams.
                return RebalancePartitioner(outputs, self._subtask)
            case Partitioning.SHUFFLE:
                return ShufflePartitioner(outputs, self._random_numbers(link))
            case Partitioning.BROADCAST:
                return BroadcastPartitioner(outputs, self._descriptor.codec.copy_mutable)
            case Partitioning.GLOBAL:
                return GlobalPartitioner(outputs)
            case Partitioning.CUSTOM:
                return CustomPartitioner(
                    outputs,
                    method_of(edge.selector, "get_key"),
                    method_of(edge.partitioner, "partition"),
                )

    def _random_numbers(self, link: Link) -> random.Random:
        """Return the random numbers of a link's partitioner.

        If the task may restart alone, they are the same in each attempt from the same snapshot.
        """
        if not self._plan.isolated:
            return self._system.rng
        run, restored = self._system.run or self._descriptor.lineage, self._descriptor.restored
        return random.Random(f"{run} {link.id} {self._subtask} {restored or 0}")

    def _place_of(self, link: Link) -> str | None:
        """Return the name that errors use for a link's user function.

        An example is "key of Count". Return None if the link has no user function.
        """
        what = {Partitioning.HASH: "key", Partitioning.CUSTOM: "partitioner"}.get(link.partitioning)
        return None if what is None else f"{what} of {self._plan.operator(link.consumer).name}"

    def _output_channel(
        self, id: ChannelId, link: Link, senders: dict[ChannelId, Sender], wake: Signal
    ) -> OutputChannel:
        output: OutputChannel
        if self._is_local(id):
            output = self._local_output(self.gates[link.target].channels[id], link, wake)
        else:
            config, encode = self._config, self._limited_encoder(link)
            sender = senders[id]
            # A task of a loop restarts with all tasks of the loop that send it records. So none of
            # them needs the steps that have come around the loop.
            if self.step_logs is not None and not link.is_back_edge:
                sender = LoggingSender(sender, self.step_logs)
            output = RemoteOutputChannel(sender, encode, config.batch_records, config.batch_bytes)
        aligned = link.partitioning is Partitioning.BROADCAST and not link.is_back_edge
        output.set_identity(self._edge_of(link), id.target, aligned, link.id)
        return output

    def _local_output(self, channel: InputChannel, link: Link, wake: Signal) -> OutputChannel:
        output = LocalOutputChannel(channel, self._config.batch_records)

        def wake_sender() -> None:
            if output.sealed:
                wake.set()

        # A sender into a back-edge never waits for credits, so it need not be woken.
        if not link.is_back_edge:
            channel.attach_sender(wake_sender)
        return output

    def _encoder(self, link: Link) -> Callable[[RecordBatch], bytes]:
        """Return a function that encodes batches, and adds the producer's name to errors.

        A batch is encoded long after the producer has emitted its records. So the error itself does
        not contain the producer's name.
        """
        name = self._plan.operator(link.producer).name
        encode_batch = self._descriptor.codec.encode_record_batch

        def encode(batch: RecordBatch) -> bytes:
            try:
                return encode_batch(batch)
            except JobError as error:
                error.operator = error.operator or name
                raise

        return encode

    def _limited_encoder(self, link: Link) -> Callable[[RecordBatch], bytes]:
        """Return a function that encodes batches, and raises an error for too large ones."""
        encode, name = self._encoder(link), self._plan.operator(link.producer).name

        def limited(batch: RecordBatch) -> bytes:
            data = encode(batch)
            if len(data) > MAX_BATCH_BYTES:
                raise BatchTooLargeError(
                    f"a record of {len(data):,} bytes cannot be sent to another worker: the limit "
                    f"is {MAX_BATCH_BYTES:,} bytes; emit it in parts, or emit the name of a file "
                    f"that holds it",
                    operator=name,
                )
            return data

        return limited
