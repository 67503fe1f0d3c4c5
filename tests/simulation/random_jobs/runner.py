"""Runs a case: a job under one seed, over as many runs as its disturbances make of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.errors import GraphError, PenstockError
from penstock.testing.connectors import FakeSystem
from penstock.testing.simulation.faults import FAULTS, Fault, draw_faults
from penstock.testing.simulation.machine import Machine
from penstock.testing.simulation.simulated_cluster import SimulatedCluster
from penstock.testing.simulation.simulated_run import SimulatedRun
from tests.simulation.job import LEDGERS, Ledger
from tests.simulation.random_jobs.job import RandomJob, draw_job, system_name
from tests.simulation.random_jobs.settings import BATCH, draw_config, draw_modes
from tests.simulation.run_program import program

__all__ = ["CaseResult", "run_case"]

#: A split of an endless source has gone on when it gave so many records in the last run.
PROGRESS = 5
#: The values of a job's fields with which it has fewer operators, or simpler ones.
PLAIN: dict[str, Any] = {
    "second_sink": False,
    "beside": False,
    "apart": "",
    "sources": 1,
    "spread": "",
    "blocking": False,
    "keyed": False,
}


@dataclass
class CaseResult:
    """How a case went.

    Arguments:
        seed: of everything.
        modes: the modes that it had to draw from.
        job: what was run.
        lost, doubled: records that are missing, or there too often.
        late: records that were late, in a job of which none may be.
        repeats: records may be repeated, as documented: a run with at least once had a failure.
        hung: a run did not end.
        crashes: exceptions that nothing expected.
        faults: the kinds of faults that could happen.
        violations: what must hold after each step, and did not.
        happened: kills, stops, resumes, restarts and the like, by name.
        log: what happened, in order.
    """

    seed: int
    modes: list[str]
    job: Any
    lost: Counter[Any] = field(default_factory=Counter)
    doubled: Counter[Any] = field(default_factory=Counter)
    late: Counter[Any] = field(default_factory=Counter)
    repeats: bool = False
    hung: bool = False
    crashes: list[BaseException] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
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
        wrong = self.lost or doubled or self.late or self.hung or self.crashes or self.violations
        return not wrong


def simplified(job: RandomJob, plain: Collection[str]) -> RandomJob:
    """Return a job with some fields replaced by those of `PLAIN`, if it has them.

    A job with one source has none that goes beside its shape.
    """
    if "sources" in plain:
        plain = {*plain, "beside"}
    return replace(job, **{field: PLAIN[field] for field in plain if hasattr(job, field)})


def run_case(
    seed: int,
    modes: Sequence[str] | None = None,
    shapes: Collection[str] = (),
    faults: Collection[str] = tuple(FAULTS),
    plain: Collection[str] = (),
) -> CaseResult:
    """Run the case of a seed.

    Arguments:
        seed: of everything.
        modes: to draw from; drawn as well if it is None.
        shapes: to draw from; all if there are none.
        faults: the kinds of faults, from `FAULTS`.
        plain: the fields of the drawn job that are replaced by those of `PLAIN`.
    """
    rng = random.Random(seed)
    drawn = draw_modes(rng)
    modes = list(modes or drawn)
    ledger = LEDGERS[seed] = Ledger(rng=random.Random(seed))
    system = FakeSystem(system_name(seed), failure_rate=0.03, seed=seed)
    job = draw_job(rng, seed, modes == [BATCH], shapes)
    job = simplified(job, plain)
    result = CaseResult(seed, modes, job)
    case = _Case(rng, job, ledger, result, system, faults)
    try:
        with system:
            case.execute()
    except Exception as error:
        result.crashes.append(error)
    finally:
        del LEDGERS[seed]
    result.happened, result.log = case.happened, case.trace
    result.violations = case.invariants.violations
    case.count("faults of a target", system.faults.total())
    output = ledger.output() + Counter(map(tuple, system.records))
    expected = job.expected(output, case.parallelism)
    late = Counter({record: output.pop(record) for record in list(output) if record[0] == "late"})
    result.lost, result.doubled = expected - output, output - expected
    if result.repeats:
        # With at least once, a restored watermark may be ahead of records that are read again.
        # These have been in their windows before, or they would be lost.
        result.doubled += late
        # With repeated records the last counts are higher, and take the place of the right ones.
        for record in [record for record in result.lost if "end" in record]:
            del result.lost[record]
    else:
        result.late = late
    return result


def shrunk(result: CaseResult, modes: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return with which faults, and with which plain fields, a case still goes wrong.

    Arguments:
        result: a case that went wrong.
        modes: the modes that it had to draw from.
    """
    faults, plain = list(result.faults), list[str]()
    # Fewer kinds of faults make another run. So few are tried first, and then one less.
    for few in ([], *([kind] for kind in result.faults)):
        if not run_case(result.seed, modes, faults=few).right:
            faults = few
            break
    for kind in faults if len(faults) > 1 else []:
        fewer = [one for one in faults if one != kind]
        if not run_case(result.seed, modes, faults=fewer).right:
            faults = fewer
    for name, value in PLAIN.items():
        if getattr(result.job, name, value) == value:
            continue
        more = [*plain, name]
        if not run_case(result.seed, modes, faults=faults, plain=more).right:
            plain = more
    return faults, plain


