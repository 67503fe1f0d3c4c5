"""Runs real jobs in real processes, kills them, and counts what was lost or doubled.

The job is a running count per word, written by a `FileSink`: its committed output must hold, for
each word, every count from 1 to n exactly once. So a record that is lost or counted twice
anywhere shows, and so does output that is published twice. What the words are follows from the
index of the record, so the expected counts need no second run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import (
    DataStream,
    FileSink,
    JobExecutionResult,
    JsonLines,
    RestartStrategies,
    Sink,
    StoreError,
    StreamExecutionEnvironment,
)
from penstock.dataflow.config.cold_store import ColdStoreKind
from penstock.dataflow.program import RunOptions, run_options
from tests.processes.parts import PartedSource, let_all_go, let_go

#: So many different words.
WORDS = 499
#: Seconds to wait for what must happen: as many as the slowest machine may need.
PATIENCE = 180.0


@dataclass(frozen=True)
class Settings:
    """How a counting job is run.

    Arguments:
        folder: where everything of the job lies.
        count, rate: records in all, and per second; a rate of None is as fast as possible.
        interval_ms: between snapshots.
        inline_threshold: bytes of keyed state that travel in the manifest; 0 forces a database.
        cold_store: the database.
        parallelism: number of workers.
        heartbeat_timeout: seconds of silence after which a worker is dead.
        parts: the records come in so many parts, all but the first when they are let go.
        aims: kills to come, as of `Aims`; the counting job takes none.
    """

    folder: Path
    count: int = 40_000
    rate: float | None = 20_000
    interval_ms: float = 100
    inline_threshold: int = 64 * 1024
    cold_store: ColdStoreKind = ColdStoreKind.ROCKSDB
    parallelism: int = 2
    heartbeat_timeout: float = 50.0
    parts: int = 1
    aims: tuple[tuple[str, str], ...] = ()

    @property
    def output(self) -> Path:
        """The folder of the committed output."""
        return self.folder / "out"

    @property
    def gate(self) -> Path:
        """The folder by which parts of the records are let go."""
        return self.folder / "gate"

    @property
    def job(self) -> Path:
        """The job's own folder, with its snapshots."""
        return self.folder / "job"


def counting_job(settings: Settings, sink: Sink | None = None) -> StreamExecutionEnvironment:
    """Words made from numbers, counted per word, into files or another sink."""
    env = counting_env(settings)
    count_words(env, settings, sink=sink)
    return env


