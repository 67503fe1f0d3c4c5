"""Run a user's program once in the simulated cluster, to its end: `SimulatedJob`."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import trio

from penstock.dataflow.config import JobConfig, RestartStrategy
from penstock.dataflow.errors import JobError, PenstockError
from penstock.dataflow.graph.batch_mode import in_runtime_mode
from penstock.dataflow.program import Program
from penstock.runtime.control.job_code import JobCode, pack
from penstock.runtime.control.record_class_search import record_classes
from penstock.testing.simulation.faults import Fault, Schedule
from penstock.testing.simulation.machine import KILLED, Machine
from penstock.testing.simulation.pacing import Pace, paced
from penstock.testing.simulation.recording import Recording, forget, recorded
from penstock.testing.simulation.simulated_cluster import SimulatedCluster
from penstock.testing.simulation.simulated_run import SimulatedRun

#: The restarts of a run after which the job is thought to fail each time.
_RESTARTS = 25
#: The time between heartbeats, and the time without one after which a worker is replaced.
HEARTBEAT_SECONDS, HEARTBEAT_TIMEOUT_SECONDS = 0.25, 1.0
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class ProcessLife:
    """Describes when a process lived, and how it ended.

    Arguments:
        name: the name of the process.
        begin, end: its first and its last moment, in virtual seconds.
        how: how it ended.
    """

    name: str
    begin: float
    end: float
    how: str

    @property
    def killed(self) -> bool:
        """Whether it was killed."""
        return self.how == KILLED


@dataclass
class RunResult:
    """Describes how a program ran under one seed.

    Arguments:
        seed: the seed.
        schedule: the faults that were planned.
        published: the texts of the records of each sink, with how often each was written.
        read: the greatest number of records that a source has emitted in the last run.
        error: why the job did not end as it should; "" if it did.
        happened: how often there were kills, stops, resumes, restarts and snapshots.
        warnings: the warnings of the job about its functions.
        trace: a line for each event, with the virtual time.
        lives: when each process lived.
        snapshots: the number of each complete snapshot, and the virtual time, in seconds.
    """

    seed: int
    schedule: Schedule
    published: dict[str, Counter[str]] = field(default_factory=dict)
    read: int = 0
    error: str = ""
    happened: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    lives: list[ProcessLife] = field(default_factory=list)
    snapshots: list[tuple[int, float]] = field(default_factory=list)


class SimulatedJob(SimulatedCluster):
    """A program under one seed.

    Arguments:
        program: the program, as the environment has built it.
        seed: the source of all choices.
        schedule: the plan of its faults.
        pace: how fast sources read.
    """

    def __init__(self, program: Program, seed: int, schedule: Schedule, pace: Pace) -> None:
        super().__init__(
            seed,
            random.Random(seed),
            schedule.delay_seconds,
            torn=any(fault.what == "machine" for fault in schedule.faults),
            disk_failures=schedule.disk_failures,
            store_failures=schedule.store_failures,
        )
        self._program, self._pace = program, pace
        self._recording = Recording(self.rng)
        self._recording.staging_failures = schedule.staging_failures
        self._number = next(_NUMBERS)
        self._faults = list(schedule.faults)
        self.result = RunResult(seed, schedule, happened=self.happened, trace=self.trace)

    def require_packable(self) -> None:
        """Raise a `GraphError` if a function of the program cannot be sent to a worker."""
        try:
            self._pack(self._program.config.parallelism)
        finally:
            forget(self._number)

    def run(self) -> RunResult:
        """Run the job to its end, over all resumes."""
        try:
            with _captured_warnings(self.result.warnings):
                self.execute()
        finally:
            forget(self._number)
        self.result.published = dict(self._recording.published)
        if self.invariants.violations and not self.result.error:
            self.result.error = f"the engine failed: {self.invariants.violations[0]}"
        return self.result

    def next_program(self, number: int, last: bool) -> tuple[bytes, list[Fault]]:
        """Return the packed program of a run, and the faults that have not happened yet."""
        parallelisms = self.result.schedule.parallelisms
        if last:
            self._recording.staging_failures = 0.0
        return self._pack(parallelisms[min(number, len(parallelisms) - 1)]), self._faults

    def on_run(self, run: SimulatedRun) -> None:
        """Connect the sinks with a run."""
        self._recording.on_commit = run.comes

    def is_over(self, run: SimulatedRun, last: bool) -> bool:
        """Return whether the job has ended; note why it has not ended as it should."""
        del last
        self._faults = run.left
        outcome, result = run.outcome, self.result
        if run.hung:
            seconds = self.deadline_seconds
            result.error = f"the job has not ended after {seconds:g} virtual seconds"
            return True
        if isinstance(outcome, PenstockError):
            if not run.excused:
                result.error = _error_text(outcome)
            return not run.excused
        if outcome is None or outcome.stopped:
            return False
        read = [row["records_out"] for row in outcome.operators if row["name"] in self._sources]
        result.read = max(read, default=0)
        return True

    def did_not_end(self) -> None:
        """Note that the job has not ended in its last run."""
        self.result.error = f"the job did not end in {self.runs} runs"

    def ended(self, machine: Machine) -> None:
        """Note when processes lived, and whether one has crashed."""
        for process in machine.processes[len(self.result.lives) :]:
            end = trio.current_time() if process.end is None else process.end
            how = process.how or "ended with the run"
            self.result.lives.append(ProcessLife(process.name, process.begin, end, how))
        if machine.crashes:
            self.result.error = f"the engine failed: {machine.crashes[0]!r}"

    def snapshot_completed(self, number: int) -> None:
        """Note when a snapshot is complete."""
        self.result.snapshots.append((number, trio.current_time()))

    @property
    def _sources(self) -> set[str]:
        return {one.name for one in self._program.graph.operators if one.spec.is_source}

    def _pack(self, parallelism: int) -> bytes:
        graph = recorded(paced(self._program.graph, self._pace), self._number, self._recording)
        settings = self._settings(parallelism)
        graph, config = in_runtime_mode(graph, settings)
        return pack(JobCode(graph, config, types=record_classes(graph, self._program.types)))

    def _settings(self, parallelism: int) -> JobConfig:
        program, schedule = self._program.config, self.result.schedule
        timeout = schedule.timeout_seconds
        return replace(
            program,
            parallelism=parallelism,
            checkpoint_dir=self.folder,
            checkpoint_interval_seconds=schedule.interval_seconds,
            checkpoint_timeout_seconds=(
                program.checkpoint_timeout_seconds if timeout is None else timeout
            ),
            tolerable_failures=1_000_000,
            restart=RestartStrategy("fixed_delay", _RESTARTS, 0.01),
            in_process=False,
            restart_reactive=any(fault.what.startswith("lose slot") for fault in schedule.faults),
            restart_slot_timeout_seconds=0.01,
            # The times of work are invented, so that no task is really slow.
            straggler_window_seconds=0.0,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        )


def _error_text(error: PenstockError) -> str:
    if not isinstance(error, JobError):
        return str(error)
    parts = [error.user_traceback.rstrip() if error.user_traceback else "", error.message]
    parts += [
        f"{what}: {value}"
        for what, value in (("operator", error.operator), ("record", error.record))
        if value is not None
    ]
    return "\n".join(filter(None, parts))


class _Warnings(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # Not those of the JobManager, about each failure.
        if record.name == "penstock" and text not in self._texts:
            self._texts.append(text)


@contextmanager
def _captured_warnings(texts: list[str]) -> Iterator[None]:
    """Collect the warnings of the engine, instead of printing those of each seed."""
    log, handler = logging.getLogger("penstock"), _Warnings(texts)
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before
