"""Single tasks restart while the others keep running, and lose and double nothing."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncDataStream,
    AsyncFunction,
    FileSink,
    FlatMapFunction,
    JsonLines,
    KeyedBroadcastProcessFunction,
    MapFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.dataflow.config.restart_scope import RestartScope
from tests.processes.harness import (
    WORDS,
    Killer,
    Settings,
    committed,
    compared,
    count_words,
    counting_env,
    counting_job,
    expected_words,
    lost_and_doubled,
    run,
    run_to_the_end,
)
from tests.processes.parts import PartedSource, let_all_go
from tests.sizes import sized

Job = Callable[[Settings], StreamExecutionEnvironment]


def tasks_job(settings: Settings) -> StreamExecutionEnvironment:
    env = counting_job(settings)
    env.config.restart_scope = RestartScope.TASK
    return env


def two_keyed_job(settings: Settings) -> StreamExecutionEnvironment:
    """The counts pass another keyed task, so tasks that count are in the middle of the job."""
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.TASK
    count_words(env, settings, keyed_again=True)
    return env


def turns_job(settings: Settings) -> StreamExecutionEnvironment:
    """The sources send the words to other tasks in turns, and the counts go on by chance."""
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.TASK
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "Source: Generator").rebalance()
    words = numbers.map(lambda i, words=WORDS: f"word{i * 7919 % words}")
    counted = words.key_by(lambda word: word).count().shuffle().map(lambda pair: pair)
    counted.sink_to(FileSink(settings.output, JsonLines()))
    return env


SEEN = MapStateDescriptor("seen")


class _CountsAndSees(KeyedBroadcastProcessFunction):
    """Counts words, and keeps the last broadcast number of each remainder."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: str, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value, self.count.value()

    def process_broadcast_element(self, value: int, ctx: Any) -> None:
        ctx.get_broadcast_state(SEEN).put(value % 100, value)


def broadcast_job(settings: Settings) -> StreamExecutionEnvironment:
    """Tasks with broadcast state are in the middle of the job."""
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.TASK
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "Source: Generator")
    words = numbers.map(lambda i, words=WORDS: f"word{i * 7919 % words}")
    rules = numbers.filter(lambda i: i % 8 == 0).broadcast(SEEN)
    counted = words.key_by(lambda word: word).connect(rules).process(_CountsAndSees())
    again = counted.key_by(lambda pair: pair[1] % 5).map(lambda pair: pair)
    again.sink_to(FileSink(settings.output, JsonLines()))
    return env


HOPS = 3


def loop_job(settings: Settings) -> StreamExecutionEnvironment:
    """The numbers are counted, and go round a loop from which no record leads to the counts."""
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.TASK
    numbers = count_words(env, settings)
    back = env.create_feedback("back")
    seen = numbers.map(lambda i: (i, HOPS)).union(back).key_by(lambda pair: sum(pair) % 5)
    seen = seen.map(lambda pair: pair).uid("hop")
    back.close_with(seen.filter(lambda pair: pair[1] > 0).map(lambda pair: (pair[0], pair[1] - 1)))
    seen.sink_to(FileSink(_looped(settings), JsonLines())).uid("looped")
    return env


class _Drawing(AsyncFunction):
    """Returns another number at each call, after a time that is drawn, too."""

    async def async_invoke(self, value: int) -> list[tuple[int, int]]:
        drawn = uuid.uuid4().int
        await asyncio.sleep((0.0, 0.0, 0.002, 0.01)[drawn % 4])
        return [(value, drawn % 1_000_003)]


def requests_job(settings: Settings) -> StreamExecutionEnvironment:
    """The result of a request decides which task gets it, so another result would be seen."""
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.TASK
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "Source: Generator")
    sent = numbers.key_by(lambda i: i % WORDS)
    drawn = AsyncDataStream.unordered_wait(sent, _Drawing(), 600_000, 50)
    again = drawn.key_by(lambda pair: pair[1] % 5).map(lambda pair: pair)
    again.sink_to(FileSink(settings.output, JsonLines()))
    return env


