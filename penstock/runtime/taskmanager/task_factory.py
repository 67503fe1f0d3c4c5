"""Create the tasks of one slot, with their operators, state and protocols.

`ChannelFactory` creates the channels, and `TaskRunner` runs a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.dataflow.async_io import RunIn
from penstock.dataflow.config import RuntimeExecutionMode
from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.execution_graph import Chain, ChainedOperator, ChannelId, OperatorInfo
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.graph.key_groups import key_group_range
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.graph.loop_waves import LoopWaves
from penstock.dataflow.graph.operator_names import input_names
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.source import ReaderContext, SourceReader
from penstock.runtime.network.channel_log import EdgeIdentity
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.output_channel import OutputChannel, Sender
from penstock.runtime.network.partitioners import PositionedPartitioner
from penstock.runtime.network.step_logs import Step, StepLog
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.building import OperatorPlace, TaskServices
from penstock.runtime.operators.columnar_fusion import fused
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.endpoints import SourceOperator
from penstock.runtime.operators.registry import build_operator
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.system.system import System
from penstock.runtime.task.chain_runner import ChainRunner, TypedChainRunner
from penstock.runtime.task.end_of_input import EndOfInputTracker
from penstock.runtime.task.key_sampler import KeySampler
from penstock.runtime.task.loop_watermarks import LoopPlace, LoopWatermarks
from penstock.runtime.task.operator_chain import ChainNode
from penstock.runtime.task.snapshots.checkpoint_writer import CheckpointWriter
from penstock.runtime.task.snapshots.in_flight_data import BarrierRelay, InFlightRecorder
from penstock.runtime.task.snapshots.task_snapshot import CheckpointResponder
from penstock.runtime.task.snapshots.write_scheduler import WriteScheduler
from penstock.runtime.task.source_reads import SourceReads
from penstock.runtime.task.task import Task, TaskListener
from penstock.runtime.task.task_settings import TaskSettings
from penstock.runtime.task.task_steps import TaskSteps
from penstock.runtime.taskmanager.channel_factory import ChannelFactory
from penstock.runtime.taskmanager.deployment_descriptor import DeploymentDescriptor
from penstock.runtime.taskmanager.protocol_choice import snapshot_protocol
from penstock.runtime.taskmanager.task_runner import TaskRunner
from penstock.runtime.taskmanager.task_signals import TaskSignals
from penstock.runtime.user_code.async_caller import AsyncCaller
from penstock.runtime.user_code.async_caller_factory import CallerFactory
from penstock.runtime.user_code.edge_functions import EdgeFunction, EdgeFunctions
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.metadata.handles import OWN_INPUT
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.state.engines import engine_of_kind
from penstock.snapshot.state.operator_state import OperatorStateBackend


@dataclass
class _TaskParts:
    """Collects the parts of one task while the operators of the task are created.

    Arguments:
        signals: the signals that wake the parts of the task.
        senders: the sending halves of connections to other workers, by channel.
        steps: the steps of the task; None if it need not repeat them.
        backends: the keyed state of the task's operators, by uid.
        outputs: the output channels of all links of the task.
    """

    signals: TaskSignals
    senders: dict[ChannelId, Sender]
    steps: TaskSteps | None = None
    backends: dict[str, KeyedBackend] = field(default_factory=dict)
    outputs: list[OutputChannel] = field(default_factory=list)


class TaskFactory:
    """Creates the tasks of one slot.

    Arguments:
        descriptor: describes the tasks of the slot.
        system: provides clocks and threads.
        channels: creates the channels of the slot. Its input channels must already exist.
        callers: creates the callers of asynchronous functions. Only jobs with such functions need
            it.
        repeated: called when a task has repeated all steps of its predecessor.
    """

    def __init__(
        self,
        descriptor: DeploymentDescriptor,
        system: System,
        channels: ChannelFactory,
        callers: CallerFactory | None = None,
        repeated: Callable[[], None] = lambda: None,
    ) -> None:
        self._descriptor, self._system, self._channels = descriptor, system, channels
        self._callers, self._repeated = callers, repeated
        self._plan, self._config = descriptor.plan, descriptor.config
        self._functions = {op.id: op for op in descriptor.code.graph.operators}
        self._edge_functions = EdgeFunctions()
        self._relay = BarrierRelay()
        self._tasks: list[Task] = []
        self._waves: dict[int, LoopWaves] = {}
        self._write_scheduler = WriteScheduler(
            system.clock, system.runnable, lambda: all(task.waiting for task in self._tasks)
        )
        keyed = sum(chain.root.operator.spec.keyed for chain in descriptor.chains)
        memory = self._config.memory_bytes
        self._state_memory = memory // max(1, keyed)
        # A missing RocksDB is reported now, and not when state has grown.
        self._engine = engine_of_kind(self._config.cold_store) if keyed else None
        self._shared_memory = self._engine.memory(memory // 4) if self._engine else None

    def create_tasks(
        self,
        senders: dict[ChannelId, Sender],
        listener: TaskListener,
        responder: Callable[[int], CheckpointResponder],
        request_split: Callable[[int], None],
    ) -> list[TaskRunner]:
        """Create all tasks of the slot.

        Arguments:
            senders: the sending halves of connections to other workers, by channel.
            listener: the listener that is notified when the input of a task has ended.
            responder: a function that takes the id of a chain, and returns an object that reports
                the snapshots of the chain's task to the JobManager.
            request_split: a function that takes the id of a chain, and requests a split for the
                source of that chain.
        """
        return [
            self._task(chain, senders, listener, responder(chain.id), request_split)
            for chain in self._descriptor.chains
        ]

    def _task(
        self,
        chain: Chain,
        senders: dict[ChannelId, Sender],
        listener: TaskListener,
        responder: CheckpointResponder,
        request_split: Callable[[int], None],
    ) -> TaskRunner:
        subtask, config = self._descriptor.subtask, self._config
        signals, gate = self._channels.signals[chain.id], self._channels.gates[chain.id]
        steps, reads = self._steps(chain), self._reads(chain)
        parts = _TaskParts(signals, senders, steps)
        root = self._node(chain.root, parts, chain.inputs)
        operators = [node.operator for node in root.walk()]
        typed = any(node.result_type is not None for node in root.walk())
        end_of_input = EndOfInputTracker(gate.channels, self._outside(chain), operators)
        task = Task(
            id=(chain.id, subtask),
            name=chain.name,
            chain=(TypedChainRunner if typed else ChainRunner)(
                root,
                self._descriptor.codec,
                end_of_input,
                self._second_input(chain),
                self._loop_place(chain, gate),
            ),
            gate=gate,
            outputs=parts.outputs,
            protocol=snapshot_protocol(config, gate),
            checkpoint_writer=self._checkpoint_writer(parts.backends, responder),
            end_of_input=end_of_input,
            listener=listener,
            settings=TaskSettings(
                clock=self._system.clock,
                timer=self._system.timer,
                processor=self._system.processor,
                target_seconds=config.buffer_debloat_target_seconds,
                keep_state=self._descriptor.keep,
                wall_clock=self._system.wall_clock,
                steps=steps,
                reads=reads,
            ),
            source_input=self._source_input(chain, root.operator, parts, request_split),
            in_flight=self._in_flight(chain.root.operator),
            keys=self._keys(chain),
        )
        self._tasks.append(task)
        return TaskRunner(task, signals, self._system)

    def _steps(self, chain: Chain) -> TaskSteps | None:
        if chain.is_source or (log := self._log(chain)) is None:
            return None
        return TaskSteps(log, self._to_repeat, self._system.wall_clock, self._repeated)

    def _reads(self, chain: Chain) -> SourceReads | None:
        if not chain.is_source or (log := self._log(chain)) is None:
            return None
        return SourceReads(log, self._to_repeat, self._repeated)

    def _log(self, chain: Chain) -> StepLog | None:
        """Return the log of the task of a chain; None if it logs nothing."""
        logs, descriptor = self._channels.step_logs, self._descriptor
        if logs is None or chain.id not in self._plan.logged:
            return None
        return logs.of(
            (chain.id, descriptor.subtask), descriptor.steps[0] if descriptor.steps else 0
        )

    @property
    def _to_repeat(self) -> Sequence[Step]:
        """The steps that the task repeats."""
        return self._descriptor.steps[1] if self._descriptor.steps else ()

    def _source_input(
        self,
        chain: Chain,
        operator: RunningOperator,
        parts: _TaskParts,
        request_split: Callable[[int], None],
    ) -> SourceInput | None:
        if not isinstance(operator, SourceOperator):
            return None
        source = self._functions[chain.root.operator.id].function
        place = operator.context
        context = ReaderContext(
            place.uid,
            place.subtask,
            chain.parallelism,
            place.metrics,
            self._config.on_lost_position,
        )

        def create_reader() -> SourceReader:
            with calling(operator.name, "the source could not create a reader"):
                reader: SourceReader = source.create_reader(context)
            reader.use_codec(self._descriptor.codec)
            return reader

        clock, request = self._system.clock, partial(request_split, chain.id)
        wake, watermarks = parts.signals.wake_source, operator.watermarks
        return SourceInput(
            create_reader, clock, request, wake, watermarks, in_turns=source.reads_in_turns
        )

    def _checkpoint_writer(
        self, backends: dict[str, KeyedBackend], responder: CheckpointResponder
    ) -> CheckpointWriter:
        return CheckpointWriter(
            subtask=self._descriptor.subtask,
            lineage=self._descriptor.lineage,
            attempt=self._descriptor.attempt,
            backends=backends,
            responder=responder,
            paths=self._descriptor.paths,
            clock=self._system.clock,
            write_scheduler=self._write_scheduler,
            inline_threshold=self._config.inline_threshold,
        )

    def _in_flight(self, root: OperatorInfo) -> InFlightRecorder | None:
        if not self._descriptor.unaligned:
            return None
        turns = Partitioning.REBALANCE.value
        own = EdgeIdentity(root.uid, root.uid, OWN_INPUT, turns, repr(root.name))
        return InFlightRecorder(
            self._relay,
            self._descriptor.subtask,
            self._config.aligned_checkpoint_timeout_seconds,
            own,
            self._descriptor.codec.encode_record_batch,
            self._descriptor.keep,
        )

    def _keys(self, chain: Chain) -> KeySampler:
        edges = self._descriptor.code.graph.edges
        links = [self._plan.links[number] for number in chain.inputs]
        return KeySampler(
            {
                link.id: method_of(edges[link.edge].selector, "get_key")
                for link in links
                if link.partitioning is Partitioning.HASH
            }
        )

    def _second_input(self, chain: Chain) -> frozenset[int]:
        """Return the ids of the links to the second input of a chain's first operator."""
        return frozenset(number for number in chain.inputs if self._plan.links[number].input == 1)

    def _outside(self, chain: Chain) -> list[ChannelId] | None:
        """Return the input channels from outside the chain's loop.

        Return None if the chain is not in a loop.
        """
        loop = self._plan.loop_of(chain.id)
        if loop is None:
            return None
        links = self._plan.links
        return [
            id
            for id in self._channels.gates[chain.id].channels
            if self._plan.loop_of(links[id.link].source) != loop
        ]

    def _loop_place(self, chain: Chain, gate: InputGate) -> LoopPlace | None:
        outside = self._outside(chain)
        loop = self._plan.loop_of(chain.id)
        if outside is None or loop is None:
            return None
        if loop not in self._waves:
            self._waves[loop] = LoopWaves.of(self._plan, loop)
        waves = self._waves[loop]
        regular = [id for id in gate.channels if id not in gate.back_edges and id not in outside]
        watermarks = LoopWatermarks(
            regular, gate.back_edges, waves.waves, chain.id in waves.own_time, waves.one_task
        )
        return LoopPlace(tuple(outside), tuple(regular), watermarks)

    # ---- operators

    def _node(
        self, node: ChainedOperator, parts: _TaskParts, inputs: tuple[int, ...] = ()
    ) -> ChainNode:
        operator = self._operator(node, parts)
        edge_functions = self._edge_functions_of(node, inputs)
        if edge_functions:
            # Their context is the operator's, without its state.
            context = self._context(node.operator, parts, metrics=operator.context.metrics)
            operator.edge_functions = edge_functions, context
        main = self._consumers(operator, node, None, parts)
        tags = {self._plan.links[number].tag for number in node.links}
        tags.update(child.tag for child in node.children)
        for tag in sorted(tag for tag in tags if tag is not None):
            main.sides[tag] = self._consumers(operator, node, tag, parts)
        # Inside a loop, the chain runner must notice when an end-of-input hook emits records. A
        # fused operator emits records without the chain runner, so it cannot be used there.
        # Nor can it be used if the emitted records must be converted.
        plain = not main.children and not main.inner and main.result_type is None
        if len(main.partitioners) == 1 and plain:
            alone = fused(operator, main.partitioners[0])
            if alone is not None:
                alone.edge_functions = operator.edge_functions
                return ChainNode(alone, [], [])
        return main

    def _edge_functions_of(
        self, node: ChainedOperator, inputs: tuple[int, ...]
    ) -> list[EdgeFunction]:
        """Return the rich key selectors and partitioners that an operator needs.

        Arguments:
            node: the operator.
            inputs: the ids of its incoming links. The replay of an in-flight log calls the
                functions of these links.
        """
        operator = self._functions[node.operator.id]
        graph_edges = self._descriptor.code.graph.edges
        edges = [graph_edges[self._plan.links[number].edge] for number in (*inputs, *node.links)]
        functions = [operator.key_selector, operator.second_key_selector]
        for edge in edges:
            functions += [edge.selector, edge.partitioner]
        return self._edge_functions.of(functions)

    def _consumers(
        self, operator: RunningOperator, node: ChainedOperator, tag: str | None, parts: _TaskParts
    ) -> ChainNode:
        """Create the consumers of one output of an operator: its main or a side output."""
        plan = self._plan
        links = [plan.links[number] for number in node.links if plan.links[number].tag == tag]
        partitioners = [
            self._channels.create_partitioner(link, parts.senders, parts.signals.loop)
            for link in links
        ]
        for link, partitioner in zip(links, partitioners, strict=True):
            parts.outputs += partitioner.outputs
            several = len(partitioner.outputs) > 1
            if plan.isolated and several and isinstance(partitioner, PositionedPartitioner):
                operator.context.keep_position(link.id, partitioner)
        inner = frozenset(
            partitioner
            for link, partitioner in zip(links, partitioners, strict=True)
            if plan.loop_of(link.source) is not None
            and plan.loop_of(link.source) == plan.loop_of(link.target)
        )
        back_edges = frozenset(
            partitioner
            for link, partitioner in zip(links, partitioners, strict=True)
            if link.is_back_edge
        )
        children = [self._node(child, parts) for child in node.children if child.tag == tag]
        result_type = self._functions[node.operator.id].result_type if tag is None else None
        return ChainNode(operator, children, partitioners, inner, back_edges, result_type)

    def _operator(self, node: ChainedOperator, parts: _TaskParts) -> RunningOperator:
        info = node.operator
        backend = None
        operator_state = OperatorStateBackend(
            info.name, self._descriptor.codec, self._descriptor.restored
        )
        if info.spec.keyed:
            backend = parts.backends[info.uid] = self._backend(info, parts)
        context = self._context(info, parts, backend, operator_state)
        context.keeps_operator_state = info.has_operator_state
        place = OperatorPlace(self._functions[info.id], context, self._services(info, parts))
        batch = self._config.runtime_mode is RuntimeExecutionMode.BATCH
        return build_operator(place, batch=batch)

    def _services(self, info: OperatorInfo, parts: _TaskParts) -> TaskServices:
        def create_caller(run_in: RunIn) -> AsyncCaller:
            assert self._callers is not None
            return self._callers.create(run_in)

        return TaskServices(
            create_caller=create_caller,
            wake=parts.signals.loop.set,
            create_writer=partial(self._sink_writer, info),
            timer=self._system.timer,
            watermark_interval_ms=round(self._config.auto_watermark_interval_seconds * 1000),
        )

    def _context(
        self,
        info: OperatorInfo,
        parts: _TaskParts,
        backend: KeyedBackend | None = None,
        operator_state: OperatorStateBackend | None = None,
        metrics: MetricGroup | None = None,
    ) -> OperatorContext:
        scope = info.name, str(self._descriptor.subtask)
        return OperatorContext(
            info.name,
            info.uid,
            self._descriptor.subtask,
            info.parallelism,
            self._plan.max_parallelism,
            self._descriptor.ordinal,
            self._descriptor.codec,
            backend,
            self._functions[info.id].side_outputs,
            operator_state,
            self._system.wall_clock if parts.steps is None else parts.steps.now,
            self._config.job_parameters,
            input_names(self._descriptor.code.graph, info.id),
            metrics or MetricGroup(scope, self._system.clock),
            self._descriptor.restored_states.get(info.uid, frozenset()),
            self._system.run or self._descriptor.lineage,
        )

    def _sink_writer(self, info: OperatorInfo, sink: Sink, metrics: MetricGroup) -> SinkWriter:
        context = WriterContext(
            info.uid,
            info.name,
            self._descriptor.subtask,
            info.parallelism,
            self._descriptor.attempt,
            self._descriptor.lineage,
            metrics,
            self._descriptor.paths.staging,
        )
        with calling(info.name, "the sink could not create a writer"):
            writer: SinkWriter = sink.create_writer(context)
        writer.use_codec(self._descriptor.codec)
        return writer

    def _backend(self, info: OperatorInfo, parts: _TaskParts) -> KeyedBackend:
        descriptor = self._descriptor
        return KeyedBackend(
            folder=descriptor.paths.task_work(descriptor.attempt, info.uid, descriptor.subtask),
            codec=descriptor.codec,
            canonical=canonical,
            max_parallelism=self._plan.max_parallelism,
            groups=key_group_range(
                descriptor.subtask, self._plan.max_parallelism, info.parallelism
            ),
            inline_threshold=self._config.inline_threshold,
            memory_budget=self._state_memory,
            clock=self._system.timer,
            shared=self._shared_memory,
            engine=self._engine,
            in_order=parts.steps is not None,
        )
