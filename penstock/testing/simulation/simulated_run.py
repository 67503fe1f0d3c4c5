"""One run of a simulated job: a JobManager, its workers, and their faults."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from penstock.dataflow.errors import PenstockError
from penstock.runtime.jobmanager.attempt.rescaling import WorkersNotStarted
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.jobmanager.restart_backoff import MAX_FAILURES_AT_START
from penstock.snapshot.storage.leases import Lease
from penstock.snapshot.storage.objects.memory_objects import (
    SIMULATED_OBJECT_FAULT,
    MemoryBucket,
    MemoryObjects,
)
from penstock.snapshot.storage.objects.mirrored_store import MirroredStore
from penstock.snapshot.storage.store import Store
from penstock.testing.simulation.faults import BEFORE, Fault
from penstock.testing.simulation.files import (
    Damage,
    HookedDiskFiles,
    UnsyncedChanges,
    damage_newest,
)
from penstock.testing.simulation.invariants import Invariants
from penstock.testing.simulation.machine import KILLED, Killed, Machine, Process
from penstock.testing.simulation.scheduler import OWNER

#: The keys of an event that a trace shows.
_SHOWN = ("number", "kind", "slots", "wanted", "reason", "cause", "operator", "log_records", "text")
_DISK_FAILURE = "a simulated failure of the disk"
#: One of these texts is in each error that the simulation itself has caused.
_SIMULATED = ("a simulated fault", _DISK_FAILURE, SIMULATED_OBJECT_FAULT)
#: The time until a process is awake again that others may have replaced, in virtual seconds. It is
#: longer than the heartbeat timeout, the interval of the checks, and the time for a kill.
_LOST_SECONDS = (0.5, 4.0, 5.0)
#: The time until lost slots return, in virtual seconds.
_SLOT_SECONDS = (0.02, 0.1, 0.5)


class RunHost(Protocol):
    """Defines the interface of a job that its runs use.

    Arguments:
        rng: the source of all choices.
        invariants: checks each step.
        unsynced: the changes that a stop of the machine undoes; None if it undoes none.
        disk_failures: the part of the changes of files that fail.
        bucket: the object store of the job; None if it has none.
        store_failures: the part of the requests to the object store that fail.
        deadline_seconds: the virtual seconds after which a run counts as hung.
        damage: the damaged file that no run has refused yet; None if there is none.
    """

    rng: random.Random
    invariants: Invariants
    unsynced: UnsyncedChanges | None
    disk_failures: float
    bucket: MemoryBucket | None
    store_failures: float
    deadline_seconds: float
    damage: Damage | None

    @property
    def root(self) -> Path:
        """The job's checkpoint folder."""

    def count(self, what: str, often: int = 1) -> None:
        """Note that something has happened."""

    def log(self, text: str) -> None:
        """Add a line to the trace."""

    def snapshot_completed(self, number: int) -> None:
        """Note that a snapshot is complete."""


