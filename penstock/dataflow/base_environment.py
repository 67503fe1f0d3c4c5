"""Define `BaseEnvironment`: the settings, the operators and the execution of a program.

Its subclass `StreamExecutionEnvironment` adds the methods that create sources. The module of the
streams imports only `BaseEnvironment`, which avoids an import cycle.

`local_executor` is the only place where the API imports the runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from penstock.dataflow.arguments.durations import DurationLike, seconds_of
from penstock.dataflow.arguments.pyflink_names import ENVIRONMENT, PyFlinkNames
from penstock.dataflow.config import (
    MAX_PARALLELISM,
    CheckpointConfig,
    CheckpointingMode,
    ExecutionSettings,
    JobConfig,
    PythonDependencySettings,
    RestartStrategy,
    check_parallelism,
    check_restart_strategy,
    config_of_files,
    log_level_number,
    with_environment,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeySelectorLike, check_methods
from penstock.dataflow.functions.state_use import never_updates
from penstock.dataflow.graph.batch_mode import in_runtime_mode
from penstock.dataflow.graph.cached_streams import StoredRecords, with_caches
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorOutput
from penstock.dataflow.graph.plan import render
from penstock.dataflow.graph.publication import check_publication
from penstock.dataflow.graph.restart_parts import restart_parts
from penstock.dataflow.job_client import AsyncExecutor, JobClient
from penstock.dataflow.nested_jobs import refuse_nested_job
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.platforms import require_linux
from penstock.dataflow.program import (
    CloseableIterator,
    Executor,
    JobExecutionResult,
    Program,
    current_options,
)
from penstock.dataflow.tracebacks import install
from penstock.dataflow.unexecuted import Executions, watch

_LOGGER = logging.getLogger("penstock")


def local_executor(config: JobConfig) -> Executor:
    """Return the executor that runs a job with these settings on this machine.

    Raises:
        GraphError: if the machine does not run Linux.
    """
    require_linux()
    # Only this function of the package imports the runtime.
    if config.in_process:
        from penstock.runtime.minicluster.executor import InProcessExecutor

        return InProcessExecutor()
    from penstock.runtime.client.executor import LocalExecutor

    return LocalExecutor()


class BaseEnvironment(PyFlinkNames, ExecutionSettings, PythonDependencySettings):
    """The settings of a program, the operators added to it, and its execution.

    Arguments:
        config: the initial settings. If it is None, they are those of `penstock.toml`, and else the
            defaults.
    """

    _missing = ENVIRONMENT

    def __init__(self, config: JobConfig | None = None) -> None:
        install()
        self._config = config or config_of_files()
        self._checkpoint_config = CheckpointConfig(self._config)
        self._graph = JobGraph()
        self._types: list[type] = []
        self._executions = Executions(self._graph)
        watch(self, self._executions)
        #: For the id of each cached operator, its stored records and its output.
        self._caches: dict[int, tuple[StoredRecords, OperatorOutput]] = {}

    # ---- methods for the settings

    @property
    def config(self) -> JobConfig:
        """All settings of the job. The program may change them until it calls `execute`."""
        return self._config

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the default number of subtasks of an operator.

        An operator for which the program sets a parallelism keeps that parallelism.

        Raises:
            GraphError: if `parallelism` is not a whole number from 1 to 32,768.
        """
        check_parallelism(parallelism, MAX_PARALLELISM, "the job")
        self._config.parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Return the default number of subtasks of an operator."""
        return self._config.parallelism

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups, which is the largest possible parallelism.

        Do not change it once the job has snapshots: a snapshot is restored only with the same
        number.

        Raises:
            GraphError: if `max_parallelism` is not a whole number from 1 to 32,768.
        """
        if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= MAX_PARALLELISM:
            raise GraphError(
                f"max parallelism must be 1 to {MAX_PARALLELISM}, not {max_parallelism!r}"
            )
        self._config.max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """Return the number of key groups."""
        return self._config.max_parallelism

    def enable_checkpointing(
        self, interval: DurationLike, mode: CheckpointingMode | None = None
    ) -> Self:
        """Take snapshots periodically.

        Arguments:
            interval: the time between the starts of two snapshots, in milliseconds or as a
                `timedelta`; at least 1 ms.
            mode: the mode in which snapshots are taken. None does not change the mode.

        Raises:
            GraphError: if `interval` has another type or is below 1 ms.
        """
        checkpoints = self.get_checkpoint_config().set_checkpoint_interval(interval)
        if mode is not None:
            checkpoints.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Return an object whose methods change the checkpoint settings of this program."""
        return self._checkpoint_config

    def set_restart_strategy(self, strategy: RestartStrategy) -> Self:
        """Set the strategy that decides when a failed job is restarted.

        Raises:
            GraphError: if `strategy` was not created by a method of `RestartStrategies`.
        """
        check_restart_strategy(strategy)
        self._config.restart = strategy
        return self

    def set_in_process(self, in_process: bool = True) -> Self:
        """Set whether jobs run inside this process, for debugging and tests.

        By default, the JobManager and each worker run in a separate process.
        """
        self._config.in_process = in_process
        return self

    def set_codegen(self, enabled: bool = True) -> Self:
        """Set whether small user functions are inlined into the loops of operators.

        Inlining is on by default. Results and errors are the same without it. Only a profiler or a
        debugger in a worker shows the difference. The environment variable `PENSTOCK_CODEGEN=off`
        also switches inlining off.
        """
        self._config.codegen = enabled
        return self

    def set_log_level(self, level: str | int) -> Self:
        """Set the level of the root logger in the job's processes, such as "INFO".

        Raises:
            GraphError: if `level` is not the name or number of a level of `logging`.
        """
        self._config.log_level = log_level_number(level)
        return self

    def set_buffer_timeout(self, timeout_millis: DurationLike) -> Self:
        """Set the time for which a record waits in an output batch.

        A worker that has nothing else to do sends its records at once. Under load a record may wait
        longer than this time, so that batches have enough records to be worth their cost.

        Arguments:
            timeout_millis: the time in milliseconds or as a `timedelta`; 5 ms by default.
        """
        self._config.buffer_timeout_seconds = seconds_of("timeout_millis", timeout_millis)
        return self

    def set_buffer_debloat_target(self, target: DurationLike) -> Self:
        """Set the target time in which a task processes all records in flight to it.

        The engine limits the number of records in flight accordingly. The barriers of an aligned
        snapshot wait behind these records at each task. Flink's setting is
        `taskmanager.network.memory.buffer-debloat.target`.

        Arguments:
            target: the time in milliseconds or as a `timedelta`; at least 1 ms, 100 ms by default.
        """
        seconds = seconds_of("the buffer debloat target", target, least_ms=1)
        self._config.buffer_debloat_target_seconds = seconds
        return self

    def set_buffer_size(self, records: int, size: int = 64 * 1024) -> Self:
        """Set the size at which an output batch is complete and sent.

        A batch is sent when it reaches one of the two limits.

        Arguments:
            records: the largest number of records in a batch.
            size: the largest size of a batch, in bytes.
        """
        self._config.batch_records, self._config.batch_bytes = records, size
        return self

    def set_memory(self, size: int) -> Self:
        """Set the memory for state and buffers of each worker, in bytes."""
        self._config.memory_bytes = size
        return self

    def register_type(self, *classes: type) -> Self:
        """Register record classes: dataclasses, named tuples, enums, structs.

        Classes that the program's functions refer to are found automatically, and need not be
        registered.
        """
        self._types += [cls for cls in classes if cls not in self._types]
        return self

    # ---- methods for the execution

    def get_execution_plan(self, format: str = "json") -> str:
        """Return the program's graph.

        Arguments:
            format: "json" for the JSON that Flink's plan visualizer reads; "text" or "mermaid" for
                a drawing.

        Raises:
            GraphError: if the program cannot be compiled, or the format is unknown.
        """
        program = self._program()
        plan = compile_graph(program.graph, program.config)
        return render(plan, restart_parts(program.graph, program.config, plan), format)

    def execute(
        self, job_name: str | None = None, *, in_process: bool | None = None
    ) -> JobExecutionResult:
        """Run the program until the job has ended, and return its result.

        The job consists of the operators that were added since the last execution, and of all
        operators that they read from. `execute_and_collect`, `take` and `show` execute only the
        operators before their stream, so sinks that were added before are part of this job.

        Arguments:
            job_name: the name of the job. If it is None, the name in the settings is used.
            in_process: whether to run the job inside this process, so that `breakpoint()` and
                coverage work in its functions. If it is None, the setting `in_process` is used.

        Raises:
            GraphError: if the program cannot be compiled, or if this process is part of a job.
            JobError: if the job fails and its restart strategy gives up.
            StoreError: if snapshots cannot be read or written.
        """
        with self._executing(self._executions.pending()):
            program = self._program(job_name, in_process)
            _check(program)
            return _executor(program).execute(program)

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the program's job, and return at once. (Flink: `executeAsync`.)

        The job has the operators that `execute` would run. The program ends only when its jobs
        have ended.

        Arguments:
            job_name: the name of the job. If it is None, the name in the settings is used.

        Returns:
            A client with the state and the result of the job, which can also stop it.

        Raises:
            GraphError: if the program cannot be compiled, or if the job would run in this process.
        """
        with self._executing(self._executions.pending()):
            program = self._program(job_name)
            _check(program)
            executor = _executor(program)
            if isinstance(executor, AsyncExecutor):
                return executor.submit(program)
            executor.execute(program)  # it prints or submits the program
            raise GraphError("execute_async cannot be used here: penstock submit starts the job")

    def _collect(
        self, outputs: Sequence[OperatorOutput], job_name: str | None, in_process: bool | None
    ) -> CloseableIterator:
        """Run the operators of these outputs, and return an iterator over the records.

        The job has only the operators that the outputs depend on. Sinks that wait for an execution
        still wait for it afterwards.
        """
        wanted = {output.operator.id for output in outputs}
        with self._executing(self._graph.upstream(wanted)):
            program = self._program(job_name, in_process, wanted)
            return _executor(program).collect(program, outputs)

    def _warn_of_pending_sinks(self) -> None:
        """Log a warning if sinks wait for an execution that collects records instead."""
        pending = self._executions.pending()
        sinks = [
            operator.name
            for operator in self._graph.operators
            if operator.id in pending and operator.spec.is_sink
        ]
        if sinks:
            _LOGGER.warning(
                "execute_and_collect runs only what leads to its stream, so %s does not run now: "
                "env.execute() runs it",
                ", ".join(map(repr, sinks)),
            )

    @contextmanager
    def _executing(self, operators: Set[int]) -> Iterator[None]:
        """Mark operators as executed when the `with` block ends.

        As in Flink, this also happens if the block raises an exception.
        """
        refuse_nested_job()
        try:
            yield
        finally:
            self._executions.executed |= operators

    # ---- methods that build the graph

    def _program(
        self,
        job_name: str | None = None,
        in_process: bool | None = None,
        wanted: Set[int] | None = None,
    ) -> Program:
        """Return the program that runs some operators, and all operators that they read from.

        Arguments:
            job_name: a new name for the job, also for later executions. If it is None, the job
                keeps its name.
            in_process: the value that replaces the setting `in_process`. None does not replace it.
            wanted: the ids of the operators. With None, they are all that no execution had yet.
        """
        if job_name is not None:
            self._config.name = job_name
        config = self._config
        if in_process is not None:
            config = replace(config, in_process=in_process)
        graph = self._graph_of(self._executions.pending() if wanted is None else wanted)
        config = current_options().applied_to(with_environment(config))
        graph, config = in_runtime_mode(graph, config)
        return Program(graph, config, list(self._types))

    def _graph_of(self, wanted: Set[int]) -> JobGraph:
        graph = self._graph
        if graph.operators and not wanted:
            raise GraphError(
                "nothing was added to the program since its last execution: an execution has the "
                "sinks and other operators that were added since the one before"
            )
        self._executions.compiled |= (part := graph.upstream(wanted))
        resumed = current_options().resume is not None
        return with_caches(graph.part(part), wanted, self._caches, resumed)

    def _add_operator(
        self,
        spec: OperatorSpec,
        name: str,
        function: object,
        key_selector: KeySelectorLike | None = None,
    ) -> Operator:
        check_methods(function)
        if never_updates(function):
            _LOGGER.warning(
                "%s reads a value state, and no call of update() was found in its code. Without "
                "one, the state stays empty: give new values, and new lists or dicts, to update()",
                type(function).__name__,
            )
        return self._graph.add(spec, name, function, key_selector)

    def _add_cache(self, output: OperatorOutput, records: StoredRecords) -> None:
        self._caches[output.operator.id] = records, output

    def _add_feedback(self, name: str) -> OperatorOutput:
        if not isinstance(name, str) or not name:
            raise GraphError(f"a feedback's name is a non-empty string, not {name!r}")
        if name in self._feedback_names():
            raise GraphError(f"there is a feedback {name!r} already; give each a name of its own")
        return OperatorOutput(self._add_operator(specs.FEEDBACK, name, None))

    def _add_iteration(self) -> OperatorOutput:
        """Add a feedback with the first unused name of "iteration 1", "iteration 2", …"""
        taken = self._feedback_names()
        names = (f"iteration {number}" for number in range(1, len(taken) + 2))
        return self._add_feedback(next(name for name in names if name not in taken))

    def _feedback_names(self) -> set[str]:
        """Return the names of the feedbacks in the program that `execute` would run."""
        ids = self._graph.upstream(self._executions.pending())
        feedbacks = (one for one in self._graph.operators if one.spec.is_feedback)
        return {one.name for one in feedbacks if one.id in ids}


def _executor(program: Program) -> Executor:
    return current_options().executor or local_executor(program.config)


def _check(program: Program) -> None:
    """Raise a `GraphError` if a program cannot run, and warn if it drops the records of a stream.

    A program that collects records is checked by its executor, which adds a sink.
    """
    compile_graph(program.graph, program.config)
    check_publication(program.graph, program.config)
    _warn_of_unread(program.graph)


def _warn_of_unread(graph: JobGraph) -> None:
    for operator in graph.unread():
        _LOGGER.warning(
            "no sink and no other operator reads the stream of operator %r: its records are "
            "dropped; end it with sink_to(...) or print()",
            operator.name,
        )
