"""Workers that go on while their JobManager is dead, and that the next JobManager takes over.

The next JobManager can be held back: it then waits, while it unpickles the job, until something has
happened that the test wants to happen while there is no JobManager.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import FileSink, JsonLines, MapFunction, RuntimeContext, StreamExecutionEnvironment
from penstock.connectors.enumerators import SubtaskEnumerator
from penstock.dataflow.nested_jobs import current_role
from penstock.dataflow.source import (
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.snapshot.storage.store import Store
from tests.processes.aims import strikes
from tests.processes.harness import (
    PATIENCE,
    WORDS,
    Killer,
    Settings,
    committed,
    counting_job,
    expected_words,
    gone,
    lost_and_doubled,
    run,
    wait_until,
)
from tests.processes.looping import LoopSettings, history, looping_job
from tests.processes.parts import PartedSource, let_all_go

TAKEN_OVER = "are taken over; the next snapshot"
RESTARTED = "are not taken over"


class Trace:
    """Counts the records that the workers of a job have processed, in files that all can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def count(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("seen.*"))

    @property
    def killed(self) -> Path:
        """A file that has the count when the JobManager was killed."""
        return self.folder / "killed"

    @property
    def error(self) -> Path:
        """A file that makes the next record of one worker fail."""
        return self.folder / "error"


