"""Define the values that environments, executors and the command line pass to each other.

An environment builds a `Program` and passes it to an `Executor`. The executor returns a
`JobExecutionResult`, or a `CloseableIterator` over records. `RunOptions` contain the options of a
command line, which override the settings of the program.

This module imports neither the environment nor the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Literal, Protocol, Self

from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.config import JobConfig, RuntimeExecutionMode
from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.lost_position import LostPosition
from penstock.dataflow.config.python_dependencies import joined
from penstock.dataflow.graph.job_graph import JobGraph, OperatorOutput
from penstock.dataflow.metrics import find_metric
from penstock.dataflow.operators import specs
from penstock.dataflow.sink import Sink
from penstock.dataflow.type_variables import PlainValue, T_co, UserValue


@dataclass
class Program:
    """A program to execute: a job graph, its settings and its registered record classes."""

    graph: JobGraph
    config: JobConfig
    types: list[type] = field(default_factory=list)

    def add_sink(self, name: str, outputs: Sequence[OperatorOutput], sink: Sink) -> None:
        """Add a sink that reads these outputs, for this execution only.

        The sink has as many subtasks as the operators that it reads. So records of an operator
        with one subtask keep their order.
        """
        operator = self.graph.add(specs.SINK, name, sink)
        numbers = [output.operator.parallelism for output in outputs]
        operator.parallelism = None if None in numbers else max(filter(None, numbers))
        self.graph.connect(outputs, operator)


@dataclass(frozen=True)
class JobExecutionResult(PyFlinkNames):
    """The result of a job. (Flink: `JobExecutionResult`.)

    Arguments:
        job_name: the name of the job.
        wall_seconds: the time from the call of `execute` to the end of the job, in seconds.
        restarts: the last hundred restarts, each with its cause and time, oldest first.
        snapshots: the last hundred completed snapshots, each with number, kind, duration_ms and
            sizes in bytes.
        operators: the uid, name, records_in and records_out of each operator.
        lineage: the id of the lineage of this run's snapshots.
        stopped: whether the job was stopped with a final snapshot and can be resumed.
        loops: for each back-edge, its name, the largest number of queued records, and the largest
            number of bytes on disk.
        totals: the sums over the whole run: snapshots, snapshot_ms, snapshot_bytes_new, restarts
            and restart_seconds.
        metrics: the metrics of all operators, one map each: operator, uid, name, kind, variables,
            value and subtasks. See the page *Metrics*.
        job_id: the id of the job; the id of the lineage if the job was not started by
            `execute_async`.
        rescales: the last hundred changes of the number of workers of a job with
            `restart_reactive`, each with slots, wanted, reason and time.
        stragglers: the last hundred tasks that were slower than their peers, each with operator,
            subtask, cause and time. See the page *Slow tasks*.

    Examples:
        >>> _ = env.from_collection(["a", "b"]).sink_to(FileSink("letters"))
        >>> result = env.execute("letters")
        >>> result.job_name, result.restarts
        ('letters', [])
    """

    _missing: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("get_accumulator_result", "get_all_accumulator_results"),
        "jobs have no accumulators; use a counter of get_metrics_group()",
    )

    job_name: str
    wall_seconds: float
    restarts: list[dict[str, PlainValue]]
    snapshots: list[dict[str, PlainValue]]
    operators: list[dict[str, PlainValue]]
    lineage: str
    stopped: bool = False
    loops: list[dict[str, PlainValue]] = field(default_factory=list)
    totals: dict[str, PlainValue] = field(default_factory=dict)
    metrics: list[dict[str, PlainValue]] = field(default_factory=list)
    job_id: str = ""
    rescales: list[dict[str, PlainValue]] = field(default_factory=list)
    stragglers: list[dict[str, PlainValue]] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"<JobExecutionResult of {self.job_name!r}: "
            f"{'stopped' if self.stopped else 'finished'} after {self.wall_seconds:.1f} s, "
            f"{_count(self.restarts, 'restart')}, {_count(self.snapshots, 'snapshot')}>"
        )

    def get_job_id(self) -> str:
        """Return the id of the job, which `JobClient.get_job_id` returns, too."""
        return self.job_id or self.lineage

    def get_net_runtime(self) -> int:
        """Return the duration of the job, in milliseconds. (Flink: `getNetRuntime`.)"""
        return round(self.wall_seconds * 1000)

    def metric(self, name: str, operator: str | None = None) -> PlainValue:
        """Return the value of a metric, over all subtasks and all attempts of the job.

            result = env.execute()
            assert result.metric("invalid") == 3

        Arguments:
            name: the name of the metric, with the names of its groups before it: `parser.invalid`.
            operator: the name or the uid of its operator; needed only if several have this metric.

        Returns:
            An integer for a counter; a map with `count` and `rate` for a meter; with `count`,
            `sum`, `min`, `max` and `mean` for a distribution; with `min`, `max` and `sum` over the
            subtasks for a gauge.

        Raises:
            GraphError: if there is no such metric, or if several operators have it.
        """
        return find_metric(self.metrics, name, operator)


def _count(items: Sequence[object], name: str) -> str:
    return f"{len(items)} {name}{'' if len(items) == 1 else 's'}"


class CloseableIterator(Generic[T_co]):
    """Iterates over the records of a running job. (Flink: `CloseableIterator`.)

    `close` stops the job. The iterator is also a context manager, which calls `close` at the end.

    Arguments:
        records: an iterator over the records.
        close: a function that stops the job.

    Examples:
        >>> with env.from_sequence(1, 10**9).execute_and_collect() as records:
        ...     print(next(records))
        1
    """

    def __init__(self, records: Iterator[T_co], close: Callable[[], None]) -> None:
        self._records = records
        self._close = close

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        return next(self._records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> Literal[False]:
        self.close()
        return False

    def close(self) -> None:
        """Stop the job if it is still running."""
        self._close()


class Executor(Protocol):
    """Runs programs. (Flink: `PipelineExecutor`.)"""

    def execute(self, program: Program) -> JobExecutionResult:
        """Run a program until its job has ended, and return the result."""

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> CloseableIterator:
        """Run a program, and return an iterator over the records of these outputs."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a command line, which override the settings of the program.

    If an option is None, the setting of the program applies.

    Arguments:
        parallelism: the number of subtasks of operators without a parallelism of their own.
        checkpoint_dir: the job's checkpoint folder.
        checkpoint_interval_seconds: the time between the starts of two snapshots, in seconds.
        resume: the snapshot to resume from: "newest", its number, or its path. If it is None, the
            job starts from the beginning.
        fork: whether the job may resume from a snapshot that is not its newest.
        allow_dropped: whether to drop state that the program no longer has.
        sink_markers: the newest snapshot whose output is in the target of a sink, keyed by the uid
            of the sink. It is for a target that has lost its marker.
        report: the path of the file into which the report is written, as JSON.
        executor: the executor that runs the program instead of the default one.
        progress: a function that is called with each event of the running job.
        in_process: whether to run the job inside this process.
        on_lost_position, claim_mode: see `JobConfig`.
        log_level: the level of the root logger in the job's processes.
        job_parameters: parameters of the job, which replace those of the program by name.
        runtime_mode: whether the program runs as a stream or as a batch.
        python_files, python_archives: files and archives for the workers, in addition to those of
            the program.
        python_requirements, python_executable, install_requirements: see `JobConfig`.
        supervise: whether another JobManager is started if the JobManager dies.
    """

    parallelism: int | None = None
    checkpoint_dir: str | None = None
    checkpoint_interval_seconds: float | None = None
    resume: str | int | None = None
    fork: bool = False
    allow_dropped: bool = False
    sink_markers: Mapping[str, int] = field(default_factory=dict)
    report: str | None = None
    executor: Executor | None = None
    progress: Callable[[dict[str, PlainValue]], None] | None = None
    in_process: bool | None = None
    on_lost_position: LostPosition | None = None
    claim_mode: RecoveryClaimMode | None = None
    log_level: int | None = None
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    runtime_mode: RuntimeExecutionMode | None = None
    python_files: str | None = None
    python_archives: str | None = None
    python_requirements: str | None = None
    python_executable: str | None = None
    install_requirements: bool | None = None
    supervise: bool = False

    def applied_to(self, config: JobConfig) -> JobConfig:
        """Return a copy of a job's settings with these options applied."""
        overrides: dict[str, UserValue] = {
            "parallelism": self.parallelism,
            "checkpoint_dir": self.checkpoint_dir,
            "checkpoint_interval_seconds": self.checkpoint_interval_seconds,
            "in_process": self.in_process,
            "on_lost_position": self.on_lost_position,
            "claim_mode": self.claim_mode,
            "log_level": self.log_level,
            "runtime_mode": self.runtime_mode,
            "python_requirements": self.python_requirements,
            "python_executable": self.python_executable,
            "install_requirements": self.install_requirements,
        }
        for name in ("python_files", "python_archives"):
            if given := getattr(self, name):
                overrides[name] = joined(given, getattr(config, name))
        if self.job_parameters:
            overrides["job_parameters"] = {**config.job_parameters, **self.job_parameters}
        return replace(config, **{k: v for k, v in overrides.items() if v is not None})


_options = RunOptions()


@contextmanager
def run_options(options: RunOptions) -> Iterator[None]:
    """Apply these options to every execution within the `with` block."""
    global _options
    before, _options = _options, options
    try:
        yield
    finally:
        _options = before


def current_options() -> RunOptions:
    """Return the options of the innermost `run_options` block, or the defaults."""
    return _options