def counting_env(settings: Settings) -> StreamExecutionEnvironment:
    """The environment of a counting job, still without operators."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.config.cold_store = settings.cold_store
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    env.config.heartbeat_timeout_seconds = settings.heartbeat_timeout
    env.config.heartbeat_seconds = min(1.0, settings.heartbeat_timeout / 4)
    return env


def count_words(
    env: StreamExecutionEnvironment,
    settings: Settings,
    name: str = "",
    sink: Sink | None = None,
    keyed_again: bool = False,
) -> DataStream:
    """Add the operators of a counting job, and return its numbers.

    A name keeps several such parts of one job apart. With `keyed_again`, the counts pass another
    keyed task.
    """
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, f"Source: Generator{name}").uid(f"numbers{name}")
    words = numbers.map(lambda i, words=WORDS: f"word{i * 7919 % words}")
    # Which are routed by column.
    pairs = words.flat_map(lambda text: [(word, 1) for word in text.split()])
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counted = counted.uid(f"count{name}")
    if keyed_again:
        counted = counted.key_by(lambda pair: pair[1] % 5).map(lambda pair: pair)
    sink = FileSink(settings.output, JsonLines()) if sink is None else sink
    counted.sink_to(sink).uid(f"files{name}")
    return numbers


def expected_words(settings: Settings) -> Counter[str]:
    """What the counting job must have counted at its end."""
    return Counter(f"word{i * 7919 % WORDS}" for i in range(settings.count))


def committed(folder: Path) -> list[Any]:
    """Every record of the files that are published in a folder."""
    records = []
    for path in sorted(folder.glob("part-*")):
        with path.open(encoding="utf-8") as file:
            records += [json.loads(line) for line in file]
    return records


def lost_and_doubled(records: Iterable[Any], expected: Counter[str]) -> tuple[int, int]:
    """How many running counts are missing, and how many are there more than once or too many."""
    seen = Counter((word, number) for word, number in records)
    wanted = {(word, i + 1) for word, number in expected.items() for i in range(number)}
    return compared(seen, wanted)


def compared(seen: Counter[Any], wanted: set[Any]) -> tuple[int, int]:
    """How many of those that are wanted were not seen, and how many were seen beyond once each."""
    return len(wanted - seen.keys()), seen.total() - len(wanted & seen.keys())


def run(
    env: StreamExecutionEnvironment,
    *,
    name: str = "counting",
    resume: str | int | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> JobExecutionResult:
    """Execute a program with its events told to `progress`."""
    with run_options(RunOptions(resume=resume, progress=progress, **options)):
        return env.execute(name)


@dataclass
class Killer:
    """Kills processes of a running job at random moments; called with the job's events.

    The moment is a random time after a random event, so that it falls into any phase: starting,
    restoring, processing, aligning, writing, publishing, committing.

    Arguments:
        rng: decides whom and when.
        kills: how many, over all runs that this killer watches.
        targets: "worker", "jobmanager" or "both", picked at random each time.
        number: the signal.
        after_snapshots: only from so many snapshots of the run on; None is any time.
        gate: a folder by which the next part of the records is let go with each kill, and all
            that is left with the last.
        when: it kills only while this is so; asked before the random time and after it.
    """

    rng: random.Random
    kills: int = 1
    targets: tuple[str, ...] = ("worker",)
    number: int = signal.SIGKILL
    after_snapshots: int | None = 1
    gate: Path | None = None
    when: Callable[[], bool] = lambda: True
    events: list[dict[str, Any]] = field(default_factory=list)
    _killed: list[tuple[str, int]] = field(default_factory=list)
    _jobmanager: int = 0
    _workers: list[int] = field(default_factory=list)
    _snapshots: int = 0
    _armed: threading.Timer | None = None
    #: A process was killed, and the job has not said yet that it noticed.
    _unnoticed: bool = False
    #: Events come in one thread and each kill in another: what a kill brings about must not be
    #: heard of before the kill is noted.
    _lock: Any = field(default_factory=threading.RLock, repr=False)

    @property
    def killed(self) -> list[tuple[str, int]]:
        """Whom it has killed. A kill that is going on is waited for, as the job may be ahead."""
        with self._lock:
            return self._killed

    def __call__(self, event: dict[str, Any]) -> None:
        with self._lock:
            self.events.append(event)
            self._hear(event)

    def _hear(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "started":
            self._jobmanager, self._workers, self._snapshots = event["pid"], [], 0
            self._unnoticed = False
        elif kind == "workers":
            self._workers = event["pids"]
        elif kind == "snapshot":
            self._snapshots += 1
        elif kind in ("restarting", "finished", "failed"):
            self._workers, self._unnoticed = [], False
            self.disarm()
        early = self.after_snapshots is None and kind in ("workers", "running")
        late = kind in ("snapshot", "committed") and self._snapshots >= (self.after_snapshots or 0)
        ready = self._armed is None and not self._unnoticed and len(self.killed) < self.kills
        if ready and (early or late) and self.when():
            self._armed = threading.Timer(self.rng.uniform(0, 0.3), self._kill)
            self._armed.daemon = True
            self._armed.start()

    def disarm(self) -> None:
        """Do not kill until the next event."""
        with self._lock:
            if self._armed is not None:
                self._armed.cancel()
                self._armed = None

    def _kill(self) -> None:
        with self._lock:
            # Else it was disarmed when its time had come already.
            if self._armed is threading.current_thread():
                self._armed = None
                if self.when():
                    self._strike()

    def _strike(self) -> None:
        target = self.rng.choice(self.targets)
        victims = []
        if target in ("worker", "both") and self._workers:
            victims.append(self.rng.choice(self._workers))
        if target in ("jobmanager", "both"):
            victims.append(self._jobmanager)
        for pid in victims:
            try:
                os.kill(pid, self.number)
            except ProcessLookupError:
                continue
            self._unnoticed = True
            self._killed.append((target, pid))
        if self.gate is not None and self._unnoticed:
            let_go(self.gate)
            if len(self.killed) >= self.kills:
                let_all_go(self.gate)


def run_to_the_end(
    settings: Settings,
    killer: Killer,
    attempts: int = 200,
    job: Callable[[Any], StreamExecutionEnvironment] = counting_job,
) -> JobExecutionResult:
    """Run a job, and go on from its newest snapshot whenever its JobManager dies."""
    resume: str | None = None
    for _ in range(attempts):
        try:
            return run(job(settings), resume=resume, progress=killer)
        except StoreError as error:
            if "killed by signal 9" not in str(error):
                raise
        finally:
            killer.disarm()
        resume = "newest"
    raise AssertionError(f"not finished after {attempts} runs")


def gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has asked yet how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        # The second if it ends between opening and reading.
        return True


def wait_until(
    condition: Callable[[], Any], what: str, seconds: float = PATIENCE, every: float = 0.01
) -> Any:
    """Wait until a condition holds and return its value; fail with `what` after `seconds`.

    The pauses are at least four times as long as the condition takes. So requests and commands that
    are made again and again do not keep the job itself from going on.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        pause.wait(min(max(every, 4 * (now - began)), 1.0))
