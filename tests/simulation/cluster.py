"""Runs the simulated job under faults, and tells how it ended.

Faults are killed workers, a killed JobManager, and a stop of the whole machine, after which its
file system has forgotten what was not synced. They come at random times, and at the moments that
matter most: while a snapshot is made, at any single file operation of the store, between its
manifest and the commit, after the end of the input, and in the middle of a restart.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio
import trio.testing

from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.errors import PenstockError
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.task.snapshots import background_work
from penstock.snapshot.storage.filesystem.memory import MemoryFileSystem
from penstock.snapshot.storage.store import Store
from penstock.testing.simulation.databases import closing_databases
from penstock.testing.simulation.files import HookedDiskFiles, HookedFiles
from penstock.testing.simulation.machine import Killed, Machine, Process
from penstock.testing.simulation.scheduler import seed_scheduler
from tests.simulation.job import LEDGERS, Ledger, job_config, make_job

#: Virtual seconds after which a simulation is stuck.
DEADLINE_SECONDS = 300.0
#: What of an event is the same under the same seed.
_TRACED = ("event", "number", "kind", "attempt", "cause", "reason", "duration_ms")


@dataclass(frozen=True)
class Fault:
    """Something that is killed.

    Arguments:
        target: "worker", "jobmanager" or "machine".
        moment: what must have happened; see `Simulation.at`.
        count: how often it must have happened.
        delay_seconds: how long after that; None kills within the very call.
    """

    target: str
    moment: str
    count: int
    delay_seconds: float | None


@dataclass
class Outcome:
    """How a simulation went.

    Arguments:
        lost, doubled: records that are missing or there too often.
        committed: how many records were committed.
        kills: (target, phase) of every kill that hit something.
        trace: what the JobManagers told, with virtual times.
        failures: errors with which a JobManager gave up; each was started again.
        crashes: exceptions that no part of the runtime expected.
    """

    lost: int = 0
    doubled: int = 0
    committed: int = 0
    kills: list[tuple[str, str]] = field(default_factory=list)
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    failures: list[PenstockError] = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether all went as it must."""
        return not (self.lost or self.doubled or self.crashes)


class _HookedMemoryFiles(HookedFiles, MemoryFileSystem):
    pass


