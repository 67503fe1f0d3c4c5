"""Run a program under many seeds, and compare its output with that of an undisturbed run.

`Simulation` runs the program, and returns a `SimulationReport`. `simulate` does this for a test.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, TypeVar, cast

from penstock.dataflow.config import CheckpointingMode
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import OperatorOutput
from penstock.dataflow.program import Program, current_options, run_options
from penstock.testing.simulation.calls import undetermined_calls
from penstock.testing.simulation.faults import (
    DEFAULT_FAULTS,
    FAULTS,
    Schedule,
    draw_schedule,
)
from penstock.testing.simulation.pacing import Pace
from penstock.testing.simulation.recording import publishes_once, sink_names
from penstock.testing.simulation.simulated_job import RunResult, SimulatedJob

Result = TypeVar("Result")

#: The number of reads into which the input of a reader is split, about.
_READS = 24
_PAUSE_SECONDS = 0.005
#: The seeds of the runs without faults, which differ in the order of events only.
_ORDERS = range(-4, 0)


@dataclass(frozen=True)
class Failure:
    """A seed under which the output was wrong.

    Arguments:
        result: how the program ran.
        lost: the records that are missing, by sink.
        doubled: the records that are there too often, by sink.
    """

    result: RunResult
    lost: dict[str, Counter[str]]
    doubled: dict[str, Counter[str]]

    def __str__(self) -> str:
        schedule = self.result.schedule
        calm = not schedule.causes and self.result.seed <= 0
        lines = ["without any fault:" if calm else f"seed {self.result.seed}:"]
        if self.result.error:
            lines.append(f"  {self.result.error}".replace("\n", "\n  "))
        for word, by_sink in {"lost": self.lost, "too many": self.doubled}.items():
            for sink, records in by_sink.items():
                shown = ", ".join(list(records)[:3]) + (", …" if len(records) > 3 else "")
                lines.append(f"  {sink}: {records.total()} {word}: {shown}")
        return "\n".join(lines)


@dataclass
class SimulationReport:
    """Describes the results of a simulation.

    Arguments:
        records: the number of records of the undisturbed run.
        seeds: the number of seeds that were run.
        happened: how often there were kills, stops, resumes, restarts and snapshots.
        failures: the seeds whose output was wrong.
        repeated: how many seeds have written records again, by sink without a commit.
        causes: what the failures look like.
    """

    records: int = 0
    seeds: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    causes: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether the output was right under each seed."""
        return not (self.failures or self.causes)

    def __str__(self) -> str:
        happened = " · ".join(f"{what} {often:,}" for what, often in sorted(self.happened.items()))
        lines = [" · ".join(filter(None, (f"{self.records:,} records", happened)))]
        for sink, seeds in self.repeated.items():
            lines.append(
                f"note: sink {sink!r} writes at once: in {seeds:,} of {self.seeds:,} seeds it has "
                f"written records again, which must have no effect on its target. A sink with a "
                f"committer writes each record once"
            )
        for failure in self.failures[:3]:
            lines.append(str(failure))
        if len(self.failures) > 3:
            others = ", ".join(str(one.result.seed) for one in self.failures[3:10])
            lines.append(f"and {len(self.failures) - 3} more seeds: {others}")
        lines += [f"cause: {cause}" for cause in self.causes]
        if self.right:
            lines.append(f"all right: {self.seeds:,} seeds")
        elif self.seeds:
            lines.append(f"failed: {len(self.failures):,} of {self.seeds:,} seeds")
        else:
            lines.append("failed: no seeds were run, because runs without faults differ or fail")
        return "\n".join(lines)

    def require_right(self) -> None:
        """Raise an `AssertionError` with the whole report if the output was wrong."""
        if not self.right:
            raise AssertionError(str(self))