class SimulatedRun:
    """One JobManager with its workers, from its start or resume to its end.

    Arguments:
        host: the job.
        machine: runs all processes.
        faults: in the order in which they happen.
        calm: nothing happens to this run.
    """

    def __init__(
        self, host: RunHost, machine: Machine, faults: list[Fault], calm: bool = False
    ) -> None:
        self._host, self._machine = host, machine
        #: The faults that have not happened yet.
        self.left = list(faults)
        self._calm = calm
        self.process = machine.process("JobManager")
        self.manager: JobManager | None = None
        #: The result or the error of the JobManager; None if it was killed or is lost.
        self.outcome: Any = None
        #: The records in flight of the last complete snapshot.
        self.in_flight = 0
        self.hung = self.running = self.failed = self.stopping = False
        #: Whether a file was damaged before it began.
        self._damaged = host.damage is not None
        self._files = HookedDiskFiles()
        self._moments = Counter[str]()
        self._over = trio.Event()
        #: Whether another JobManager may have taken its place, while it was paused.
        self.lost, self._lost_at = False, 0.0
        self._failures_before_start = 0
        #: The greatest number of workers when a slot was lost, and the number at the last change.
        self._most_slots, self._slots_before = 0, math.inf
        machine.slots = None

    async def to_its_end(
        self, blob: bytes, *, resume: bool, beside: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Run the job until its JobManager ends, or another one may take its place.

        Arguments:
            blob: the packed program.
            resume: resume from the newest snapshot.
            beside: a function that runs meanwhile.
        """
        host = self._host
        host.count("resumes", resume)
        host.log("resume the job" if resume else "start the job")
        self._machine.start(self.process, partial(self._main, blob, resume))
        with trio.move_on_after(host.deadline_seconds) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                if beside is not None:
                    nursery.start_soon(beside)
                self._aim()
                await self._over.wait()
                nursery.cancel_scope.cancel()
        self.hung = limit.cancelled_caught
        host.log(f"ended: {self._describe()}")
        self._repair()

    def _repair(self) -> None:
        damage, refused = self._host.damage, isinstance(self.outcome, PenstockError)
        if damage is not None and (refused or self._damaged):
            self._host.count("refused snapshots", refused)
            self._host.log(f"repair {damage}")
            damage.repair()
            self._damaged, self._host.damage = True, None

    def _describe(self) -> str:
        if self.hung:
            return "hung"
        if self.lost:
            return "lost"
        if self.outcome is None:
            return "killed"
        if isinstance(self.outcome, Exception):
            return str(self.outcome)
        return "stopped" if self.outcome.stopped else "done"

    @property
    def excused(self) -> bool:
        """Whether the faults explain that the job has not ended as it should.

        A failure while the job is being stopped may end it, and it can be resumed. So does the last
        of several failures before the job has begun.
        """
        text = str(self.outcome)
        return (
            self.process.how == KILLED
            or self.lost
            or (self.stopping and self.failed)
            or self._failures_before_start >= MAX_FAILURES_AT_START
            or isinstance(self.outcome, WorkersNotStarted)
            or any(mark in text for mark in _SIMULATED)
            or self._damaged
        )

    async def _watch(self) -> None:
        await self.process.ended.wait()
        self._over.set()

    async def _main(self, blob: bytes, resume: bool) -> None:
        files = self._files
        files.hook, files.unsynced = self._file_changes, self._host.unsynced
        self.process.on_kill.append(files.release)
        try:
            self.manager = JobManager(
                blob,
                self._machine.system(self.process),
                JobSettings(resume="newest" if resume else None),
                lambda event: self._observe(event.to_wire()),
                self._open_store,
            )
            self.outcome = await self.manager.run()
        except PenstockError as error:
            self.outcome = error

    def _open_store(self, root: Path) -> Store:
        host, files = self._host, self._files
        if host.bucket is None:
            return Store(root, files, trio.current_time)
        rate = 0.0 if self._calm else host.store_failures
        objects = MemoryObjects(host.bucket, rate, self._request)
        writer = f"{host.rng.getrandbits(64):016x}"
        return MirroredStore(root, objects, files, trio.current_time, writer)

    def _request(self, operation: str, key: str) -> None:
        """Note a request to the object store that is about to be made."""
        host = self._host
        assert host.bucket is not None
        if self.process.dead:
            raise Killed
        host.count("requests to the object store")
        if host.bucket.late and host.rng.random() < 0.3:
            host.count("late requests to the object store")
            host.log(f"late requests arrive, before {operation} {key}")
            host.bucket.arrive()

    def _file_changes(self, operation: str, path: Path) -> None:
        host = self._host
        if operation == "make_folder" and path.parent.name == "checkpoints":
            self.comes("create")
        elif operation == "link" and path.name == "manifest":
            self.comes("publish")
        if self.process.dead:
            raise Killed
        host.invariants.file_changes(operation, path)
        # A change at the very moment of the loss was made by the call that was interrupted.
        late = self.lost and trio.current_time() > self._lost_at
        if late and operation == "link" and path.name == "manifest":
            host.invariants.violated("a JobManager that was replaced has published a snapshot")
        fails = host.disk_failures > 0 and self.running and not self._calm
        if fails and host.rng.random() < host.disk_failures:
            host.count("failures of the disk")
            host.log(f"fail: {operation} {path.name}")
            raise OSError(f"{_DISK_FAILURE}: {operation} {path.name}")

    def _observe(self, event: dict[str, Any]) -> None:
        if self.process.dead or self.lost:
            return
        what, host = event["event"], self._host
        if what not in ("types", "status", "started"):
            details = ", ".join(f"{key} {event[key]}" for key in _SHOWN if event.get(key))
            host.log(f"{what}{': ' if details else ''}{details}")
        if what == "began":
            host.invariants.snapshot_began(event["number"])
        elif what == "snapshot":
            self.in_flight = event["log_records"]
            host.count("snapshots")
            host.invariants.snapshot_completed(event["number"], event["kind"])
            host.snapshot_completed(event["number"])
            self.comes("snapshot")
        elif what == "running":
            self.running = True
            self.comes("running")
        elif what == "restarting":
            self.failed = True
            host.count("restarts")
            if (event.get("region") or "").endswith(" tasks"):
                host.count("restarts of single tasks")
        elif what == "slots":
            host.count("fewer slots" if event["slots"] < self._slots_before else "more slots")
            self._slots_before = event["slots"]
        elif what == "aborted":
            host.count("aborted snapshots")
            self.comes("aborted")
        if what in ("resumed", "restarted"):
            host.count("logs restored", event["log_records"] > 0)

    def stop(self) -> None:
        """Stop the job with a savepoint."""
        if self.manager is not None and not self.process.dead:
            self._host.count("stops")
            self._host.log("stop the job")
            self.stopping = True
            self.manager.stop()

    # ---- faults

    def comes(self, moment: str) -> None:
        """Count a moment. If a fault waits for it, it happens, at once or after its delay.

        Raises:
            Killed: if the process that does this is dead.
        """
        process = OWNER.get()
        if process is None or process is self.process:  # and not one that was replaced
            self._moments[moment] += 1
            fault = self.left[0] if self.left else None
            if fault and fault.moment == moment and self._moments[moment] >= fault.count:
                self.left.pop(0)
                self._moments.clear()
                if fault.delay_seconds:
                    self._machine.spawn(self._strike_later, fault)
                else:
                    self._strike(fault)
        if moment in ("commit", "committed") and process is not None and process.dead:
            raise Killed

    def _aim(self) -> None:
        """Start the delay of the next fault, if it begins with the fault before."""
        if self.left and self.left[0].moment == BEFORE:
            self._machine.spawn(self._strike_later, self.left.pop(0))

    async def _strike_later(self, fault: Fault) -> None:
        await trio.sleep(fault.delay_seconds)
        self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if not self._over.is_set() and not self.process.dead:
            _STRIKES[fault.what](self, fault.what)
            self._aim()

    def _workers(self) -> list[Process]:
        living = [process for process in self._machine.processes if not process.dead]
        return [process for process in living if process.name != "JobManager"]

    def _one_worker(self) -> list[Process]:
        workers = self._workers()
        return [self._host.rng.choice(workers)] if workers else []

    def _fails(self) -> None:
        self.failed = True
        self._failures_before_start += not self.running

    def _kill(self, what: str) -> None:
        workers = self._one_worker() if what == "worker" else self._workers()
        victims = {
            "worker": workers,
            "all workers": workers,
            "jobmanager": [self.process],
        }.get(what, [*workers, self.process])
        for process in victims:
            self._host.log(f"kill {process.name}")
            manager = process.name == "JobManager"
            self._host.count("kills of a JobManager" if manager else "kills of a worker")
            process.kill()
        if victims:
            self._fails()

    def _pause(self, what: str) -> None:
        manager = what.endswith("jobmanager")
        rng = self._host.rng
        for process in [self.process] if manager else self._one_worker():
            seconds = rng.choice((0.01, 0.1, 1.5))
            if what.startswith("lose"):
                seconds = rng.choice(_LOST_SECONDS)
                self._host.count("lost JobManagers" if manager else "lost workers")
            self._host.count("pauses")
            self._host.log(f"pause {process.name} for {seconds:g} s")
            lost = what.startswith("lose")
            self._machine.pause(process, seconds, unreachable=lost)
            self._fails()
            if lost and manager:
                self._replace()

    def _replace(self) -> None:
        """Let another JobManager take the place of this one, which is paused."""
        if self._files.held is not None:
            # As on a file system whose locks end with a lease.
            self._files.held[0].unlink(missing_ok=True)
            self.lost, self._lost_at = True, trio.current_time()
            for process in self._machine.processes:
                process.replaced = True
            self._over.set()

    def _slow(self, what: str) -> None:
        del what
        for process in self._one_worker():
            self._host.count("slow workers")
            self._host.log(f"slow down {process.name}")
            self._machine.slow_down(process, self._host.rng.uniform(0.05, 0.3))

    def _cut(self, what: str) -> None:
        seconds = self._host.rng.choice((0.0, 0.01, 0.1, 1.5))
        one_way, heals = what.endswith("one way"), what.startswith("hold")
        between = self._machine.cut(seconds, one_way=one_way, heals=heals)
        if between:
            self._host.count("cuts")
            self._host.log(f"{'hold' if heals else 'cut'} {between} for {seconds:g} s")
            self._fails()

    def _jump(self, what: str) -> None:
        del what
        rng = self._host.rng
        process = rng.choice([self.process, *self._workers()])
        milliseconds = rng.choice((-1, 1)) * rng.choice((5, 1_000, 3_600_000))
        process.clock_ahead_ms += milliseconds
        self._host.count("clock jumps")
        self._host.log(f"the clock of {process.name} jumps by {milliseconds} ms")

    def _stop_machine(self, what: str) -> None:
        self._host.count("stops of the machine")
        self._kill(what)
        if self._host.unsynced is not None:
            for lost in self._host.unsynced.crash(self._host.rng):
                self._host.count("lost changes of files")
                self._host.log(f"lost: {lost}")

    def _damage(self, what: str) -> None:
        host = self._host
        if host.damage is None:
            host.damage = damage_newest(host.root, host.rng)
        if host.damage is not None:
            host.count("damaged snapshots")
            host.log(f"damage {host.damage}")
        self._kill(what)

    def _read(self, what: str) -> None:
        del what
        reading = self._host.invariants.begin_reading(self._host.root)
        if reading is not None:
            self._host.count("readers")
            self._host.log(f"another process reads snapshot {reading[0]}")
            self._machine.spawn(self._end_reading, *reading)

    async def _end_reading(self, number: int, lease: Lease) -> None:
        try:
            await trio.sleep(0.2)
        finally:
            self._host.invariants.end_reading(number, lease)

    def _lose_slots(self, what: str) -> None:
        workers = self._one_worker()
        self._most_slots = max(self._most_slots, self._machine.running_workers)
        lost = 1 if what == "lose slot" else self._most_slots
        self._machine.slots = max(1, (self._machine.slots or self._most_slots) - lost)
        seconds = self._host.rng.choice(_SLOT_SECONDS)
        self._host.count("lost slots")
        self._host.log(f"{self._machine.slots} slots are left for {seconds:g} s")
        self._machine.spawn(self._return_slots, seconds)
        for process in workers:
            self._host.log(f"kill {process.name}")
            process.kill()
            self._fails()

    async def _return_slots(self, seconds: float) -> None:
        await trio.sleep(seconds)
        if not self._over.is_set() and self._machine.slots is not None:
            self._host.count("returned slots")
            self._host.log("the lost slots return")
            self._machine.slots = None

    def _savepoint(self, what: str) -> None:
        del what
        if self.manager is not None:
            self._host.count("savepoints")
            self._host.log("take a savepoint")
            self.manager.savepoint()

    def _stop(self, what: str) -> None:
        del what
        self.stop()


_STRIKES: dict[str, Callable[[SimulatedRun, str], None]] = {
    **dict.fromkeys(("worker", "all workers", "jobmanager", "everything"), SimulatedRun._kill),
    **dict.fromkeys(
        ("pause worker", "pause jobmanager", "lose worker", "lose jobmanager"), SimulatedRun._pause
    ),
    **dict.fromkeys(("cut", "cut one way", "hold", "hold one way"), SimulatedRun._cut),
    **dict.fromkeys(("lose slot", "lose slots"), SimulatedRun._lose_slots),
    "slow worker": SimulatedRun._slow,
    "clock": SimulatedRun._jump,
    "machine": SimulatedRun._stop_machine,
    "damage": SimulatedRun._damage,
    "read": SimulatedRun._read,
    "savepoint": SimulatedRun._savepoint,
    "stop": SimulatedRun._stop,
}