class Simulation:
    """One run of one job under one seed.

    Arguments:
        seed: of everything.
        faults: what is killed; None draws it.
        on_disk: keep state in a database, which the seed draws, and snapshots on the disk; else
            all is in memory.
    """

    def __init__(self, seed: int, faults: list[Fault] | None = None, on_disk: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.on_disk = on_disk
        self.outcome = Outcome()
        self.faults = draw_faults(self.rng, on_disk) if faults is None else faults
        self.ledger = LEDGERS[seed] = Ledger(rng=self.rng, on_commit=self.at)
        if self.rng.random() < 0.2:
            self.ledger.commit_failures = 0.05
        if self.rng.random() < 0.2:
            self.ledger.stage_failures = 0.05
        self._moments: Counter[str] = Counter()
        self._in_snapshot = self._deploying = False
        self._published = self._committed = 0
        self._jobmanager: Process | None = None
        self._pending = list(self.faults)

    def run(self) -> Outcome:
        """Run to the end of the job."""
        seed_scheduler(self.seed)
        # Snapshots come too often for work ahead of them; every other run does it all the same.
        least = 0.0 if self.seed % 2 else background_work.LEAST_LEAD_SECONDS
        try:
            with patch.object(background_work, "LEAST_LEAD_SECONDS", least):
                self._run_somewhere()
        finally:
            del LEDGERS[self.seed]
        return self.outcome

    def _run_somewhere(self) -> None:
        if self.on_disk:
            shm = Path("/dev/shm")
            parent = str(shm) if shm.is_dir() else None
            with closing_databases(), tempfile.TemporaryDirectory(dir=parent) as folder:
                self._run(folder, HookedDiskFiles())
        else:
            rate = self.rng.choice([0.0, 0.0, 0.01])
            self._run("/memory", _HookedMemoryFiles(self.seed, rate))

    def _run(self, folder: str, files: Any) -> None:
        config = job_config(self.rng, folder, not self.on_disk)
        if self.on_disk:
            config.cold_store = tuple(ColdStoreKind)[self.seed // 2 % 2]
        self.job = make_job(self.seed, self.rng, config)
        self.files, self.root = files, Path(folder)
        files.hook = self._file_changes
        trio.run(self._main, clock=trio.testing.MockClock(autojump_threshold=0))
        output, expected = self.ledger.output(), self.job.expected
        self.outcome.lost = (expected - output).total()
        self.outcome.doubled = (output - expected).total()
        self.outcome.committed = output.total()

    async def _main(self) -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with trio.open_nursery() as nursery:
                delay = self.rng.choice([0.001, 0.001, 0.008])
                self.machine = Machine(self.rng, nursery, delay)
                nursery.start_soon(self._kill_by_the_clock)
                await self._supervise()
                nursery.cancel_scope.cancel()
        self.outcome.crashes = self.machine.crashes

    async def _supervise(self) -> None:
        """Start the JobManager, and start it again with resume whenever it is gone."""
        resume: str | None = None
        while True:
            process = self._jobmanager = self.machine.process("jobmanager")
            process.on_kill.append(self.files.release)
            finished: list[Any] = []

            async def main(
                process: Process = process,
                resume: str | None = resume,
                finished: list[Any] = finished,
            ) -> None:
                job = JobManager(
                    self.job.blob,
                    self.machine.system(process),
                    JobSettings(resume=resume),
                    lambda event: self._observe(process, event.to_wire()),
                    lambda root: Store(root, self.files, trio.current_time),
                )
                try:
                    finished.append(await job.run())
                except PenstockError as error:
                    if not process.dead:
                        self.outcome.failures.append(error)

            self._deploying = True
            self.machine.start(process, main)
            await process.ended.wait()
            if finished or self.machine.crashes:
                return
            resume = "newest"
            await trio.sleep(self.rng.choice([0.0, 0.03, 0.2]))

    # ---- faults

    def at(self, moment: str) -> None:
        """Something has happened that faults may wait for.

        Moments: "time" (once, at the start), "create" and "publish" (a snapshot's folder is
        about to be made, its manifest to be linked), "published", "commit", "committed", "change"
        (each single change of a file), "ended" (all splits were read), "deploy" (workers were
        started), "running".
        """
        if moment == "commit" and len(self.ledger.read) == self.job.splits:
            self.at("ended")
        if moment == "create":
            self._in_snapshot = True
        elif moment == "published":
            self._in_snapshot = False
            self._published += 1
        elif moment == "committed":
            self._committed = self._published
        elif moment == "deploy":
            self._deploying, self._in_snapshot = True, False
        elif moment == "running":
            self._deploying = False
        self._moments[moment] += 1
        for fault in list(self._pending):
            if fault.moment == moment and self._moments[moment] >= fault.count:
                self._pending.remove(fault)
                if fault.delay_seconds is None:
                    self._strike(fault)
                else:
                    self.machine.nursery.start_soon(self._strike_later, fault)

    async def _kill_by_the_clock(self) -> None:
        await trio.lowlevel.checkpoint()
        self.at("time")

    async def _strike_later(self, fault: Fault) -> None:
        assert fault.delay_seconds is not None
        await trio.sleep(fault.delay_seconds)
        self._strike(fault)

    def _phase(self) -> str:
        if self._deploying:
            return "deploying"
        if self._published > self._committed:
            return "between publish and commit"
        if len(self.ledger.read) == self.job.splits:
            return "after the end of input"
        if self._in_snapshot:
            return "during a snapshot"
        return "before the first snapshot" if not self._published else "between snapshots"

    def _strike(self, fault: Fault) -> None:
        living = [process for process in self.machine.processes if not process.dead]
        workers = [process for process in living if process is not self._jobmanager]
        if fault.target == "worker":
            victims = [self.rng.choice(workers)] if workers else []
        elif fault.target == "jobmanager":
            victims = [process for process in living if process is self._jobmanager]
        else:
            victims = living
        if not victims:
            return
        self.outcome.kills.append((fault.target, self._phase()))
        self._trace("kill", fault.target, *(process.name for process in victims))
        for process in victims:
            process.kill()
        if fault.target == "machine" and isinstance(self.files, MemoryFileSystem):
            self.files.crash(self.rng.choice([0.0, 0.5, 1.0]))

    def _file_changes(self, operation: str, path: Path) -> None:
        manifest = path.name == "manifest"
        if operation == "make_folder" and path.parent.name == "checkpoints":
            self.at("create")
        if operation == "link" and manifest:
            self.at("publish")
        self.at("change")
        if self._jobmanager is not None and self._jobmanager.dead:
            raise Killed  # within the call: what comes after it in the same function never runs
        if operation == "sync" and path.name == "checkpoints" and self._in_snapshot:
            # The last step of publishing.
            self.at("published")

    # ---- what happens

    def _observe(self, process: Process, event: dict[str, Any]) -> None:
        if process.dead:
            return
        self._trace(*(event[key] for key in _TRACED if key in event))
        if event["event"] == "workers":
            self.at("deploy")
        elif event["event"] == "running":
            self.at("running")

    def _trace(self, *what: Any) -> None:
        self.outcome.trace.append((round(trio.current_time(), 6), *what))


def draw_faults(rng: random.Random, on_disk: bool) -> list[Fault]:
    """One to four faults, most of them at moments that matter."""
    faults = []
    for _ in range(rng.randint(1, 4)):
        target = rng.choice(["worker", "worker", "jobmanager", "machine"])
        moment = rng.choice(
            ["time", "create", "publish", "published", "commit", "committed"]
            + ["change", "ended", "deploy", "running"]
        )
        count = 1 if moment in ("time", "ended") else rng.randint(1, 6)
        delay: float | None = rng.uniform(0, 0.2 if moment == "time" else 0.006)
        if moment == "change":
            count = rng.randint(8, 120)
        if moment in ("change", "publish", "published", "create") and rng.random() < 0.7:
            delay = None
        faults.append(Fault(target, moment, count, delay))
    return faults
