"""Random programs with a cached stream that is executed several times, with failures in between.

Each record says which execution computed it. So the output tells whether an execution has read the
stored records or computed them, and whether it has all of them. An execution whose JobManager is
killed, or that is stopped, stores nothing, and the one after it computes the records again.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from penstock import MapFunction
from penstock.connectors import GeneratorSource
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import JobError
from penstock.dataflow.program import Program, RunOptions, run_options
from penstock.dataflow.streams import DataStream
from penstock.runtime.control.job_code import JobCode, pack
from penstock.runtime.control.record_class_search import record_classes
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.testing.simulation.databases import closing_databases
from penstock.testing.simulation.machine import Machine
from tests.simulation.job import LEDGERS, Ledger, LedgerSink, PacedSource
from tests.simulation.random_jobs.functions import Count
from tests.simulation.random_jobs.runner import CaseResult
from tests.simulation.random_jobs.settings import MODES, draw_config
from tests.simulation.random_jobs.windows import in_order, source_windows
from tests.simulation.run_program import Events, run_program

__all__ = ["CACHED", "run_cache_case"]

#: The mode under which these programs are counted.
CACHED = "cached"
#: Splits of a source that reads splits with pauses.
SPLITS = 5


class Computed(MapFunction):
    """Emits each number with the execution in which it is computed.

    Arguments:
        ledger: the number of the ledger, which knows the execution.
    """

    def __init__(self, ledger: int) -> None:
        self.ledger = ledger

    def map(self, value: Any) -> tuple[int, int]:
        return int(value), LEDGERS[self.ledger].execution


@dataclass
class _Executor:
    """Runs programs on a simulated cluster, with faults.

    Arguments:
        rng: of all choices.
        result: is filled in.
        disturbed: something may be killed.
    """

    rng: random.Random
    result: CaseResult
    disturbed: bool = True
    #: Whether the JobManager was killed, or the job was stopped.
    _ends_early: bool = False

    def execute(self, program: Program) -> Any:
        """Run a program to its end, and return its outcome. Raise a `JobError` if it has none."""
        self._ends_early = False
        types = record_classes(program.graph, program.types)
        blob = pack(JobCode(program.graph, program.config, types=types))
        ran = run_program(
            blob,
            seed=self.rng.randrange(1 << 30),
            script=self._disturb if self.disturbed else None,
            delay=self.rng.choice([0.001, 0.004]),
        )
        self.result.hung |= ran.hung
        self.result.crashes += ran.crashes
        self.result.happened["restarts"] += sum(e["event"] == "restarting" for e in ran.events)
        self.result.happened["snapshots"] += sum(e["event"] == "snapshot" for e in ran.events)
        self.result.log += [f"{type(ran.outcome).__name__}: {str(ran.outcome)[:200]}"]
        if isinstance(ran.outcome, Exception) and not self._ends_early:
            self.result.crashes.append(ran.outcome)
        if ran.outcome is None or isinstance(ran.outcome, Exception) or ran.outcome.stopped:
            raise JobError("the execution did not come to its end")
        return ran.outcome

    async def _disturb(self, job: JobManager, machine: Machine, events: Events) -> None:
        for _ in range(self.rng.choice([0, 1, 2])):
            await trio.sleep(self.rng.uniform(0.0, 0.25))
            living = [process for process in machine.processes if not process.dead]
            if living and living[0].name == "jobmanager" and len(living) > 1:
                what = self.rng.choice(["worker", "worker", "jobmanager", "stop"])
                self.result.log.append(f"{trio.current_time():.3f} {what}")
                self._ends_early |= what != "worker"
                if what == "stop":
                    self.result.happened["stops"] += 1
                    job.stop()
                    return
                who = "JobManager" if what == "jobmanager" else what
                self.result.happened[f"kills of a {who}"] += 1
                (living[0] if what == "jobmanager" else self.rng.choice(living[1:])).kill()


def run_cache_case(seed: int) -> CaseResult:
    """Run the program of a seed, with all of its executions."""
    rng = random.Random(seed)
    ledger = LEDGERS[seed] = Ledger()
    result = CaseResult(seed, [CACHED], "")
    shm = Path("/dev/shm")
    try:
        with (
            closing_databases(),
            tempfile.TemporaryDirectory(dir=str(shm) if shm.is_dir() else None) as folder,
        ):
            _Case(seed, rng, ledger, result, folder).run()
    except Exception as error:
        result.crashes.append(error)
    finally:
        del LEDGERS[seed]
    return result


class _Case:
    def __init__(
        self, seed: int, rng: random.Random, ledger: Ledger, result: CaseResult, folder: str
    ) -> None:
        self._rng, self._ledger, self._result, self._folder = rng, ledger, result, folder
        self._keys, self._count = rng.choice([3, 12]), rng.choice([30, 60])
        self._timed = rng.random() < 0.5
        self._env = StreamExecutionEnvironment.get_execution_environment()
        self._executor = _Executor(rng, result)
        self._ledger_number = seed
        self._cached: Any = self._stream().map(Computed(seed)).uid("computed").cache()
        result.job = f"cached: {self._count} numbers, {self._keys} keys, {self._timed}"

    def _stream(self) -> DataStream:
        rng, count = self._rng, self._count
        strategy = in_order(int) if self._timed else None
        if rng.random() < 0.5:
            lines = [[str(i) for i in range(part, count, SPLITS)] for part in range(SPLITS)]
            source: Any = PacedSource(self._ledger_number, lines, 0.004, True, self._timed)
        else:
            source = GeneratorSource(lambda i: i, count, 400.0, clock=trio.current_time)
        return self._env.from_source(source, strategy, "numbers").uid("numbers")

    def run(self) -> None:
        """Run all executions, and compare their output with what must come out."""
        #: The executions whose records the cache may hold. One that was stopped may have stored all
        #: records before.
        stored: list[int] = []
        known = False
        expected = Counter[Any]()
        ended: set[int] = set()
        executions = self._rng.randint(2, 5)
        for number in range(executions):
            if self._rng.random() < 0.2:
                self._cached.invalidate()
                stored, known = [], False
            self._ledger.execution = number
            self._executor.disturbed = number < executions - 1
            kind = self._rng.choice(["records", "counts", *["windows"] * self._timed])
            self._add(number, kind)
            done = self._execute(number)
            if not known:
                stored.append(number)
            if done:
                ended.add(number)
                each = [self._expected(number, kind, one) for one in stored]
                right = [one for one in each if one == self._found({number})]
                expected += right[0] if right else each[-1]
                if kind != "windows":  # whose output does not tell which execution stored it
                    stored = [stored[each.index(right[0])]] if right else [number]
                    known = True
        found = self._found(ended)
        self._result.lost, self._result.doubled = expected - found, found - expected

    def _found(self, executions: set[int]) -> Counter[Any]:
        """Return the output of some executions."""
        output = self._ledger.output()
        return Counter({record: n for record, n in output.items() if record[0] in executions})

    def _execute(self, number: int) -> bool:
        """Execute what was added, and return whether it came to its end."""
        rng, env = self._rng, self._env
        config = draw_config(
            rng, rng.choice([*MODES]), rng.choice([1, 2, 3]), f"{self._folder}/{number}", 0.001
        )
        if config.checkpointing_mode.value == "at_least_once":
            config = replace(config, checkpointing_mode=env.config.checkpointing_mode)
        self._result.log.append(f"execution {number}: {config}")
        env._config = config
        done = False
        with suppress(JobError), run_options(RunOptions(executor=self._executor)):
            env.execute()
            done = True
        self._result.happened["executions that failed"] += not done
        return done

    def _add(self, number: int, kind: str) -> None:
        """Add what an execution does with the cached stream."""
        keys = self._keys
        if kind == "counts":
            keyed = self._cached.key_by(lambda pair: (pair[0] % keys, pair[1]))
            out = keyed.process(Count(True))
        elif kind == "windows":
            out = source_windows(self._cached.map(lambda pair: pair[0]), keys)
        else:
            out = self._cached.rebalance().map(lambda pair: ("record", *pair))
        named = out.map(lambda record: (number, *record))
        named.sink_to(LedgerSink(self._ledger_number)).uid(f"sink {number}")

    def _expected(self, number: int, kind: str, computed: int) -> Counter[Any]:
        """Return the output of an execution, of records that an execution has computed."""
        each = range(self._count)
        if kind == "windows":
            return Counter((number, "in", i // 5 * 50, i) for i in each)
        if kind == "records":
            return Counter((number, "record", i, computed) for i in each)
        totals = Counter(i % self._keys for i in each)
        return Counter(
            (number, "count", (key, computed), count + 1)
            for key, total in totals.items()
            for count in range(total)
        )
