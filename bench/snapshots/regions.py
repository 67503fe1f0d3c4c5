"""`recovery`, second part: how long a job of two regions gives no output after a kill.

    2 × (a source on a schedule → keyed state → a clock)

Four jobs are measured. One restarts as a whole. Two restart only the region that has lost a worker,
and in the second one processes stand by to replace it. The last one restarts only the killed keyed
task and the sources of its region.
The clocks write down when records come. For each kill, the longest time between two records of one
subtask, from just before the kill until the job is itself again:

* `job_affected` and `job_unaffected`, `region_…`, `standby_…` and `task_…`, each as
  `…_seconds_without_output`: the median over the kills, of the part whose worker was killed and of
  the other part;
* `…_undisturbed_seconds_without_output`: the same before the first kill, which is the resolution.

The restart delay is 10 ms. All parts share the processors, so what restarts takes some from the
part that does not.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.common.harness import Figures, Follower, Say, run, scratch
from penstock import (
    GeneratorSource,
    RestartStrategies,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
)
from penstock.dataflow.config.restart_scope import RestartScope

__all__ = ["measure"]

WORKERS = 2
PARTS = ("left", "right")
RATE = 2_000
KEYS = 1_000
#: How long the job runs undisturbed before the first kill and after each one, in seconds.
REST_SECONDS = 1.5
DEADLINE_SECONDS = 120.0
_TIME = struct.Struct("<d")


@dataclass(frozen=True)
class Variant:
    """How the job restarts.

    Arguments:
        name: begins the names of its figures.
        scope: what a failure restarts.
        standby: the number of processes that stand by.
        first: the index of the first worker that may be killed.
    """

    name: str
    scope: RestartScope
    standby: int = 0
    first: int = 0


VARIANTS = (
    Variant("job", RestartScope.JOB),
    Variant("region", RestartScope.REGION),
    Variant("standby", RestartScope.REGION, WORKERS),
    # Its first workers have the sources of the left part.
    Variant("task", RestartScope.TASK, first=WORKERS),
)


def measure(
    kills: int = 5,
    interval_ms: float = 200,
    seed: int = 1,
    folder: str | None = None,
    say: Say = print,
) -> Figures:
    """Kill workers of the left part, in all variants.

    Arguments:
        kills: for each variant.
        interval_ms: between two snapshots.
        seed: of the victims.
        folder: where snapshots lie; the system's temporary folder if None.
        say: told what happens.
    """
    figures: Figures = {}
    for variant in VARIANTS:
        with scratch(folder) as place:
            gaps = _gaps(place, variant, kills, interval_ms, random.Random(seed), say)
        for name, found in gaps.items():
            figures[f"{variant.name}_{name}_seconds_without_output"] = round(
                statistics.median(found), 3
            )
    return figures


def _gaps(
    place: Path, variant: Variant, kills: int, interval_ms: float, rng: random.Random, say: Say
) -> dict[str, list[float]]:
    """Run one job, and return the longest time without output after each kill, by part."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(WORKERS).enable_checkpointing(interval_ms)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1_000, 10))
    env.get_checkpoint_config().set_checkpoint_storage_dir(place / "snapshots")
    env.config.restart_scope = variant.scope
    env.config.restart_standby = variant.standby
    for part in PARTS:
        source = GeneratorSource(lambda index: index, None, RATE)
        keyed = env.from_source(source, None, part).uid(part).key_by(lambda index: index % KEYS)
        keyed.reduce(lambda _, new: new).uid(f"{part} newest").add_sink(_Clock(place / part))
        (place / part).mkdir()
    follower = Follower(lambda _: None)
    killer = _Killer(follower, kills, rng, variant, say)
    killer.start()
    try:
        run(env, follower)
    except SystemExit:
        pass  # the killer has stopped the job
    finally:
        killer.over.set()
        killer.join()
    if killer.error is not None:
        raise killer.error
    spans = killer.spans
    names = dict(zip(PARTS, ("affected", "unaffected"), strict=True))
    gaps = {
        names[part]: [_longest_gap(place / part, *span) for span in spans[1:]] for part in PARTS
    }
    gaps["undisturbed"] = [_longest_gap(place / part, *spans[0]) for part in PARTS]
    for kill, (affected, unaffected) in enumerate(
        zip(gaps["affected"], gaps["unaffected"], strict=True)
    ):
        say(f"{variant.name}, kill {kill + 1}: {affected:.3f} s and {unaffected:.3f} s")
    return gaps


def _longest_gap(folder: Path, begin: float, end: float) -> float:
    """Return the longest time between two records of a subtask, from `begin` to `end`."""
    longest = 0.0
    for subtask in range(WORKERS):
        times = [begin, end]
        for path in folder.glob(f"{subtask}.*"):
            data = path.read_bytes()
            whole = data[: len(data) // _TIME.size * _TIME.size]
            times += [at for (at,) in _TIME.iter_unpack(whole) if begin <= at <= end]
        times.sort()
        longest = max(longest, *(after - at for at, after in pairwise(times)))
    return longest


class _Clock(SinkFunction):
    """Writes down when records come, to the millisecond."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0.0

    def open(self, runtime_context: RuntimeContext) -> None:
        name = f"{runtime_context.get_index_of_this_subtask()}.{os.getpid()}"
        self._file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT)

    def invoke(self, value: Any) -> None:
        del value
        now = time.monotonic()
        if now - self._last >= 0.001:
            self._last = now
            os.write(self._file, _TIME.pack(now))

    def close(self) -> None:
        os.close(self._file)


class _Killer(threading.Thread):
    """Kills workers of the left part, and stops the job.

    Arguments:
        follower: of the job.
        kills: how many.
        rng: chooses the victims.
        variant: how the job restarts.
        say: told what happens.

    `spans` are the times of `time.monotonic()` between which gaps are looked for: before the first
    kill, and after each.
    """

    def __init__(
        self, follower: Follower, kills: int, rng: random.Random, variant: Variant, say: Say
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self.spans: list[tuple[float, float]] = []
        self.over = threading.Event()
        self.error: Exception | None = None
        self._follower, self._kills, self._rng = follower, kills, rng
        self._variant, self._say = variant, say

    def run(self) -> None:
        """Kill so many times, each time when the job runs again."""
        follower, variant = self._follower, self._variant
        try:
            self._until(lambda: self._count("snapshot") > 1)
            self.over.wait(REST_SECONDS / 2)
            self._rest(time.monotonic())
            for kill in range(self._kills):
                self._say(f"{variant.name}: kill {kill + 1} of {self._kills}")
                began, again = time.monotonic(), self._count("restarted") + 1
                # With regions, the first workers are those of the left part.
                victims = follower.workers[variant.first : variant.first + WORKERS]
                os.kill(self._rng.choice(victims), signal.SIGKILL)
                self._until(lambda again=again: self._count("restarted") >= again)
                self._rest(began)
        except Exception as error:
            self.error = error
        finally:
            if not self.over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    def _rest(self, began: float) -> None:
        self.over.wait(REST_SECONDS)
        self.spans.append((began, time.monotonic()))

    def _count(self, kind: str) -> int:
        return sum(event["event"] == kind for _, event in self._follower.events)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if self.over.wait(0.005):
                raise RuntimeError("the job has ended early")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {DEADLINE_SECONDS:g} s for the job")