class _Case(SimulatedCluster):
    """The runs of one case, one after the other.

    Arguments:
        rng: of all choices.
        job: what is run.
        ledger: where its output goes.
        result: is filled in.
        system: where the output of a transactional sink goes.
        faults: the kinds of faults that may happen.
    """

    deadline_seconds = 60.0

    def __init__(
        self,
        rng: random.Random,
        job: RandomJob,
        ledger: Ledger,
        result: CaseResult,
        system: FakeSystem,
        faults: Collection[str],
    ) -> None:
        # Most cases have a few kinds of faults, so that each of them has its effect.
        drawn = [kind for kind in FAULTS if kind in faults and kind not in ("slot", "store")]
        kinds = [kind for kind in drawn if rng.random() < _SHARES.get(kind, 0.4)]
        # With a fixed shape, the output depends on the parallelism.
        slots = random.Random(f"slots {result.seed}").random() < _SHARES["slot"]
        if "slot" in faults and slots and not job.fixed:
            kinds.append("slot")
        # A file that is damaged in the folder comes from the store again, and is not refused.
        stores = random.Random(f"stores {result.seed}")
        if "store" in faults and "corrupt" not in kinds and stores.random() < _SHARES["store"]:
            kinds.append("store")
        delay = rng.choice([0.001, 0.004, 0.008])
        super().__init__(
            result.seed,
            rng,
            delay if "delay" in kinds else 0.001,
            torn="torn" in kinds,
            disk_failures=rng.choice([0.005, 0.02]) if "disk" in kinds else 0.0,
            store_failures=stores.choice([0.0, 0.02, 0.1]) if "store" in kinds else None,
        )
        if "decline" in kinds:
            ledger.stage_failures, ledger.commit_failures = 0.03, 0.03
        self._job, self.ledger, self.result = job, ledger, result
        self.system, self._kinds = system, kinds
        result.faults = kinds
        self.batch = result.modes == [BATCH]
        self.parallelism, self._fuse = rng.choice([1, 2, 2, 2, 3]), True
        #: With which the newest snapshot is known to be restored.
        self._fits = self.parallelism, self._fuse
        self._mode, self._before = "", Counter[int]()

    # ---- each run

    def next_program(self, number: int, last: bool) -> tuple[bytes, list[Fault]]:
        """Return the program of the next run, and what happens to it."""
        rng = self.rng
        faults = draw_faults(rng, self._kinds, rng.choice([0, 1, 1, 2, 3]), self.batch)
        if last:
            self.system.failure_rate = 0.0
            self.ledger.stage_failures = self.ledger.commit_failures = 0.0
        mode = rng.choice(self.result.modes)
        if self._job.endless and last:
            mode = "exactly once"  # with which nothing is in flight when it is stopped
        declines = "decline" in self._kinds
        config = draw_config(
            rng,
            mode,
            self.parallelism,
            self.folder,
            self._delay_seconds,
            declines,
            loses_slots="slot" in self._kinds,
        )
        if config.restart_scope is RestartScope.TASK and "kill" in self._kinds and not last:
            faults += self._kills_of_tasks(number)
        self.log(f"{mode}, parallelism {self.parallelism}, fused {self._fuse}, {config}")
        self._mode, self._before = mode, self._progress
        return program(lambda env: self._job.build(env, self._fuse), config), faults

    def _kills_of_tasks(self, number: int) -> list[Fault]:
        """Return kills of single workers, from each of which a part of the tasks may restart.

        They are drawn apart, so that a seed has the same other faults.
        """
        rng = random.Random(f"tasks {self.result.seed} {number}")
        delays = [0.0, 0.003, 0.02]
        return [
            Fault("worker", "snapshot", rng.randint(1, 4), rng.choice(delays)) for _ in range(2)
        ]

    def on_run(self, run: SimulatedRun) -> None:
        """Connect the ledger and the target with a run."""
        self.ledger.on_commit = run.comes
        self.system.hook = lambda step: run.comes(_STEPS.get(step, step))

    async def beside(self, run: SimulatedRun) -> None:
        """Stop an endless job when all of its splits have gone on."""
        if self._job.endless:
            # A fault may wait for a moment that does not come, such as another start.
            patience = trio.current_time() + 0.5
            while not self._went_on or (run.left and trio.current_time() < patience):
                await trio.sleep(0.01)
            run.stop()

    def is_over(self, run: SimulatedRun, last: bool) -> bool:
        """Return whether the job is over; draw how the program differs in the next run."""
        result, outcome = self.result, run.outcome
        # A failure while the job is being stopped ends it without a restart.
        if self._mode == "at least once" and (run.failed or isinstance(outcome, PenstockError)):
            result.repeats = True
        if run.hung:
            result.hung = True
            return True
        refused = isinstance(outcome, GraphError) and "end_input has run in some" in str(outcome)
        if isinstance(outcome, PenstockError) and not refused and not run.excused:
            result.crashes.append(outcome)
            return True
        if not (outcome is None or isinstance(outcome, PenstockError)):
            if not self._job.endless:
                if not outcome.stopped:
                    return True
            # What is in flight comes out when the job is resumed.
            elif self._went_on and not run.in_flight and not self._output_is_ahead:
                return True
        self._change(run, refused)
        return False

    def did_not_end(self) -> None:
        """Note that the job has not ended in its last run."""
        self.result.hung = True

    def ended(self, machine: Machine) -> None:
        """Note what has crashed."""
        self.result.crashes += machine.crashes

    def _change(self, run: SimulatedRun, refused: bool) -> None:
        rng, before = self.rng, (self.parallelism, self._fuse)
        if refused:
            self.parallelism, self._fuse = self._fits
            return
        if run.running:
            self._fits = before
        rescaled = "rescale" in self._kinds and rng.random() < 0.8
        if rescaled and not self._job.fixed:
            self.parallelism = rng.choice([1, 2, 2, 3])
        if rng.random() < 0.3:
            self._fuse = not self._fuse
        self.count("rescaled", self.parallelism != before[0])

    # ---- endless jobs

    @property
    def _progress(self) -> Counter[int]:
        """Return how far each split of an endless source has come."""
        return self._job.progress(self.ledger.output()) if self._job.endless else Counter()

    @property
    def _went_on(self) -> bool:
        """Return whether all splits of an endless source have given more in this run."""
        now = self._progress
        return all(now[n] >= self._before[n] + PROGRESS for n in range(self._job.splits))

    @property
    def _output_is_ahead(self) -> bool:
        """Return whether a repeating job was stopped before records that are already output.

        With repeated records, a snapshot may hold output of one subtask that is ahead of the
        positions of the source. The records of the other subtasks come when the job is resumed.
        """
        output = self.ledger.output()
        return self.result.repeats and bool(self._job.expected(output, self.parallelism) - output)


#: The part of the cases that have a kind of faults, if it is not 0.4.
_SHARES = {
    "kill": 0.75,
    "stop": 0.75,
    "delay": 0.6,
    "rescale": 0.8,
    "corrupt": 0.1,
    "disk": 0.1,
    "slot": 0.25,
    "store": 0.25,
}
#: The kinds of faults after which no job is restarted. So nothing may be repeated.
_CALM = {"slow", "delay", "clock", "savepoint", "read", "rescale"}
#: The moments of a transactional target, by its steps.
_STEPS = {"answer": "committed"}