class Tracing(MapFunction):
    """Counts each record, and leaves it as it is."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def open(self, context: RuntimeContext) -> None:
        path = self.trace.folder / f"seen.{context.get_index_of_this_subtask()}.{os.getpid()}"
        self._file = path.open("ab", buffering=0)

    def map(self, value: Any) -> Any:
        if self.trace.error.exists():
            self.trace.error.unlink(missing_ok=True)
            raise ValueError("while there is no JobManager")
        self._file.write(b".")
        return value

    def close(self) -> None:
        self._file.close()


class HeldSink(FileSink):
    """A sink that holds back the JobManager after the one that was killed.

    Arguments:
        until: what must be true of the trace before that JobManager may go on.
    """

    def __init__(self, settings: Settings, trace: Trace, until: Callable[[Trace], bool]) -> None:
        super().__init__(settings.output, JsonLines())
        self.held = _Held(trace, until)


class _Held:
    def __init__(self, trace: Trace, until: Callable[[Trace], bool]) -> None:
        self.trace, self.until = trace, until

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if current_role() == "a JobManager" and self.trace.killed.exists():
            wait_until(lambda: self.until(self.trace), "the workers have gone on")


def records_came(trace: Trace) -> bool:
    return trace.count > int(trace.killed.read_text()) + 500


def traced_job(
    settings: Settings,
    until: Callable[[Trace], bool] = lambda _: True,
    rejoin_timeout: float = PATIENCE,
    source: Source | None = None,
) -> StreamExecutionEnvironment:
    """The counting job with a trace, whose next JobManager is held back."""
    trace = Trace(settings.folder)
    config = replace(counting_job(settings).config, rejoin_timeout_seconds=rejoin_timeout)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    if source is None:
        source = PartedSource(
            settings.gate, settings.parts, lambda i: i, settings.count, settings.rate
        )
    words = (
        env.from_source(source, None, "numbers")
        .map(Tracing(trace))
        .map(lambda i, words=WORDS: (f"word{i * 7919 % words}", 1))
    )
    counted = words.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counted.sink_to(HeldSink(settings, trace, until)).uid("files")
    return env


class Assassin:
    """Kills the JobManager when it has completed a few snapshots.

    Arguments:
        settings: of the job.
        kills: how often.
        also: called with the pids of the workers after each kill.
        again: how many of the next JobManagers are killed as soon as they have started.
    """

    def __init__(
        self,
        settings: Settings,
        kills: int = 1,
        also: Callable[[list[int]], None] | None = None,
        again: int = 0,
    ) -> None:
        self.trace = Trace(settings.folder)
        self.settings, self.kills, self.also, self.again = settings, kills, also, again
        self.events: list[dict[str, Any]] = []
        self.killed: list[int] = []
        self._pid, self._workers, self._snapshots = 0, [], 0

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        match event["event"]:
            case "started":
                self._pid, self._snapshots = event["pid"], 0
                if self.again and self.killed:
                    self.again -= 1
                    os.kill(self._pid, signal.SIGKILL)
                    self.killed.append(self._pid)
            case "workers":
                self._workers = event["pids"]
            case "snapshot":
                self._snapshots += 1
                if self._snapshots == 3 and len(self.killed) < self.kills:
                    os.kill(self._pid, signal.SIGKILL)
                    self.killed.append(self._pid)
                    self.trace.killed.write_text(str(self.trace.count))
                    if self.also is not None:
                        self.also(self._workers)
                elif self._snapshots == 3:
                    let_all_go(self.settings.gate)

    @property
    def notes(self) -> list[str]:
        return [e["text"] for e in self.events if e["event"] == "note"]

    @property
    def workers(self) -> list[list[int]]:
        """The workers under each JobManager."""
        return [event["pids"] for event in self.events if event["event"] == "workers"]

    def took_over(self) -> list[bool]:
        """Whether each JobManager after the first has taken the workers over."""
        return [
            TAKEN_OVER in text for text in self.notes if TAKEN_OVER in text or RESTARTED in text
        ]


def _check(settings: Settings) -> None:
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


def _settings(folder: Path, **values: Any) -> Settings:
    return Settings(folder, **{"count": 40_000, "rate": 2_000, "parts": 1, **values})


@pytest.mark.parametrize("inline_threshold", [0, 64 * 1024])
def test_records_flow_while_there_is_no_jobmanager_and_none_is_processed_twice(
    tmp_path: Path, inline_threshold: int
):
    settings = _settings(tmp_path, inline_threshold=inline_threshold)
    assassin = Assassin(settings, kills=2)
    result = run(traced_job(settings, records_came), progress=assassin, supervise=True)
    assert len(assassin.killed) == 2
    assert assassin.took_over() == [True, True], assassin.notes
    [first, second, third] = assassin.workers
    assert first == second == third
    # No JobManager has let a snapshot be complete while records came, and none came again.
    assert assassin.trace.count == settings.count
    assert not result.restarts
    numbers = [event["number"] for event in assassin.events if event["event"] == "snapshot"]
    assert numbers == sorted(numbers)
    _check(settings)
    for pid in first:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{pid} is no zombie")


def test_workers_outlive_jobmanagers_that_die_one_after_the_other(tmp_path: Path):
    settings = _settings(tmp_path)
    assassin = Assassin(settings, again=3)
    run(traced_job(settings, records_came), progress=assassin, supervise=True)
    assert len(assassin.killed) == 4
    # The third one may have taken them over before it was killed, as may the second.
    assert assassin.took_over()[-1] and all(assassin.took_over()), assassin.notes
    [first, *others] = assassin.workers
    assert all(one == first for one in others)
    assert assassin.trace.count == settings.count
    _check(settings)


def test_a_worker_that_dies_while_there_is_no_jobmanager_lets_the_job_restart(tmp_path: Path):
    settings = _settings(tmp_path)

    def kill_one(workers: list[int]) -> None:
        os.kill(workers[0], signal.SIGKILL)

    assassin = Assassin(settings, also=kill_one)
    run(traced_job(settings), progress=assassin, supervise=True)
    assert TAKEN_OVER not in "".join(assassin.notes)
    [first, second] = assassin.workers
    assert not set(first) & set(second)
    for pid in first:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{pid} is no zombie")
    _check(settings)


def test_a_function_that_fails_while_there_is_no_jobmanager_lets_the_job_restart(tmp_path: Path):
    settings = _settings(tmp_path)
    trace = Trace(tmp_path)

    def failed(trace: Trace) -> bool:
        return not trace.error.exists()

    assassin = Assassin(settings, also=lambda _: trace.error.touch())
    run(traced_job(settings, failed), progress=assassin, supervise=True)
    assert not trace.error.exists()
    assert TAKEN_OVER not in "".join(assassin.notes)
    [first, second] = assassin.workers
    assert not set(first) & set(second)
    _check(settings)


def test_a_timeout_of_zero_ends_workers_with_their_jobmanager(tmp_path: Path):
    settings = _settings(tmp_path)
    workers: list[int] = []

    def all_gone(trace: Trace) -> bool:
        return all(map(gone, map(int, (trace.folder / "pids").read_text().split())))

    def tell(pids: list[int]) -> None:
        workers.extend(pids)
        (tmp_path / "pids.tmp").write_text(" ".join(map(str, pids)))
        (tmp_path / "pids.tmp").rename(tmp_path / "pids")

    (tmp_path / "pids").write_text("1")
    assassin = Assassin(settings, also=tell)
    run(traced_job(settings, all_gone, rejoin_timeout=0), progress=assassin, supervise=True)
    assert assassin.took_over() == []
    assert all(map(gone, workers))
    _check(settings)


class ManySplits(Source):
    """Numbers in many small splits, which the tasks request one after the other."""

    bounded = True
    SPLITS, SIZE = 800, 50

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        payloads = [[n * self.SIZE, (n + 1) * self.SIZE] for n in range(self.SPLITS)]
        return SubtaskEnumerator(payloads, parallelism)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _SlowReader()


class _SlowReader(SourceReader):
    def open(self, split: Split, position: Any) -> None:
        first, self._end = split.payload
        self._next = first if position is None else position

    def read(self, max_records: int) -> Read:
        records = [*range(self._next, min(self._next + 10, self._end))]
        self._next += len(records)
        return Read(records, self._next, self._next == self._end, 0.002)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_splits_that_were_assigned_after_the_newest_snapshot_are_read_once(
    tmp_path: Path, mode: str
):
    settings = _settings(tmp_path, count=ManySplits.SPLITS * ManySplits.SIZE)
    assassin = Assassin(settings, kills=3)
    env = traced_job(settings, source=ManySplits())
    if mode == "unaligned":
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    run(env, progress=assassin, supervise=True)
    assert len(assassin.killed) == 3
    assert assassin.took_over() == [True] * 3, assassin.notes
    assert assassin.trace.count == settings.count
    _check(settings)


@pytest.mark.parametrize("inline_threshold", [0, 64 * 1024])
def test_loops_are_taken_over_in_any_phase_of_their_snapshots(
    tmp_path: Path, inline_threshold: int
):
    phases = ("while logging", "acknowledged", "publishing", "published", "committing")
    aims = tuple((phase, "jobmanager") for phase in phases)
    settings = LoopSettings(tmp_path, inline_threshold=inline_threshold, aims=aims)
    events: list[dict[str, Any]] = []
    run(looping_job(settings), progress=events.append, supervise=True)
    struck = strikes(tmp_path)
    assert {strike["target"] for strike in struck} == {"jobmanager"}
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert any(TAKEN_OVER in text for text in notes), notes
    assert history(settings, committed(settings.output)) == (0, 0), struck


def test_kills_of_jobmanagers_and_workers_in_any_phase_lose_and_double_nothing(tmp_path: Path):
    seed = 3
    settings = Settings(tmp_path, rate=40_000, interval_ms=30, inline_threshold=0, parts=9)
    killer = Killer(
        random.Random(seed),
        kills=8,
        targets=("jobmanager", "jobmanager", "worker", "both"),
        gate=settings.gate,
    )
    run(counting_job(settings), progress=killer, supervise=True)
    killer.disarm()
    assert len(killer.killed) >= 8, f"seed {seed}"
    _check(settings)


_JOB = """
import sys
from pathlib import Path
from tests.processes.test_takeover import _settings, traced_job

