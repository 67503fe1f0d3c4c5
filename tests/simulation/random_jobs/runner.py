"""Runs a case: a job under one seed, over as many runs as its disturbances make of it."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing

from penstock.dataflow.errors import GraphError, PenstockError
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.jobmanager.restart_backoff import MAX_FAILURES_AT_START
from penstock.snapshot.storage.store import Store
from tests.simulation.cluster import HookedDiskFiles
from tests.simulation.databases import closing_databases
from tests.simulation.job import LEDGERS, Ledger
from tests.simulation.processes import KILLED, Killed, Machine, Process
from tests.simulation.random_jobs.disturbance import Fault, Moment, draw_faults, draw_kinds
from tests.simulation.random_jobs.job import RandomJob, draw_job
from tests.simulation.random_jobs.settings import BATCH, draw_config, draw_modes
from tests.simulation.run_program import program
from tests.simulation.scheduler import seed_scheduler

__all__ = ["CaseResult", "run_case"]

#: The last of so many runs is not disturbed.
RUNS = 8
#: Virtual seconds after which a run counts as hung.
DEADLINE_SECONDS = 60.0
#: A split of an endless source has gone on when it gave so many records in the last run.
PROGRESS = 5


@dataclass
class CaseResult:
    """How a case went.

    Arguments:
        seed: of everything.
        modes: the modes that it had to draw from.
        description: of the job.
        lost, doubled: records that are missing, or there too often.
        late: records that were late, in a job of which none may be.
        repeats: records may be repeated, as documented: a run with at least once had a failure.
        hung: a run did not end.
        crashes: exceptions that nothing expected.
        happened: kills, stops, resumes, restarts and the like, by name.
        log: what happened, in order.
    """

    seed: int
    modes: list[str]
    description: str
    lost: Counter[Any] = field(default_factory=Counter)
    doubled: Counter[Any] = field(default_factory=Counter)
    late: Counter[Any] = field(default_factory=Counter)
    repeats: bool = False
    hung: bool = False
    crashes: list[BaseException] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    @property
    def mode(self) -> str:
        """Return the mode of all runs, or that it changed."""
        return self.modes[0] if len(self.modes) == 1 else "changing"

    @property
    def right(self) -> bool:
        """Return whether the output is what was promised."""
        doubled = self.doubled and not self.repeats
        return not (self.lost or doubled or self.late or self.hung or self.crashes)


def run_case(
    seed: int, modes: Sequence[str] | None = None, shapes: Collection[str] = ()
) -> CaseResult:
    """Run the case of a seed.

    Arguments:
        seed: of everything.
        modes: to draw from; drawn as well if it is None.
        shapes: to draw from; all if there are none.
    """
    rng = random.Random(seed)
    drawn = draw_modes(rng)
    modes = list(modes or drawn)
    ledger = LEDGERS[seed] = Ledger(rng=random.Random(seed))
    job = draw_job(rng, seed, modes == [BATCH], shapes)
    case = _Case(rng, job, ledger, CaseResult(seed, modes, str(job)))
    seed_scheduler(seed)
    shm = Path("/dev/shm")
    try:
        with (
            closing_databases(),
            tempfile.TemporaryDirectory(dir=str(shm) if shm.is_dir() else None) as folder,
        ):
            case.folder = folder
            trio.run(case.main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as error:
        if not isinstance(error, Exception | BaseExceptionGroup):
            raise
        case.result.crashes.append(error)
    finally:
        del LEDGERS[seed]
    output = ledger.output()
    expected = job.expected(output, case.parallelism)
    late = Counter({record: output.pop(record) for record in list(output) if record[0] == "late"})
    case.result.lost, case.result.doubled = expected - output, output - expected
    if case.result.repeats:
        # With at least once, a restored watermark may be ahead of records that are read again.
        # These have been in their windows before, or they would be lost.
        case.result.doubled += late
        # With repeated records the last counts are higher, and take the place of the right ones.
        for record in [record for record in case.result.lost if "end" in record]:
            del case.result.lost[record]
    else:
        case.result.late = late
    return case.result


class _Case:
    """The runs of one case, one after the other.

    Arguments:
        rng: of all choices.
        job: what is run.
        ledger: where its output goes.
        result: is filled in.
    """

    folder = ""

    def __init__(
        self, rng: random.Random, job: RandomJob, ledger: Ledger, result: CaseResult
    ) -> None:
        self._rng, self._job, self.ledger, self.result = rng, job, ledger, result
        self.batch = result.modes == [BATCH]
        self._kinds = draw_kinds(rng)
        self._delay = rng.choice([0.001, 0.004, 0.008])
        self.parallelism, self._fuse = rng.choice([1, 2, 2, 2, 3]), True
        #: With which the newest snapshot is known to be restored.
        self._fits = self.parallelism, self._fuse

    async def main(self) -> None:
        """Run the job until it is over."""
        async with trio.open_nursery() as nursery:
            machine = Machine(self._rng, nursery, self._delay)
            for number in range(RUNS):
                faults = draw_faults(self._rng, self._kinds, self.batch)
                run = _Run(self, machine, faults if number < RUNS - 1 else [])
                over = await run.to_its_end(resume=number > 0, last=number == RUNS - 1)
                self.result.crashes += machine.crashes
                if over or not self._goes_on():
                    break
                for process in machine.processes:
                    process.kill()
                await trio.sleep(0.3)
                self._change(run)
            else:
                self.result.hung = True
            for process in machine.processes:
                process.kill()
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()

    def _goes_on(self) -> bool:
        return not (self.result.hung or self.result.crashes)

    def _change(self, run: _Run) -> None:
        """Draw how the program differs in the next run."""
        rng, before = self._rng, (self.parallelism, self._fuse)
        if run.refused:
            self.parallelism, self._fuse = self._fits
            return
        if run.running:
            self._fits = before
        if not self._job.fixed and rng.random() < 0.7:
            self.parallelism = rng.choice([1, 2, 2, 3])
        if rng.random() < 0.3:
            self._fuse = not self._fuse
        self.count("rescaled", self.parallelism != before[0])

    def count(self, what: str, often: int = 1) -> None:
        """Note that something happened."""
        self.result.happened[what] += often

    def make(self, last: bool) -> tuple[bytes, str]:
        """Return the program of the next run, and its mode."""
        mode = self._rng.choice(self.result.modes)
        if self.endless and last:
            mode = "exactly once"  # with which nothing is in flight when it is stopped
        rng, folder = self._rng, self.folder
        config = draw_config(rng, mode, self.parallelism, folder, self._delay)
        self.log(f"{mode}, parallelism {self.parallelism}, fused {self._fuse}, {config}")
        return program(lambda env: self._job.build(env, self._fuse), config), mode

    def log(self, what: str) -> None:
        """Note what happens, for a failure."""
        self.result.log.append(what)

    def went_on(self, before: Counter[int]) -> bool:
        """Return whether all splits of an endless source have given more than `before`."""
        now = self._job.progress(self.ledger.output())
        return all(now[n] >= before[n] + PROGRESS for n in range(self._job.splits))

    @property
    def endless(self) -> bool:
        """Return whether the job ends only when it is stopped."""
        return self._job.endless

    def output_is_ahead(self) -> bool:
        """Return whether a repeating job was stopped before records that are already output.

        With repeated records, a snapshot may hold output of one subtask that is ahead of the
        positions of the source. The records of the other subtasks come when the job is resumed.
        """
        output = self.ledger.output()
        return self.result.repeats and bool(self._job.expected(output, self.parallelism) - output)

    @property
    def progress(self) -> Counter[int]:
        """Return how far each split of an endless source has come."""
        return self._job.progress(self.ledger.output()) if self.endless else Counter()

    def choose(self, processes: list[Process]) -> list[Process]:
        """Return one of these, or none if there is none."""
        return [self._rng.choice(processes)] if processes else []


class _Run:
    """One JobManager, its workers, and what happens to them.

    Arguments:
        case: it belongs to.
        machine: runs all processes.
        faults: what happens, in this order.
    """

    def __init__(self, case: _Case, machine: Machine, faults: list[Fault]) -> None:
        self._case, self._machine, self._faults = case, machine, faults
        self._process = machine.process("jobmanager")
        self._job: JobManager | None = None
        self._outcome: Any = None
        self._in_flight = 0
        #: How often what a fault may wait for has happened.
        self._moments = Counter[str]()
        #: The fault that happens next, and how often its moment must have come.
        self._aimed: Fault | None = None
        self._wanted, self._struck = 0, trio.Event()
        case.ledger.on_commit = self._committing
        self._failed = self._stopping = False
        self._kills_before_start = 0
        self.running = self.refused = False

    async def to_its_end(self, *, resume: bool, last: bool) -> bool:
        """Run it; return whether the job is over."""
        case = self._case
        blob, mode = case.make(last)
        before = case.progress
        case.count("resumes", resume)
        self._machine.start(self._process, partial(self._main, blob, resume))
        with trio.move_on_after(DEADLINE_SECONDS) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._disturb, before)
                await self._process.ended.wait()
                nursery.cancel_scope.cancel()
        case.log(f"{trio.current_time():.3f} ended: {_words(self._outcome)}")
        if limit.cancelled_caught:
            case.result.hung = True
            return True
        if mode == "at least once" and self._failed:
            case.result.repeats = True
        return self._is_over(before)

    def _is_over(self, before: Counter[int]) -> bool:
        outcome = self._outcome
        if isinstance(outcome, GraphError) and "end_input has run in some" in str(outcome):
            self.refused = True
            return False
        # A failure while the job is being stopped may end it, and it can be resumed. So does the
        # last of several failures before the job has begun.
        excused = (
            self._process.how == KILLED
            or (self._stopping and self._failed)
            or self._kills_before_start >= MAX_FAILURES_AT_START
        )
        if isinstance(outcome, PenstockError) and not excused:
            self._case.result.crashes.append(outcome)
            return True
        if outcome is None or isinstance(outcome, PenstockError):
            return False
        if self._case.endless:
            # What is in flight comes out when the job is resumed.
            went_on = self._case.went_on(before)
            return went_on and not self._in_flight and not self._case.output_is_ahead()
        return not outcome.stopped

    async def _main(self, blob: bytes, resume: bool) -> None:
        files = HookedDiskFiles()

        def hook(operation: str, path: Path) -> None:
            if operation == "make_folder" and path.parent.name == "checkpoints":
                self._comes("create")
            elif operation == "link" and path.name == "manifest":
                self._comes("publish")
            if self._process.dead:
                raise Killed

        files.hook = hook
        self._process.on_kill.append(files.release)
        self._job = JobManager(
            blob,
            self._machine.system(self._process),
            JobSettings(resume="newest" if resume else None),
            lambda event: self._observe(event.to_wire()),
            lambda root: Store(root, files, trio.current_time),
        )
        try:
            self._outcome = await self._job.run()
        except PenstockError as error:
            self._outcome = error

    def _observe(self, event: dict[str, Any]) -> None:
        if self._process.dead:
            return
        what, case = event["event"], self._case
        if what == "snapshot":
            self._in_flight = event["log_records"]
            case.count("snapshots")
            self._comes("snapshot")
        elif what == "running":
            self.running = True
            self._comes("running")
        elif what == "restarting":
            self._failed = True
            case.count("restarts")
        elif what == "aborted":
            case.count("aborted snapshots")
        if what in ("resumed", "restarted"):
            case.count("logs restored", event["log_records"] > 0)
        if what != "types":
            told = {key: value for key, value in event.items() if key in _TOLD}
            case.log(f"{trio.current_time():.3f} {told}")

    # ---- disturbances

    async def _disturb(self, before: Counter[int]) -> None:
        for fault in self._faults:
            self._struck, self._wanted = trio.Event(), self._moments[fault.moment] + fault.count
            self._aimed = fault
            if fault.count:
                await self._struck.wait()
            if not fault.count or fault.delay_seconds:
                await trio.sleep(fault.delay_seconds)
                self._strike(fault)
        if self._case.endless and not self._process.dead:
            while not self._case.went_on(before):
                await trio.sleep(0.01)
            self._stop()

    def _comes(self, moment: Moment) -> None:
        """Count a moment. If a fault waits for it, it happens, at once or after its delay."""
        self._moments[moment] += 1
        fault = self._aimed
        if fault is not None and fault.count and self._moments[fault.moment] >= self._wanted:
            self._aimed = None
            if not fault.delay_seconds:
                self._strike(fault)
            self._struck.set()

    def _committing(self, moment: str) -> None:
        """Count what a committer does. It does no more if its JobManager is killed meanwhile."""
        self._comes("commit" if moment == "commit" else "committed")
        if self._process.dead:
            raise Killed

    def _stop(self) -> None:
        if self._job is not None:
            self._case.count("stops")
            self._stopping = True
            self._job.stop()

    def _strike(self, fault: Fault) -> None:
        case = self._case
        living = [process for process in self._machine.processes if not process.dead]
        workers = [process for process in living if process is not self._process]
        if fault.what == "stop":
            self._stop()
            return
        victims = {
            "worker": case.choose(workers),
            "all workers": workers,
            "jobmanager": [self._process],
        }[fault.what]
        for process in victims:
            case.log(f"{trio.current_time():.3f} kill {process.name}")
            case.count("jobmanagers killed" if process is self._process else "workers killed")
            self._failed = True
            process.kill()
        self._kills_before_start += not self.running


_TOLD = ("event", "number", "kind", "reason", "cause", "log_records", "text")


def _words(outcome: Any) -> str:
    if outcome is None:
        return "killed"
    if isinstance(outcome, Exception):
        return repr(outcome)[:300]
    return "stopped" if outcome.stopped else "done"
