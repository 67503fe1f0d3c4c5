"""Run a job in the simulated cluster to its end, over all resumes: `SimulatedCluster`.

JobManager and workers are the real ones, in one thread, with virtual time. The seed determines
everything else: delays, the order of tasks, and the faults and their times.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from functools import partial
from pathlib import Path

import trio
import trio.testing

from penstock.snapshot.storage.objects.memory_objects import MemoryBucket
from penstock.testing.simulation.databases import closing_databases, orderly_databases
from penstock.testing.simulation.faults import Fault
from penstock.testing.simulation.files import Damage, UnsyncedChanges, numbered_contents
from penstock.testing.simulation.invariants import Invariants
from penstock.testing.simulation.machine import Machine
from penstock.testing.simulation.scheduler import seed_scheduler
from penstock.testing.simulation.simulated_run import SimulatedRun

_MEMORY = Path("/dev/shm")


class SimulatedCluster(ABC):
    """A job under one seed.

    Arguments:
        seed: the source of all choices.
        rng: the same, after some choices.
        delay_seconds: the mean delay of a message, in virtual seconds.
        torn: a stop of the machine undoes changes that were not synced.
        disk_failures: the part of the changes of files that fail.
        store_failures: the part of the requests to an object store that fail; None has no store.
    """

    #: The number of runs of a job, each after a resume. The last one has no faults.
    runs = 8
    #: The virtual seconds after which a run counts as hung.
    deadline_seconds = 120.0

    def __init__(
        self,
        seed: int,
        rng: random.Random,
        delay_seconds: float,
        *,
        torn: bool = False,
        disk_failures: float = 0.0,
        store_failures: float | None = None,
    ) -> None:
        self._seed = seed
        self.rng = rng
        self._delay_seconds = delay_seconds
        self.disk_failures = disk_failures
        self.bucket = None if store_failures is None else MemoryBucket(seed)
        self.store_failures = store_failures or 0.0
        self.invariants = Invariants()
        self.unsynced: UnsyncedChanges | None = None
        self._torn = torn
        self.damage: Damage | None = None
        self.folder = ""
        #: The number of events of each kind.
        self.happened = Counter[str]()
        #: A line for each event, with the virtual time.
        self.trace: list[str] = []

    # ---- what a job says about itself

    @abstractmethod
    def next_program(self, number: int, last: bool) -> tuple[bytes, list[Fault]]:
        """Return the packed program of a run, and its faults.

        Arguments:
            number: the number of the run, from 0 on.
            last: whether it is the last one. The last run has no faults.
        """

    @abstractmethod
    def is_over(self, run: SimulatedRun, last: bool) -> bool:
        """Return whether no other run follows a run that has ended."""

    @abstractmethod
    def did_not_end(self) -> None:
        """Note that the job has not ended in its last run."""

    def on_run(self, run: SimulatedRun) -> None:
        """Connect the targets of the sinks with a run that is about to begin."""

    async def beside(self, run: SimulatedRun) -> None:
        """Run while a run does."""

    # ---- running it

    def execute(self) -> None:
        """Run the job to its end."""
        seed_scheduler(self._seed)
        parent = str(_MEMORY) if _MEMORY.is_dir() else None
        with (
            closing_databases(),
            orderly_databases(),
            numbered_contents(),
            self.invariants.watching(lambda: self.root),
            tempfile.TemporaryDirectory(prefix="simulation-", dir=parent) as base,
        ):
            self.folder = f"{base}/job"
            if self._torn:
                undone = Path(base, "undone")
                undone.mkdir()
                self.unsynced = UnsyncedChanges(undone)
            trio.run(self._main, clock=trio.testing.MockClock(autojump_threshold=0))

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            machine = Machine(self.rng, nursery, self._delay_seconds)
            try:
                await self._run_all(machine)
            finally:
                machine.close()
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()

    async def _run_all(self, machine: Machine) -> None:
        for number in range(self.runs):
            last = number == self.runs - 1
            if last and self.damage is not None:
                # No later run could resume from the snapshot that this one would refuse.
                self.log(f"repair {self.damage}")
                self.damage.repair()
                self.damage = None
            blob, faults = self.next_program(number, last)
            run = SimulatedRun(self, machine, [] if last else faults, calm=last)
            self.on_run(run)
            self._move()
            await run.to_its_end(blob, resume=number > 0, beside=partial(self.beside, run))
            over = self.is_over(run, last)
            self.ended(machine)
            if over or machine.crashes or self.invariants.violations:
                return
            for process in machine.processes:
                if not process.replaced:
                    process.kill()
            await trio.sleep(0.3)
        self.did_not_end()

    def _move(self) -> None:
        """Let the next run of a job with an object store take place on a new machine, at random.

        Nothing but the store is left. Staged output in the folder would be lost.
        """
        if self.bucket is None or self.invariants.reading or self.rng.random() < 0.5:
            return
        if self.root.is_dir() and not (self.root / "staging").is_dir():
            shutil.rmtree(self.root)
            self.count("resumes on new machines")
            self.log("the folder of the job is gone")

    @abstractmethod
    def ended(self, machine: Machine) -> None:
        """Note what a run has left: crashes, and when processes lived."""

    @property
    def root(self) -> Path:
        """The job's checkpoint folder."""
        return Path(self.folder)

    def count(self, what: str, often: int = 1) -> None:
        """Note that something has happened."""
        self.happened[what] += often

    def snapshot_completed(self, number: int) -> None:
        """Note that a snapshot is complete."""

    def log(self, text: str) -> None:
        """Add a line to the trace."""
        # These differ between runs of one seed.
        text = text.replace(self.folder, "JOB").replace(Path(self.folder).parent.name, "JOB")
        text = text.replace(f".{os.getpid()}.", ".PID.").replace(f"process {os.getpid()}", "PID")
        self.trace.append(f"{1000 * trio.current_time():10.3f} ms  {text}")
