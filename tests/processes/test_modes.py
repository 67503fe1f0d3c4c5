"""Checkpointing modes in real processes: what each of them promises when processes are killed.

The job counts words for an operator that is slower than the count. Records wait in each channel
between the two, so that an unaligned snapshot has something to log. What was committed is counted,
as in the other tests here.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CheckpointingMode,
    FileSink,
    GraphError,
    JsonLines,
    KeyedProcessFunction,
    ProcessFunction,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.snapshot.storage.store import Store
from tests.processes.harness import Killer, committed, run
from tests.processes.parts import PartedSource, Slow, has_let_all_go, let_all_go

WORDS = 97
EXACT = [
    pytest.param(CheckpointingMode.UNALIGNED, 0, id="unaligned"),
    pytest.param(CheckpointingMode.UNALIGNED, 20, id="aligned for 20 ms"),
    pytest.param(CheckpointingMode.SYNCHRONOUS, 0, id="synchronous"),
]
#: `make test` kills workers of a job without loops in all three modes, which takes less time.
OF_LOOPS = [
    EXACT[0],
    pytest.param(*EXACT[1].values, id=EXACT[1].id, marks=pytest.mark.long),
    EXACT[2],
]


@dataclass(frozen=True)
class Settings:
    """How a job of these tests is run.

    Arguments:
        folder: where everything of the job lies.
        mode, timeout_ms: how snapshots are taken, and for how long they are aligned first.
        count: records in all.
        slow_seconds: what the last operator takes for a record.
        interval_ms: between snapshots.
        inline_threshold: bytes of a log that travel in the manifest.
        batch_records: so many make a batch, which says how much can be in flight.
        parallelism: number of workers.
        parts: the records come in so many parts, all but the first when they are let go.
    """

    folder: Path
    mode: CheckpointingMode
    timeout_ms: float = 0
    count: int = 20_000
    slow_seconds: float = 0.0
    interval_ms: float = 100
    inline_threshold: int = 64 * 1024
    batch_records: int = 64
    parallelism: int = 2
    parts: int = 1

    @property
    def gate(self) -> Path:
        """The folder by which parts of the records are let go."""
        return self.folder / "gate"

    @property
    def output(self) -> Path:
        """The folder of the committed output."""
        return self.folder / "out"

    @property
    def job(self) -> Path:
        """The job's own folder, with its snapshots."""
        return self.folder / "job"


def environment(settings: Settings) -> StreamExecutionEnvironment:
    """With what the settings say about snapshots."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms, settings.mode)
    config = env.get_checkpoint_config()
    config.set_aligned_checkpoint_timeout(settings.timeout_ms)
    config.set_checkpoint_storage_dir(settings.job)
    config.set_inline_threshold(settings.inline_threshold)
    env.config.batch_records = settings.batch_records
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    return env


def slow_job(settings: Settings) -> StreamExecutionEnvironment:
    """Words counted, then handed round to an operator that is slower than all before it."""
    env = environment(settings)
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count)
    numbers = env.from_source(source).uid("numbers")
    words = numbers.map(lambda i, words=WORDS: f"word{i * 7919 % words}")
    # Which are routed by column.
    pairs = words.flat_map(lambda text: [(word, 1) for word in text.split()])
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    rounds = counted.uid("count").key_by(lambda pair: f"{pair[0]}{pair[1] % 7}")

    slowed = rounds.map(Slow(settings.slow_seconds, settings.gate)).uid("slow")
    slowed.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def slow_expected(settings: Settings) -> set[tuple[str, int]]:
    """Every running count of every word."""
    totals = Counter(f"word{i * 7919 % WORDS}" for i in range(settings.count))
    return {(word, i + 1) for word, number in totals.items() for i in range(number)}


class Hop(KeyedProcessFunction):
    """Counts what comes by per key, and sends it on until its hops are used up."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update((self.seen.value() or 0) + 1)
        key, hops = value
        if hops:
            yield ((key * 31 + 7) % 101, hops - 1)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        yield ("final", [ctx.get_current_key(), self.seen.value()])