class Simulation:
    """Runs a program in the simulated cluster.

    Arguments:
        program: the program.
        faults: the kinds of faults, from `FAULTS`.
        jobs: the number of processes that run seeds. With more than one, all runs are in processes
            that are forked from this one. So this process must not have used RocksDB, whose threads
            are missing in a forked process, as are other threads of the program.

    Raises:
        GraphError: if the program cannot be simulated.
    """

    def __init__(
        self, program: Program, faults: Collection[str] = DEFAULT_FAULTS, jobs: int = 1
    ) -> None:
        self._program, self.faults, self._jobs = program, tuple(faults), jobs
        unknown = set(faults) - set(FAULTS)
        if unknown:
            raise GraphError(
                f"there is no fault {sorted(unknown)[0]!r}: the faults are {', '.join(FAULTS)}"
            )
        compile_graph(program.graph, program.config)
        names = sink_names(program.graph)
        self._once: dict[str, bool] = {}
        for operator in program.graph.operators:
            if operator.spec.is_sink:
                self._once[names[operator.id]] = publishes_once(operator.function)
            elif operator.spec.is_source:
                _require_repeatable(operator.name, operator.function)
        if not self._once:
            raise GraphError("the program has no sink, so there is no output to compare")
        # Here, because an error in a run would come from another process, and from within trio.
        SimulatedJob(program, 0, Schedule(), Pace()).require_packable()
        self._parallelism = program.config.parallelism
        self._pace = Pace()
        self._expected: dict[str, Counter[str]] = {}

    @property
    def output(self) -> list[str]:
        """The output of the undisturbed run: a line for each record, sorted."""
        return sorted(
            f"{sink}: {text}" for sink, texts in self._expected.items() for text in texts.elements()
        )

    def begin(self) -> SimulationReport:
        """Run the program without faults, in several orders, and keep its output.

        Returns:
            A report that has causes if the output differs between these runs.
        """
        report, self._expected, self._pace = self._apart(self._begin)
        return report

    def _begin(self) -> tuple[SimulationReport, dict[str, Counter[str]], Pace]:
        report = SimulationReport()
        self._try_without_faults(report)
        return report, self._expected, self._pace

    def _try_without_faults(self, report: SimulationReport) -> None:
        unpaced = self._undisturbed(0)
        report.records = sum(texts.total() for texts in unpaced.published.values())
        self._pace = Pace(max(1, unpaced.read // _READS), _PAUSE_SECONDS)
        first = unpaced if unpaced.error else self._undisturbed(0)
        self._expected = first.published
        if first.error:
            report.failures.append(Failure(first, {}, {}))
            report.causes.append("the program fails without any fault")
            return
        again = self._undisturbed(0)
        if again.published != first.published:
            report.failures.append(self._compared(again))
            # Only now, because watching calls makes a run slow.
            calls = undetermined_calls(lambda: self._undisturbed(0))
            what = "".join(f"\n  it reads {call}" for call in calls) or "\n  no call was recognized"
            report.causes.append(
                f"the program is not deterministic: two runs with the same input and order differ. "
                f"After a failure, records would be processed with another result{what}"
            )
            return
        for seed in _ORDERS:
            result = self._undisturbed(seed)
            if result.error or result.published != first.published:
                report.failures.append(self._compared(result))
                report.causes.append(
                    "the output depends on the order of records of different channels, splits or "
                    "subtasks, which is another after each failure. Order them by event time, or "
                    "let the function give the same result in any order. This order also decides "
                    "which of the numbers of get_random() a record gets"
                )
                break

    def run(self, seed: int) -> RunResult:
        """Run the program under a seed."""
        rng = random.Random(seed)
        schedule = draw_schedule(rng, self.faults, self._parallelism)
        return self.run_schedule(seed, schedule)

    def run_schedule(self, seed: int, schedule: Schedule) -> RunResult:
        """Run the program under a seed, with other faults than the seed has drawn."""
        return SimulatedJob(self._program, seed, schedule, self._pace).run()

    def run_all(self, seeds: Sequence[int], report: SimulationReport) -> Iterator[SimulationReport]:
        """Run the program under many seeds.

        Arguments:
            seeds: the seeds.
            report: what `begin` has returned; it is completed.

        Yields:
            The report, after each seed. At the end it has causes.
        """
        for result in self._results(seeds):
            report.seeds += 1
            report.happened += result.happened
            for sink in self._repeated(result):
                report.repeated[sink] += 1
            failure = self.failure(result)
            if failure is not None:
                report.failures.append(failure)
            yield report
        if report.failures:
            report.failures.sort(key=lambda failure: failure.result.seed)
            report.failures[0], report.causes = self._apart(
                lambda: self._explained(report.failures[0])
            )

    def _explained(self, failure: Failure) -> tuple[Failure, list[str]]:
        smallest = self.shrunk(failure)
        return smallest, self.causes(smallest)

    def _apart(self, call: Callable[[], Result]) -> Result:
        """Call a function in a process of its own, if seeds have such processes."""
        if self._jobs == 1:
            return call()
        (result,) = _from_processes([lambda: iter([call()])])
        return cast("Result", result)

    def _results(self, seeds: Sequence[int]) -> Iterator[RunResult]:
        if self._jobs == 1:
            return map(self.run, seeds)
        parts = [seeds[job :: self._jobs] for job in range(self._jobs)]
        return _from_processes([partial(self._run_without_trace, part) for part in parts])

    def _run_without_trace(self, seeds: Sequence[int]) -> Iterator[RunResult]:
        for seed in seeds:
            result = self.run(seed)
            result.trace.clear()  # A failing seed is run again.
            yield result

    def failure(self, result: RunResult) -> Failure | None:
        """Return the failure that a result shows; None if the result is right."""
        found = self._compared(result)
        return found if result.error or found.lost or found.doubled else None

    def shrunk(self, failure: Failure) -> Failure:
        """Return a failure of the same seed with as few faults as are needed for it."""
        smallest, changed = failure, True
        while changed:
            changed = False
            for simpler in _simpler(smallest.result.schedule):
                found = self.failure(self.run_schedule(failure.result.seed, simpler))
                if found is not None:
                    smallest, changed = found, True
                    break
        return smallest

    def causes(self, failure: Failure) -> list[str]:
        """Return what a failure looks like."""
        if failure.result.warnings:
            return [f"state outside of state: {text}" for text in failure.result.warnings]
        calls = undetermined_calls(lambda: self._undisturbed(0))
        return [f"maybe a call that differs after a failure: it reads {call}" for call in calls]

    def _undisturbed(self, seed: int) -> RunResult:
        return self.run_schedule(seed, Schedule((), (self._parallelism,)))

    def _compared(self, result: RunResult) -> Failure:
        lost: dict[str, Counter[str]] = {}
        doubled: dict[str, Counter[str]] = {}
        for sink, once in self._once.items():
            wanted = self._expected.get(sink, Counter())
            found = result.published.get(sink, Counter())
            if missing := wanted - found:
                lost[sink] = missing
            more = found - wanted
            if not once or self._program.config.checkpointing_mode in _REPEATING:
                # Records may be written again, but no others.
                more = Counter({text: often for text, often in more.items() if text not in wanted})
            if more:
                doubled[sink] = more
        return Failure(result, lost, doubled)

    def _repeated(self, result: RunResult) -> list[str]:
        return [
            sink
            for sink, once in self._once.items()
            if not once and result.published.get(sink, Counter()) > self._expected[sink]
        ]


#: The modes in which a record may be processed again after a failure.
_REPEATING = (CheckpointingMode.AT_LEAST_ONCE,)


def _from_processes(parts: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """Run functions, each in a process that is forked, and yield what they yield."""
    context = multiprocessing.get_context("fork")
    connections, processes = [], []
    try:
        for part in parts:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_send, args=(part, theirs))
            process.start()
            theirs.close()
            connections.append(ours)
            processes.append(process)
        while connections:
            for ready in wait(connections):
                assert isinstance(ready, Connection)
                try:
                    yield ready.recv()
                except EOFError:
                    connections.remove(ready)
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a process of the simulation has ended: {process.exitcode}")
    finally:
        for process in processes:
            process.kill()
            process.join()


def _send(part: Callable[[], Iterator[Any]], connection: Connection) -> None:
    # The parent ends this process if it is interrupted itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for result in part():
        connection.send(result)


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with one thing less."""
    for index in range(len(schedule.faults)):
        faults = schedule.faults[:index] + schedule.faults[index + 1 :]
        yield replace(schedule, faults=faults)
    if len(schedule.parallelisms) > 1:
        yield replace(schedule, parallelisms=schedule.parallelisms[:1])
    if schedule.store_failures is not None:
        yield replace(schedule, store_failures=None)
    if schedule.disk_failures:
        yield replace(schedule, disk_failures=0.0)
    if schedule.staging_failures:
        yield replace(schedule, staging_failures=0.0)
    if schedule.timeout_seconds is not None:
        yield replace(schedule, timeout_seconds=None)
    if schedule.delay_seconds > 0.001:
        yield replace(schedule, delay_seconds=0.001)


def _require_repeatable(name: str, source: Any) -> None:
    if not source.ends:
        raise GraphError(
            f"the source {name!r} ({type(source).__name__}) does not end: give it a bounded input "
            f"for the simulation, such as a file with some hundred records"
        )
    if not source.rewindable:
        raise GraphError(
            f"the source {name!r} ({type(source).__name__}) cannot be read again after a failure, "
            f"so records are lost by its nature: use a file for the simulation"
        )


def simulate(
    main: Callable[[], object],
    *,
    seeds: int | Sequence[int] = 100,
    faults: Collection[str] = DEFAULT_FAULTS,
) -> SimulationReport:
    """Run a program under many seeds, each with its own faults, and compare its output.

    The first program that `main` executes is simulated, and `main` does not continue behind it. Its
    sinks are replaced by sinks that record what they would publish.

    Arguments:
        main: builds the program and calls `execute`.
        seeds: the number of seeds, or the seeds.
        faults: the kinds of faults, from `FAULTS`.

    Raises:
        GraphError: if the program cannot be simulated.

    Examples:
        >>> def main():
        ...     env = StreamExecutionEnvironment.get_execution_environment()
        ...     numbers = env.from_collection([1, 2, 3]).map(lambda number: 2 * number)
        ...     numbers.sink_to(FileSink("doubled"))
        ...     env.execute()
        >>> simulate(main, seeds=3).right
        True
    """
    simulation = Simulation(captured(main), faults)
    report = simulation.begin()
    if report.right:
        numbers = range(seeds) if isinstance(seeds, int) else seeds
        for _ in simulation.run_all(numbers, report):
            pass
    return report


def captured(main: Callable[[], object]) -> Program:
    """Return the first program that a function executes, which does not run.

    Raises:
        GraphError: if it executes none.
    """
    try:
        with run_options(replace(current_options(), executor=_Capture())):
            main()
    except _Captured as found:
        return found.program
    raise GraphError("no program was executed: the function must call env.execute()")


class _Captured(BaseException):
    def __init__(self, program: Program) -> None:
        self.program = program


class _Capture:
    """An executor that hands over the program, and ends the function that executes it."""

    def execute(self, program: Program) -> NoReturn:
        raise _Captured(program)

    submit = execute

    def collect(self, program: Program, outputs: Sequence[OperatorOutput]) -> NoReturn:
        add_collecting_sink(program, outputs)
        raise _Captured(program)


def add_collecting_sink(program: Program, outputs: Sequence[OperatorOutput]) -> None:
    """Add the sink of `execute_and_collect` to a program."""
    from penstock.runtime.operators.collect_sink import CollectSink

    program.add_sink("Collect", outputs, CollectSink(""))