class _Sample(FlatMapFunction):
    """Keeps one record in three, with a random number, and notes how its numbers begin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self.random = runtime_context.get_random()
        if runtime_context.get_attempt_number() == 0:
            start = self.folder / f"start-{runtime_context.get_index_of_this_subtask()}"
            if not start.exists():
                start.write_bytes(pickle.dumps(self.random.getstate()))

    def flat_map(self, value: int) -> Iterator[tuple[int, int]]:
        if self.random.random() < 1 / 3:
            yield value, self.random.randrange(1000)


class _Draw(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.random = runtime_context.get_random()

    def map(self, value: tuple[int, int]) -> tuple[int, int, int]:
        return *value, self.random.getrandbits(30)


def random_job(settings: Settings) -> StreamExecutionEnvironment:
    """A sample whose random numbers decide which task gets a record, once and again."""
    env = counting_env(settings)
    env.config.restart_scope = RestartScope.TASK
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "Source: Generator")
    sample = numbers.flat_map(_Sample(settings.folder)).uid("sample")
    drawn = sample.key_by(lambda pair: pair[1] % 5).map(_Draw()).uid("draw")
    drawn.sink_to(FileSink(_drawn(settings), JsonLines())).uid("drawn")
    again = drawn.key_by(lambda one: one[2] % 5).map(lambda one: one)
    again.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def whole_random_job(settings: Settings) -> StreamExecutionEnvironment:
    """The same job, of which all tasks restart together."""
    env = random_job(settings)
    env.config.restart_scope = RestartScope.JOB
    return env


def _drawn(settings: Settings) -> Path:
    return settings.folder / "drawn"


def _check_random(settings: Settings) -> None:
    """Compare the sample with one that is drawn without failures."""
    wanted = set()
    for subtask in range(settings.parallelism):
        numbers = random.Random()
        numbers.setstate(pickle.loads((settings.folder / f"start-{subtask}").read_bytes()))
        for value in range(subtask, settings.count, settings.parallelism):
            if numbers.random() < 1 / 3:
                wanted.add((value, numbers.randrange(1000)))
    seen = committed(settings.output)
    assert compared(Counter((value, tag) for value, tag, _ in seen), wanted) == (0, 0)
    # A task has drawn the last number, and another one behind it has got it.
    assert sorted(seen) == sorted(committed(_drawn(settings)))
    assert len({number for _, _, number in seen}) > 0.99 * len(seen)


def _looped(settings: Settings) -> Path:
    return settings.folder / "looped"


def _check(settings: Settings, job: Job = tasks_job) -> None:
    if job is requests_job:
        answered = Counter(number for number, _ in committed(settings.output))
        assert compared(answered, {*range(settings.count)}) == (0, 0)
        return
    if job in (random_job, whole_random_job):
        _check_random(settings)
        return
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)
    if job is loop_job:
        seen = Counter(map(tuple, committed(_looped(settings))))
        wanted = {(i, hops) for i in range(settings.count) for hops in range(HOPS + 1)}
        assert compared(seen, wanted) == (0, 0)


@pytest.mark.parametrize(
    "job",
    [tasks_job, two_keyed_job, turns_job, broadcast_job, requests_job, random_job, loop_job],
    ids=[
        "one keyed",
        "two keyed",
        "in turns",
        "broadcast state",
        "requests",
        "random numbers",
        "a loop",
    ],
)
@pytest.mark.parametrize("seed", range(sized(1, 12)))
def test_killed_workers_restart_with_those_upstream_and_lose_and_double_nothing(
    tmp_path, seed, job
):
    settings = Settings(tmp_path, 20_000, interval_ms=30, inline_threshold=seed % 2 * 4096, parts=7)
    killer = Killer(random.Random(seed), kills=6, gate=settings.gate)
    result = run_to_the_end(settings, killer, job=job)
    assert len(killer.killed) >= 6, f"seed {seed}"
    # A kill during a restart of single tasks restarts all of them.
    named = [restart.get("region") or "" for restart in result.restarts]
    assert any(name.endswith(" tasks") for name in named), named
    _check(settings, job)


@pytest.mark.parametrize("seed", range(sized(1, 12)))
def test_single_tasks_and_whole_jobs_restart_in_turns_and_lose_and_double_nothing(tmp_path, seed):
    settings = Settings(tmp_path, 20_000, interval_ms=30, inline_threshold=0, parts=7)
    targets = ("worker", "worker", "jobmanager", "both")
    killer = Killer(random.Random(seed), 6, targets, after_snapshots=None, gate=settings.gate)
    run_to_the_end(settings, killer, job=tasks_job)
    assert len(killer.killed) >= 6, f"seed {seed}"
    _check(settings)


def test_a_restarted_job_draws_the_same_sample(tmp_path):
    settings = Settings(tmp_path, 20_000, interval_ms=30, parts=7)
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(1), 6, targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=whole_random_job)
    assert len(killer.killed) >= 6
    _check(settings, whole_random_job)


class _KillsOne:
    """Kills the worker in a slot after a snapshot, and lets all records come afterwards."""

    def __init__(self, settings: Settings, slot: int) -> None:
        self.settings, self.slot = settings, slot
        self.pids: list[int] = []
        self.victims: list[int] = []
        self.snapshots = 0
        self.restarted: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "workers":
                self.pids = event["pids"]
            case "snapshot":
                self.snapshots += 1
                if self.snapshots == 2:
                    self.victims = list(self.pids)
                    os.kill(self.pids[self.slot], signal.SIGKILL)
                elif self.restarted:
                    let_all_go(self.settings.gate)
            case "restarted":
                self.restarted.append(event)
            case _:
                pass


class _OpenFileSink(FileSink):
    leaves_open = True


def test_a_sink_that_leaves_output_open_restarts_with_all_subtasks(tmp_path):
    settings = Settings(tmp_path, 20_000, interval_ms=30, parts=2)
    env = counting_job(settings, _OpenFileSink(settings.output, JsonLines()))
    env.config.restart_scope = RestartScope.TASK
    notes: list[str] = []
    killer = _KillsOne(settings, 3)

    def observe(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(event["text"])
        killer(event)

    result = run(env, progress=observe)
    assert not {*killer.victims} & {*killer.pids}
    assert ["region" in restart for restart in result.restarts] == [False]
    assert [note for note in notes if "must abort the transactions of all its subtasks" in note]
    _check(settings)


@pytest.mark.parametrize(
    ("job", "slot", "restarts"),
    [
        (tasks_job, 1, {1}),
        (tasks_job, 3, {0, 1, 3}),
        (two_keyed_job, 3, {0, 1, 3}),
        (broadcast_job, 3, {0, 1, 3}),
        (requests_job, 3, {0, 1, 3}),
        (random_job, 1, {1}),
        (random_job, 3, {0, 1, 3}),
        (loop_job, 1, {1}),
        (loop_job, 3, {0, 1, 3}),
        (loop_job, 4, {0, 1, 4, 5}),
    ],
    ids=[
        "a source",
        "a keyed task",
        "a keyed task in the middle",
        "broadcast state",
        "requests",
        "a source with random numbers",
        "a keyed task with random numbers",
        "a source of a loop",
        "a keyed task beside a loop",
        "a task of a loop",
    ],
)
def test_only_the_failed_task_and_those_upstream_get_new_workers(tmp_path, job, slot, restarts):
    """Slots 0 and 1 have the subtasks of the source, and slots 2 and 3 those behind it.

    In the job with a loop, slots 4 and 5 have those of the loop.
    """
    settings = Settings(tmp_path, 20_000, interval_ms=30, parts=2)
    killer = _KillsOne(settings, slot)
    result = run(job(settings), progress=killer)
    changed = {
        slot
        for slot, (before, now) in enumerate(zip(killer.victims, killer.pids, strict=True))
        if before != now
    }
    assert changed == restarts
    assert [one["region"].rpartition(", ")[2] for one in result.restarts] == [
        f"{len(restarts)} of {len(killer.pids)} tasks"
    ]
    _check(settings, job)