HOPS = 5


def loop_job(settings: Settings) -> StreamExecutionEnvironment:
    """Every record goes round a loop some times; at the end each key says how many came by."""
    env = environment(settings)

    def number(i: int, hops: int = HOPS) -> tuple[int, int]:
        return i % 101, hops

    # Not as fast as can be, so that somebody is killed while records come.
    source = PartedSource(settings.gate, settings.parts, number, settings.count, 10_000)
    numbers = env.from_source(source)
    feedback = env.create_feedback("hops")
    hopped = numbers.uid("numbers").union(feedback).key_by(lambda r: r[0]).process(Hop())
    hopped = hopped.uid("hops")
    feedback.close_with(hopped.filter(lambda r: r[0] != "final"))
    final = hopped.filter(lambda r: r[0] == "final").map(lambda r: r[1])
    final.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def loop_expected(settings: Settings) -> set[tuple[int, int]]:
    """How many came by at each key."""
    totals: Counter[int] = Counter()
    for i in range(settings.count):
        key = i % 101
        for _ in range(HOPS + 1):
            totals[key] += 1
            key = (key * 31 + 7) % 101
    return set(totals.items())


def lost_and_doubled(settings: Settings, wanted: set[Any]) -> tuple[int, int]:
    """Of what is wanted, how many are missing; and how many there are beyond once each."""
    seen = Counter(map(tuple, committed(settings.output)))
    return len(wanted - seen.keys()), seen.total() - len(wanted & seen.keys())


def logs(settings: Settings) -> Counter[str]:
    """Records in the logs of the newest snapshot, per operator that they wait for."""
    newest = Store(settings.job).newest()
    found: Counter[str] = Counter()
    for handle in newest.handles if newest is not None else ():
        found[handle.uid] += sum(log.records for log in handle.logs)
    return +found


def worth_a_kill(settings: Settings) -> bool:
    """Whether the newest snapshot has records in flight to the slow operator, if its mode logs."""
    return settings.mode is not CheckpointingMode.UNALIGNED or logs(settings)["slow"] > 0


class Logged(Killer):
    """Kills as a `Killer` does, and notes how much was in flight in what was restored."""

    def restored_records(self) -> list[int]:
        """Records in the logs of the snapshot that was newest at each restart."""
        newest, found = 0, []
        for event in self.events:
            if event["event"] == "snapshot":
                newest = event["log_records"]
            elif event["event"] == "restarting":
                found.append(newest)
        return found


@pytest.mark.parametrize(("mode", "timeout"), EXACT)
def test_workers_killed_under_backpressure_lose_and_double_nothing(
    tmp_path: Path, mode: CheckpointingMode, timeout: float
) -> None:
    settings = Settings(tmp_path, mode, timeout, count=40_000, slow_seconds=0.001)
    when = partial(worth_a_kill, settings)
    killer = Logged(random.Random(3), kills=3, gate=settings.gate, when=when)
    result = run(slow_job(settings), progress=killer)
    assert len(killer.killed) == len(result.restarts) == 3
    if mode is CheckpointingMode.UNALIGNED:
        restored = killer.restored_records()
        assert len([records for records in restored if records]) >= (1 if timeout else 2), restored
    assert lost_and_doubled(settings, slow_expected(settings)) == (0, 0)


@pytest.mark.parametrize(("mode", "timeout"), OF_LOOPS)
def test_workers_of_a_loop_are_killed_and_nothing_is_lost_or_doubled(
    tmp_path: Path, mode: CheckpointingMode, timeout: float
) -> None:
    settings = Settings(tmp_path, mode, timeout, count=20_000, interval_ms=60, parts=3)
    killer = Logged(random.Random(7), kills=2, gate=settings.gate)
    result = run(loop_job(settings), progress=killer)
    assert len(killer.killed) == len(result.restarts) == 2
    assert lost_and_doubled(settings, loop_expected(settings)) == (0, 0)