folder = Path(sys.argv[1])
traced_job(_settings(folder, parts=1), rejoin_timeout=float(sys.argv[2])).execute("counting")
"""


class _Supervisor:
    """`penstock run --supervise` in a process of its own, whose JobManager has been killed."""

    def __init__(self, folder: Path, rejoin_timeout: float) -> None:
        script = folder / "job.py"
        script.write_text(_JOB)
        command = [sys.executable, "-m", "penstock", "run", str(script), "--supervise"]
        self._output = (folder / "output").open("wb")
        self.process = subprocess.Popen(
            [*command, "--", str(folder), str(rejoin_timeout)],
            stdout=subprocess.DEVNULL,
            stderr=self._output,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
        self._path = folder / "output"
        wait_until(lambda: Store(folder / "job").newest(), "a snapshot")
        self.jobmanager = int(self.line("started: JobManager pid").split()[-1])
        pids = self.line("workers: pids").partition("pids")[2]
        self.workers = [int(pid) for pid in pids.split(",")]
        # It cannot start another one while it is stopped.
        self.process.send_signal(signal.SIGSTOP)
        os.kill(self.jobmanager, signal.SIGKILL)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()

    def line(self, start: str) -> str:
        """Wait for a line that begins like this, and return it."""

        def found() -> str | None:
            return next((line for line in self.lines() if line.startswith(start)), None)

        return str(wait_until(found, start))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


def test_workers_end_with_their_supervisor(tmp_path: Path):
    supervisor = _Supervisor(tmp_path, PATIENCE)
    trace = Trace(tmp_path)
    try:
        before = trace.count
        wait_until(lambda: trace.count > before + 500, "records come without a JobManager")
        assert not any(map(gone, supervisor.workers))
    finally:
        supervisor.close()
    for pid in supervisor.workers:
        wait_until(lambda pid=pid: gone(pid), f"worker {pid} ended")


def test_workers_that_wait_for_too_long_end_and_the_job_restarts(tmp_path: Path):
    supervisor = _Supervisor(tmp_path, 0.5)
    try:
        for pid in supervisor.workers:
            wait_until(lambda pid=pid: gone(pid), f"worker {pid} ended")
        supervisor.process.send_signal(signal.SIGCONT)
        supervisor.line("resumed from snapshot")
        assert supervisor.process.wait(PATIENCE) == 0, supervisor.lines()
        assert TAKEN_OVER not in "".join(supervisor.lines())
    finally:
        supervisor.close()
    _check(_settings(tmp_path))
