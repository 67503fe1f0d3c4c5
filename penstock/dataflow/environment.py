"""`StreamExecutionEnvironment`: where a program begins and from where it is executed.

`execute` is the one door from the API down into the runtime. Who runs the program is an
`Executor`; the command line replaces it to draw a graph or to submit the job elsewhere.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from penstock.dataflow.arguments.durations import Duration, seconds_of
from penstock.dataflow.arguments.pyflink_names import ENVIRONMENT, PyFlinkNames
from penstock.dataflow.config import (
    CheckpointConfig,
    CheckpointingMode,
    JobConfig,
    RestartStrategy,
    check_parallelism,
    log_level_number,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.feedback import FeedbackStream
from penstock.dataflow.graph.compile import ExecutionGraph, compile_graph
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorKind
from penstock.dataflow.graph.plan import render
from penstock.dataflow.job_process import refuse_in_job_process
from penstock.dataflow.sink import Sink
from penstock.dataflow.source import Source
from penstock.dataflow.stream import CloseableIterator, DataStream, End
from penstock.dataflow.watermarks import WatermarkStrategy, check_watermark_strategy

__all__ = [
    "Executor",
    "JobExecutionResult",
    "Program",
    "RunOptions",
    "StreamExecutionEnvironment",
    "run_options",
]


@dataclass(frozen=True)
class JobExecutionResult:
    """How a job ended.

    Arguments:
        job_name: its name.
        wall_seconds: from the call of `execute` to the end.
        restarts: the last hundred, with cause and time, in order.
        snapshots: the last hundred that completed, with number, kind, duration_ms and sizes in
            bytes.
        operators: per operator: uid, name, records_in, records_out.
        lineage: the line of snapshots of this run.
        stopped: it was stopped with a last snapshot and can be resumed.
        loops: per back-edge: name, records queued at most, bytes on disk at most.
        totals: over the whole run: snapshots, snapshot_ms, snapshot_bytes_new, restarts,
            restart_seconds.
    """

    job_name: str
    wall_seconds: float
    restarts: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]
    operators: list[dict[str, Any]]
    lineage: str
    stopped: bool = False
    loops: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<JobExecutionResult of {self.job_name!r}: "
            f"{'stopped' if self.stopped else 'finished'} after {self.wall_seconds:.1f} s, "
            f"{_number(self.restarts, 'restart')}, {_number(self.snapshots, 'snapshot')}>"
        )

    def get_net_runtime(self) -> int:
        """Wall time in milliseconds, as PyFlink has it."""
        return round(self.wall_seconds * 1000)


@dataclass
class Program:
    """All that is executed: the job graph, its settings and its record classes."""

    graph: JobGraph
    config: JobConfig
    types: list[type] = field(default_factory=list)

    def collect(self, stream: DataStream, sink: Sink) -> None:
        """Let a sink read a stream in this execution only."""
        self.graph.edges += stream._edges_to(self.graph.add(OperatorKind.SINK, "Collect", sink))


class Executor(Protocol):
    """Runs a program."""

    def execute(self, program: Program) -> JobExecutionResult:
        """Run it to its end."""

    def collect(self, program: Program, stream: DataStream) -> CloseableIterator:
        """Run it and iterate over the records of one stream."""


@dataclass(frozen=True)
class RunOptions:
    """What a command line says over what the program says; None leaves the program's word.

    Arguments:
        parallelism, checkpoint_dir, checkpoint_interval_seconds: replace the program's.
        resume: None starts afresh, "newest", a snapshot's number, or the path of a snapshot.
        fork: allow resuming from another than the newest snapshot.
        report: file to write the report to, as JSON.
        executor: who runs the program instead of a JobManager of its own.
        progress: called with each status of the running job.
        in_process: whether to run the job inside this process.
        log_level: replaces the program's.
    """

    parallelism: int | None = None
    checkpoint_dir: str | None = None
    checkpoint_interval_seconds: float | None = None
    resume: str | int | None = None
    fork: bool = False
    allow_dropped: bool = False
    report: str | None = None
    executor: Executor | None = None
    progress: Callable[[dict[str, Any]], None] | None = None
    in_process: bool | None = None
    log_level: int | None = None


_options = RunOptions()
_LOGGER = logging.getLogger("penstock")


@contextmanager
def run_options(options: RunOptions) -> Iterator[None]:
    """Let `options` hold for every `execute` in this block."""
    global _options
    before, _options = _options, options
    try:
        yield
    finally:
        _options = before


def current_options() -> RunOptions:
    """The options that hold now."""
    return _options


class StreamExecutionEnvironment(PyFlinkNames):
    """The context in which a streaming program is built and executed.

    Arguments:
        config: settings to begin with.
    """

    _missing = ENVIRONMENT

    def __init__(self, config: JobConfig | None = None) -> None:
        self._config = config or JobConfig()
        self._graph = JobGraph()
        self._types: list[type] = []
        #: The id of the first operator that was added since the last execution.
        self._pending_from = 0

    @staticmethod
    def get_execution_environment(
        configuration: JobConfig | None = None,
    ) -> StreamExecutionEnvironment:
        """A new environment."""
        return StreamExecutionEnvironment(configuration)

    # ---- settings

    @property
    def config(self) -> JobConfig:
        """All settings, to be changed in place."""
        return self._config

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Subtasks of every operator that is not given its own parallelism."""
        check_parallelism(parallelism, 32768, "the job")
        self._config.parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """The default parallelism."""
        return self._config.parallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """The number of key groups, 1 to 32768; fixed for the life of the job's state."""
        self._config.max_parallelism = max_parallelism
        if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= 32768:
            raise GraphError(f"max parallelism must be 1 to 32768, not {max_parallelism!r}")
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups."""
        return self._config.max_parallelism

    def enable_checkpointing(
        self, interval: Duration, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """Take a snapshot every `interval`: milliseconds, or a `timedelta`; at least 1 ms.

        Raises `GraphError` for another type or a shorter interval.
        """
        checkpoints = self.get_checkpoint_config().set_checkpoint_interval(interval)
        if mode is not None:
            checkpoints.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The settings of snapshots."""
        return CheckpointConfig(self._config)

    def set_restart_strategy(self, strategy: RestartStrategy) -> StreamExecutionEnvironment:
        """When a failed job is started again; see `RestartStrategies`."""
        if not isinstance(strategy, RestartStrategy):
            raise GraphError(f"a restart strategy is made by RestartStrategies, not {strategy!r}")
        self._config.restart = strategy
        return self

    def set_in_process(self, in_process: bool = True) -> StreamExecutionEnvironment:
        """Run jobs inside this process, for debugging and tests, or in several processes again."""
        self._config.in_process = in_process
        return self

    def set_log_level(self, level: str | int) -> StreamExecutionEnvironment:
        """Set the level of the root logger in the job's processes, such as "INFO"."""
        self._config.log_level = log_level_number(level)
        return self

    def set_buffer_timeout(self, timeout_millis: Duration) -> StreamExecutionEnvironment:
        """A record waits in a batch at most so long, in milliseconds."""
        self._config.buffer_timeout_seconds = seconds_of("timeout_millis", timeout_millis)
        return self

    def set_buffer_debloat_target(self, target: Duration) -> StreamExecutionEnvironment:
        """Set how long it may take a task to process what is in flight to it; at least 1 ms.

        Flink's `taskmanager.network.memory.buffer-debloat.target`, with 100 ms as the default. An
        aligned snapshot waits at each stage for the records that are in flight there.
        """
        seconds = seconds_of("the buffer debloat target", target, least_ms=1)
        self._config.buffer_debloat_target_seconds = seconds
        return self

    def set_buffer_size(self, records: int, size: int = 64 * 1024) -> StreamExecutionEnvironment:
        """A batch is sealed at so many records or bytes."""
        self._config.batch_records, self._config.batch_bytes = records, size
        return self

    def set_memory(self, size: int) -> StreamExecutionEnvironment:
        """Memory for the state and buffers of one worker, in bytes."""
        self._config.memory_bytes = size
        return self

    def register_type(self, *classes: type) -> StreamExecutionEnvironment:
        """Let records be of these classes (dataclasses, named tuples, enums)."""
        self._types += [cls for cls in classes if cls not in self._types]
        return self

    # ---- sources

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str | None = None,
    ) -> DataStream:
        """Return the records of a source.

        Arguments:
            source: what is read.
            watermark_strategy: None or `WatermarkStrategy.no_watermarks()`.
            source_name: shown in plans, reports and errors.
        """
        if not isinstance(source, Source):
            raise GraphError(f"from_source takes a Source, not {source!r}")
        check_watermark_strategy(watermark_strategy)
        source.validate()
        name = source_name or f"Source: {type(source).__name__}"
        operator = self._add_operator(OperatorKind.SOURCE, name, source)
        return DataStream(self, [End(operator)])

    def from_collection(self, collection: Iterable[Any], type_info: Any = None) -> DataStream:
        """The elements of a collection."""
        del type_info
        from penstock.connectors import CollectionSource

        return self.from_source(CollectionSource(list(collection)), None, "Source: Collection")

    def from_sequence(self, start: int, end: int) -> DataStream:
        """The whole numbers from `start` to `end`, both included."""
        from penstock.connectors import SequenceSource

        return self.from_source(SequenceSource(start, end), None, "Source: Sequence")

    def from_generator(
        self,
        function: Callable[[int], Any],
        count: int | None = None,
        records_per_second: float | None = None,
    ) -> DataStream:
        """`function(0)`, `function(1)`, …; `count` of them or for ever, at most at this rate."""
        from penstock.connectors import GeneratorSource

        source = GeneratorSource(function, count, records_per_second)
        return self.from_source(source, None, "Source: Generator")

    def from_iterable(self, factory: Callable[..., Iterable[Any]]) -> DataStream:
        """What `factory(subtask, parallelism)` yields in each subtask."""
        from penstock.connectors import IterableSource

        return self.from_source(IterableSource(factory), None, "Source: Iterable")

    def read_text_file(
        self, file_path: str | Path | Sequence[str | Path], charset_name: str = "utf-8"
    ) -> DataStream:
        """The lines of a file, a folder's files, a glob or several; `.gz` is unpacked."""
        from penstock.connectors import FileSource, TextLines

        source = FileSource(file_path, TextLines(encoding=charset_name))
        return self.from_source(source, None, "Source: Text Files")

    def socket_text_stream(self, host: str, port: int, delimiter: str = "\n") -> DataStream:
        """Lines from a socket; they cannot be read again, so a crash may lose some."""
        from penstock.connectors import SocketSource

        stream = self.from_source(SocketSource(host, port, delimiter), None, "Source: Socket")
        operator = stream._ends[0].operator
        operator.parallelism, operator.non_parallel_reason = 1, "a socket has one reader"
        return stream

    # ---- loops

    def create_feedback(self, name: str) -> FeedbackStream:
        """A stream that is used now and closed later with what is to be fed back.

        Arguments:
            name: what errors call it; no two of a program are alike.

        `DataStream.iterate` is the short form for a stream that is united with a feedback of its
        own. Raises `GraphError` for a name that is no text or is taken.
        """
        if not isinstance(name, str) or not name:
            raise GraphError(f"a feedback's name is a non-empty string, not {name!r}")
        if name in self._feedbacks():
            raise GraphError(f"there is a feedback {name!r} already; give each a name of its own")
        return FeedbackStream(self, [End(self._add_operator(OperatorKind.FEEDBACK, name, None))])

    def _create_iteration(self) -> FeedbackStream:
        taken = self._feedbacks()
        names = (f"iteration {number}" for number in range(1, len(taken) + 2))
        return self.create_feedback(next(name for name in names if name not in taken))

    def _feedbacks(self) -> set[str]:
        pending = self._graph.operators[self._pending_from :]
        return {one.name for one in pending if one.kind is OperatorKind.FEEDBACK}

    # ---- running

    def get_execution_plan(self, format: str = "text") -> str:
        """The program's graph, as "text" or "mermaid"."""
        return render(self._compiled(), format)

    def execute(
        self, job_name: str | None = None, *, in_process: bool | None = None
    ) -> JobExecutionResult:
        """Run the program to its end.

        Arguments:
            job_name: replaces the name that the settings say.
            in_process: whether to run the job inside this process, so that `breakpoint()` and
                coverage work in its functions; None: as `set_in_process` says.

        An execution has the operators that were added since the last one, and what these read.

        Raises `GraphError` if it cannot be compiled or this process is part of a job, `JobError`
        if it fails and the restart strategy gives up, `StoreError` if snapshots cannot be read or
        written.
        """
        refuse_in_job_process()
        with self._executing():
            program = self._program(job_name, in_process)
            _warn_of_unread(program.graph)
            return self._executor().execute(program)

    def _execute_and_collect(
        self,
        stream: DataStream,
        job_name: str | None,
        limit: int | None,
        in_process: bool | None = None,
    ) -> Any:
        refuse_in_job_process()
        with self._executing():
            program = self._program(job_name, in_process, check=False, collected=stream)
            records = self._executor().collect(program, stream)
        if limit is None:
            return records
        with records:
            return list(islice(records, limit))

    @contextmanager
    def _executing(self) -> Iterator[None]:
        """Take what was added as executed, also if it fails, as Flink does."""
        try:
            yield
        finally:
            self._pending_from = len(self._graph.operators)

    def _executor(self) -> Executor:
        if _options.executor is not None:
            return _options.executor
        # The one door from the API down into the runtime.
        from penstock.runtime.client.executor import LocalExecutor

        return LocalExecutor()

    def _program(
        self,
        job_name: str | None,
        in_process: bool | None = None,
        check: bool = True,
        collected: DataStream | None = None,
    ) -> Program:
        if job_name is not None:
            self._config.name = job_name
        config = replace(self._config)
        if _options.parallelism is not None:
            config.parallelism = _options.parallelism
        if _options.checkpoint_dir is not None:
            config.checkpoint_dir = _options.checkpoint_dir
        if _options.checkpoint_interval_seconds is not None:
            config.checkpoint_interval_seconds = _options.checkpoint_interval_seconds
        if in_process is not None:
            config.in_process = in_process
        if _options.in_process is not None:
            config.in_process = _options.in_process
        if _options.log_level is not None:
            config.log_level = _options.log_level
        graph = self._pending_graph(() if collected is None else collected._ends)
        if check:
            compile_graph(graph, config)
        return Program(graph, config, list(self._types))

    def _pending_graph(self, ends: Sequence[End] = ()) -> JobGraph:
        """Return what was added since the last execution, with all that it and `ends` read."""
        graph = self._graph
        wanted = [operator.id for operator in graph.operators[self._pending_from :]]
        wanted += [end.operator.id for end in ends]
        if graph.operators and not wanted:
            raise GraphError(
                "nothing was added to the program since its last execution: an execution has the "
                "sinks and other operators that were added since the one before"
            )
        return graph.part(graph.upstream(wanted))

    def _compiled(self) -> ExecutionGraph:
        program = self._program(None, check=False)
        return compile_graph(program.graph, program.config)

    def _add_operator(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> Operator:
        if inspect.iscoroutinefunction(function):
            raise GraphError(f"{name} was given an async function; functions here are plain ones")
        return self._graph.add(kind, name, function, key_selector)


def _number(items: Sequence[object], name: str) -> str:
    return f"{len(items)} {name}{'' if len(items) == 1 else 's'}"


def _warn_of_unread(graph: JobGraph) -> None:
    for operator in graph.unread():
        _LOGGER.warning(
            "no sink and no other operator reads the stream of operator %r: its records are "
            "dropped; end it with sink_to(...) or print()",
            operator.name,
        )