@pytest.mark.parametrize("job", ["slow", "loop"])
def test_at_least_once_loses_nothing(tmp_path: Path, job: str) -> None:
    settings = Settings(tmp_path, CheckpointingMode.AT_LEAST_ONCE, interval_ms=60, parts=3)
    killer = Logged(random.Random(5), kills=2, gate=settings.gate)
    if job == "slow":
        settings = replace(settings, slow_seconds=0.001)
        run(slow_job(settings), progress=killer)
        # A word that was counted twice skips a number nowhere: it has higher ones.
        assert lost_and_doubled(settings, slow_expected(settings))[0] == 0
    else:
        settings = replace(settings, count=20_000)
        run(loop_job(settings), progress=killer)
        totals = dict(committed(settings.output))
        for key, number in loop_expected(settings):
            assert totals[key] >= number
    assert len(killer.killed) == 2


def _killed(settings: Settings, seed: int, resume: str | None = None) -> None:
    """Run the slow job until its JobManager is killed, some snapshots later."""
    when = partial(worth_a_kill, settings)
    killer = Killer(random.Random(seed), targets=("jobmanager",), after_snapshots=2, when=when)
    with pytest.raises(StoreError, match="killed by signal 9"):
        run(slow_job(settings), resume=resume, progress=killer)


def test_records_in_flight_are_dealt_out_to_another_number_of_workers(tmp_path: Path) -> None:
    settings = Settings(tmp_path, CheckpointingMode.UNALIGNED, count=40_000, slow_seconds=0.001)
    settings = replace(settings, inline_threshold=0)  # logs are in files
    for seed, parallelism in enumerate((2, 3)):
        _killed(replace(settings, parallelism=parallelism), seed, resume="newest" if seed else None)
        assert logs(settings)["slow"] > 0, logs(settings)
    run(slow_job(replace(settings, parallelism=1, slow_seconds=0)), resume="newest")
    assert lost_and_doubled(settings, slow_expected(settings)) == (0, 0)


class LastWord(ProcessFunction):
    """Says at the end which subtask it was; the second one is slow until all is let go."""

    def __init__(self, seconds: float, gate: Path) -> None:
        self.seconds, self.gate = seconds, gate

    def open(self, ctx: Any) -> None:
        self.subtask = ctx.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.subtask == 1 and not has_let_all_go(self.gate):
            threading.Event().wait(self.seconds)

    def end_input(self, ctx: Any) -> Iterator[int]:
        yield self.subtask


