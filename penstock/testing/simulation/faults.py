"""Draw the faults of a simulated job."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

#: The kinds of faults, and their meanings.
FAULTS = {
    "kill": "workers, the JobManager, or all of them are killed, also twice in quick succession",
    "pause": "a worker or the JobManager does not run for a while, also until it was replaced",
    "slow": "a worker runs in bursts, with short pauses",
    "cut": "a connection carries nothing for a while, in one direction or both, and breaks",
    "delay": "connections and disks are slow at random",
    "clock": "the wall clock of a process jumps, forwards or backwards",
    "disk": "changes of files of the job's folder fail at random",
    "store": "snapshots are in an object store, whose requests fail or come late, and the job is "
    "resumed on machines without its folder",
    "torn": "the machine stops, and loses what the JobManager has not synced",
    "corrupt": "a file of the newest snapshot is damaged, and is repaired when the job refuses it",
    "decline": "snapshots time out, and output cannot be staged",
    "savepoint": "savepoints are taken, also while a snapshot is taken",
    "read": "another process reads a snapshot, which must stay as long",
    "stop": "the job is stopped with a savepoint, and is resumed",
    "slot": "a worker is killed, and no other one can be started in its place for a while",
    "rescale": "a resumed job has another parallelism",
}
#: The kinds that are drawn if none are named: no person has to act, and a correct job is right.
DEFAULT_FAULTS = tuple(kind for kind in FAULTS if kind != "corrupt")
#: The faults of each kind. A fault that is here twice is drawn twice as often.
_EVENTS_OF = {
    "kill": ("worker", "worker", "all workers", "jobmanager", "everything"),
    "pause": ("pause worker", "pause jobmanager", "lose worker", "lose jobmanager"),
    "slow": ("slow worker",),
    "cut": ("cut", "cut one way", "hold", "hold one way"),
    "clock": ("clock",),
    "torn": ("machine",),
    "corrupt": ("damage",),
    "savepoint": ("savepoint",),
    "read": ("read",),
    "stop": ("stop",),
    "slot": ("lose slot", "lose slot", "lose slots"),
}
#: How much more often than others a kind is drawn.
_WEIGHTS = {"kill": 3, "slot": 2}
#: An attempt begins to process records; a snapshot begins, is about to be published, or is
#: complete; output is about to be committed, or is committed.
MOMENTS = ("running", "create", "publish", "snapshot", "snapshot", "commit", "committed")
#: The moment at which the fault before happens, or the run begins.
BEFORE = "before"


@dataclass(frozen=True)
class Fault:
    """Something that happens once.

    Arguments:
        what: one of the keys of `NAMES`.
        moment: what must have happened before.
        count: how often.
        delay_seconds: how long after that, in virtual seconds; 0 is within the very call.
    """

    what: str
    moment: str
    count: int
    delay_seconds: float

    def __str__(self) -> str:
        milliseconds = f"{1000 * self.delay_seconds:.1f} ms after"
        if self.moment == BEFORE:
            return f"{NAMES[self.what]} {milliseconds} the fault before"
        after = milliseconds if self.delay_seconds else "at"
        return f"{NAMES[self.what]} {after} {_ORDINALS[self.count]} {_EVENTS[self.moment]}"


#: Texts that describe the faults.
NAMES = {
    "worker": "kill a worker",
    "all workers": "kill all workers",
    "jobmanager": "kill the JobManager",
    "everything": "kill all processes",
    "pause worker": "pause a worker",
    "pause jobmanager": "pause the JobManager",
    "lose worker": "pause a worker until it was replaced",
    "lose jobmanager": "pause the JobManager until it was replaced",
    "slow worker": "slow down a worker",
    "cut": "cut a connection",
    "cut one way": "cut one direction of a connection",
    "hold": "hold a connection",
    "hold one way": "hold one direction of a connection",
    "clock": "let the clock of a process jump",
    "machine": "stop the machine",
    "damage": "damage the newest snapshot, and kill all processes",
    "read": "read a snapshot",
    "savepoint": "take a savepoint",
    "stop": "stop the job",
    "lose slot": "lose a slot",
    "lose slots": "lose all slots but one",
}
_ORDINALS = ("", "the first", "the second", "the third", "the fourth")
_EVENTS = {
    "running": "start of the tasks",
    "create": "begin of a snapshot",
    "publish": "moment before a snapshot is durable",
    "snapshot": "complete snapshot",
    "commit": "begin of a commit",
    "committed": "end of a commit",
    "aborted": "snapshot that is given up",
}


@dataclass(frozen=True)
class Schedule:
    """Describes all that happens to a job under one seed.

    Arguments:
        faults: in the order in which they happen. Counts begin again after each fault.
        parallelisms: those of the first run, of the run after the first resume, and so on; the
            last one holds for all later runs.
        delay_seconds: the mean delay of a message, in virtual seconds.
        disk_failures: the part of the changes of files that fail.
        store_failures: the part of the requests to an object store that fail; None has no store.
        interval_seconds: the time between the starts of two snapshots, in virtual seconds.
        timeout_seconds: the time after which a snapshot is given up; None is that of the program.
        staging_failures: the part of the attempts to stage output that fail.
    """

    faults: tuple[Fault, ...] = ()
    parallelisms: tuple[int, ...] = (2,)
    delay_seconds: float = 0.001
    disk_failures: float = 0.0
    store_failures: float | None = None
    interval_seconds: float = 0.02
    timeout_seconds: float | None = None
    staging_failures: float = 0.0

    @property
    def causes(self) -> list[str]:
        """Texts that name each cause for which the output may be wrong."""
        return [
            *map(str, self.faults),
            *(["a resume with another parallelism"] if len(self.parallelisms) > 1 else []),
            *(["failures of the disk"] if self.disk_failures else []),
            *(["snapshots in an object store"] if self.store_failures is not None else []),
            *(["snapshots that time out"] if self.timeout_seconds is not None else []),
            *(["output that cannot be staged"] if self.staging_failures else []),
        ]


def draw_schedule(rng: random.Random, kinds: Collection[str], parallelism: int) -> Schedule:
    """Draw a schedule.

    Arguments:
        rng: the source of all choices.
        kinds: the kinds of faults, from `FAULTS`.
        parallelism: that of the program.
    """
    faults = draw_faults(rng, kinds, rng.choice((1, 1, 2, 3)))
    parallelisms = [parallelism]
    if "rescale" in kinds:
        parallelisms += [rng.choice((1, 2, 3, parallelism)) for _ in range(3)]
    delay = rng.choice((0.001, 0.004, 0.008)) if "delay" in kinds else 0.001
    declines = "decline" in kinds
    # A file that is damaged in the folder comes from the store again, and is not refused.
    has_store = "store" in kinds and "corrupt" not in kinds
    return Schedule(
        tuple(faults),
        tuple(parallelisms),
        delay,
        rng.choice((0.0, 0.0, 0.01)) if "disk" in kinds else 0.0,
        interval_seconds=rng.choice((0.01, 0.02, 0.05)),
        timeout_seconds=rng.choice((None, 15 * delay, 30 * delay)) if declines else None,
        staging_failures=rng.choice((0.0, 0.0, 0.1)) if declines else 0.0,
        store_failures=rng.choice((None, None, 0.0, 0.05)) if has_store else None,
    )


def draw_faults(
    rng: random.Random, kinds: Collection[str], number: int, batch: bool = False
) -> list[Fault]:
    """Draw the faults in their order.

    Arguments:
        rng: the source of all choices.
        kinds: the kinds of faults, from `FAULTS`.
        number: how many faults.
        batch: the job runs in batch mode, and has one snapshot, at its end.
    """
    drawn = [kind for kind in _EVENTS_OF if kind in kinds]
    weights = [_WEIGHTS.get(kind, 1) for kind in drawn]
    faults: list[Fault] = []
    for _ in range(number if drawn else 0):
        (kind,) = rng.choices(drawn, weights)
        what = rng.choice(_EVENTS_OF[kind])
        delay = rng.choice((0.0, rng.uniform(0, 0.02)))
        count = 1 if batch else rng.randint(1, 3)
        if faults and rng.random() < 0.3:
            # While the fault before has its effect, for example during a restart.
            moment, delay, count = BEFORE, rng.uniform(0, 0.02), 0
        elif batch and rng.random() < 0.4:
            moment, delay = "running", rng.uniform(0, 0.2)
        elif rng.random() < 0.2:
            moment, delay, count = BEFORE, rng.uniform(0, 0.2), 0
        else:
            moment = rng.choice([*MOMENTS, *(["aborted", "aborted"] if "decline" in kinds else [])])
        faults.append(Fault(what, moment, count, delay))
    return faults