def last_word_job(settings: Settings, apart: bool = False) -> StreamExecutionEnvironment:
    """Aligned snapshots fall between the ends of sources only, unaligned ones of any task."""
    env = environment(settings)
    numbers = env.from_generator(lambda i: i, settings.count).uid("numbers")
    if settings.mode is CheckpointingMode.UNALIGNED:
        numbers = numbers.set_parallelism(1).rebalance()  # away from the slow worker
        # All that the slow one gets is under way to it at once, and the source has ended.
        env.config.channel_batches = settings.count
        env.config.buffer_debloat_target_seconds = 1e6
    words = numbers.process(LastWord(settings.slow_seconds, settings.gate)).uid("words")
    if apart:
        words = words.disable_chaining()
    words.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        pytest.param(CheckpointingMode.EXACTLY_ONCE, 0.25, id="aligned"),
        pytest.param(CheckpointingMode.UNALIGNED, 0.5, id="unaligned", marks=pytest.mark.long),
    ],
)
def test_a_last_word_that_only_one_subtask_has_had_is_neither_lost_nor_said_twice(
    tmp_path: Path, mode: CheckpointingMode, seconds: float
) -> None:
    # The slow one takes a minute or two, and is interrupted long before.
    settings = Settings(tmp_path, mode, count=400, batch_records=4, slow_seconds=seconds)

    def stop_in_between(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot":
            newest = Store(settings.job).newest()
            assert newest is not None
            ended = {handle.subtask for handle in newest.handles if handle.ended}
            assert ended <= {0}
            if ended:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(last_word_job(settings), progress=stop_in_between)
    with pytest.raises(GraphError, match=r"end_input has run in some .* parallelism 2"):
        run(last_word_job(replace(settings, parallelism=3)), resume="newest")
    let_all_go(settings.gate)
    # The task that has ended is another one now, and knows it all the same.
    run(last_word_job(settings, apart=True), resume="newest")
    assert sorted(committed(settings.output)) == [0, 1]


def test_a_job_goes_on_in_another_mode_and_comes_back(tmp_path: Path) -> None:
    settings = Settings(tmp_path, CheckpointingMode.UNALIGNED, count=40_000, slow_seconds=0.001)
    modes = CheckpointingMode
    for seed, mode in enumerate((modes.UNALIGNED, modes.EXACTLY_ONCE, modes.UNALIGNED)):
        _killed(replace(settings, mode=mode), seed, resume="newest" if seed else None)
        assert bool(logs(settings)) == (mode is modes.UNALIGNED)
    run(slow_job(replace(settings, mode=modes.SYNCHRONOUS, slow_seconds=0)), resume="newest")
    assert lost_and_doubled(settings, slow_expected(settings)) == (0, 0)


def _in_flight(settings: Settings, enough: int = 0) -> list[int]:
    """Runs the slow job; the records in the logs of each snapshot but the last.

    All is let go when there were enough in all of them.
    """
    found: list[int] = []

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "snapshot" and event["kind"] != "final":
            found.append(event["log_records"])
            if sum(found) >= enough:
                let_all_go(settings.gate)

    run(slow_job(settings), progress=note)
    assert lost_and_doubled(settings, slow_expected(settings)) == (0, 0)
    return found


def test_a_snapshot_passes_a_slow_sink_without_waiting_for_its_queue(tmp_path: Path) -> None:
    """docs/inside/architecture.md says: a slice of user code per task on the way, no queue.

    A record costs the last operator 1 ms, and those before it less than a hundredth of that. So as
    many are in flight as there is room for, and an aligned snapshot waits for them; that one
    which does not is complete while they still wait is told by its logs, in which they are.
    """
    modes = CheckpointingMode
    base = Settings(tmp_path, modes.EXACTLY_ONCE, count=4000, slow_seconds=0.001)
    base = replace(base, batch_records=4096)
    assert not any(_in_flight(replace(base, folder=tmp_path / "a")))
    # How many are in flight at one moment depends on the machine.
    enough = 50
    base = replace(base, mode=modes.UNALIGNED, count=40_000)
    for timeout in (0, 20):
        settings = replace(base, folder=tmp_path / f"u{timeout}", timeout_ms=timeout)
        in_flight = _in_flight(settings, enough)
        assert sum(in_flight) >= enough, in_flight


def test_a_job_that_keeps_up_aligns_and_has_nothing_in_flight(tmp_path: Path) -> None:
    settings = Settings(tmp_path, CheckpointingMode.UNALIGNED, 10_000, count=30_000, parts=2)
    settings = replace(settings, interval_ms=30)
    in_flight = _in_flight(settings)
    assert in_flight and not any(in_flight), in_flight


def _slow_in_flight(settings: Settings) -> StreamExecutionEnvironment:
    env = environment(settings)
    numbers = env.from_iterable(lambda: iter(range(settings.count)))

    def slow(number: int) -> int:
        threading.Event().wait(settings.slow_seconds)
        return number

    numbers.rebalance().map(abs).rebalance().map(slow).add_sink(lambda number: None)
    return env


def test_few_records_are_in_flight_to_a_slow_function(tmp_path: Path) -> None:
    # Barriers overtake all that is in flight, so the snapshots count it.
    mode = CheckpointingMode.UNALIGNED
    settings = Settings(tmp_path, mode, count=2_000, batch_records=4096, slow_seconds=0.002)
    outcome = run(_slow_in_flight(settings))
    counts = [snapshot["log_records"] for snapshot in outcome.snapshots]
    assert counts
    # 100 ms to each of the two stages are 200 records; the source alone could read all at once.
    assert max(counts) <= 400
