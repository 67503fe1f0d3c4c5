"""Two inputs, broadcast state and operator state in real processes that are killed.

One job has all three. Its committed output is counted, as in the other tests here:

* two streams of words are counted together, per word, by a function of two keyed streams;
* every tenth number is broadcast, and each subtask counts those that it sees, in broadcast state;
* a function holds records back in operator state, and emits them four at a time.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CheckpointingMode,
    FileSink,
    JsonLines,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    RestartStrategies,
    StoreError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.snapshot.storage.store import Store
from tests.processes.harness import (
    Killer,
    committed,
    lost_and_doubled,
    run,
    run_to_the_end,
)
from tests.processes.parts import PartedSource, let_all_go, let_go

WORDS = 199
SEEN = MapStateDescriptor("seen")
MODES = {
    "aligned": CheckpointingMode.EXACTLY_ONCE,
    "unaligned": CheckpointingMode.UNALIGNED,
    "synchronous": CheckpointingMode.SYNCHRONOUS,
}


@dataclass(frozen=True)
class Settings:
    """How the job is run.

    Arguments:
        folder: where everything of the job lies.
        mode: how snapshots are taken.
        count: numbers of the source.
        inline_threshold: bytes of state that travel in the manifest; 0 writes all of it into files.
        parallelism: number of workers.
        parts: the numbers come in so many parts, all but the first when they are let go.
    """

    folder: Path
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    count: int = 8_000
    inline_threshold: int = 64 * 1024
    parallelism: int = 2
    parts: int = 4

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


class CountBoth(KeyedCoProcessFunction):
    """Emits how often each word has come, on both inputs together."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return self.process_element1(value, ctx)


class CountSeen(BroadcastProcessFunction):
    """Passes records through, and counts the broadcast records; each subtask has its own name."""

    def open(self, runtime_context: Any) -> None:
        self.name = f"rules of {runtime_context.get_index_of_this_subtask()}"

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        state = ctx.get_broadcast_state(SEEN)
        # A hundred entries, so that the state is written into a file if it need not be inline.
        state.put(value % 100, (state.get(value % 100) or 0) + 1)
        yield self.name, sum(state.values())


class Hold(ProcessFunction, CheckpointedFunction):
    """Holds records back, and emits them four at a time."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.saved = store.get_list_state(ListStateDescriptor("held"))
        self.held = list(self.saved.get())

    def snapshot_state(self, context: Any) -> None:
        self.saved.update(self.held)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.held.append(value)
        if len(self.held) >= 4:
            yield from self.end_input(ctx)

    def end_input(self, ctx: Any) -> Any:
        held, self.held = self.held, []
        yield from held


def job(settings: Settings) -> StreamExecutionEnvironment:
    """Two inputs, broadcast state and operator state."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism).enable_checkpointing(100)
    env.config.checkpointing_mode = settings.mode
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, 8_000)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    words = numbers.map(lambda i: f"word{i % WORDS}").uid("words")
    others = numbers.rebalance().map(lambda i: (i * 7 % WORDS, "word")).uid("others")
    both = words.connect(others).key_by(lambda word: word, lambda pair: f"{pair[1]}{pair[0]}")
    counted = both.process(CountBoth()).uid("count")
    rules = numbers.filter(lambda i: i % 10 == 0).uid("rules").broadcast(SEEN)
    seen = counted.connect(rules).process(CountSeen()).uid("seen")
    held = seen.rebalance().process(Hold()).uid("hold")
    held.sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def expected(settings: Settings) -> Counter[str]:
    """What must have been counted at the end, by word and by subtask."""
    words = Counter(f"word{i % WORDS}" for i in range(settings.count))
    words.update(f"word{i * 7 % WORDS}" for i in range(settings.count))
    rules = len(range(0, settings.count, 10))
    words.update({f"rules of {subtask}": rules for subtask in range(settings.parallelism)})
    return words


@pytest.mark.parametrize(
    ("mode", "inline_threshold", "targets"),
    [
        ("aligned", 0, ("worker",)),
        ("unaligned", 64 * 1024, ("worker",)),
        ("unaligned", 0, ("jobmanager", "both")),
        ("synchronous", 64 * 1024, ("worker",)),
    ],
)
def test_killed_processes_lose_and_double_nothing(
    tmp_path: Path, mode: str, inline_threshold: int, targets: tuple[str, ...]
) -> None:
    settings = Settings(tmp_path, MODES[mode], inline_threshold=inline_threshold)
    killer = Killer(random.Random(5), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=job)
    assert len(killer.killed) >= 3
    assert lost_and_doubled(committed(settings.output), expected(settings)) == (0, 0)
    handles = Store(settings.job).newest()
    assert handles is not None
    with_state = {h.uid: h.operator_state for h in handles.handles if h.operator_state}
    assert with_state.keys() == {"seen", "hold"}
    in_file = [bool(state.files) for state in with_state.values()]
    assert any(in_file) == (inline_threshold == 0)


def test_a_resume_at_another_parallelism_divides_lists_and_copies_broadcast_state(
    tmp_path: Path,
) -> None:
    settings = Settings(tmp_path, count=12_000)
    for number, parallelism in enumerate((2, 3)):
        killer = Killer(random.Random(number), targets=("jobmanager",), after_snapshots=3)
        with pytest.raises(StoreError, match="killed by signal 9"):
            run(
                job(replace(settings, parallelism=parallelism)),
                resume="newest" if number else None,
                progress=killer,
            )
        assert killer.killed
        let_go(settings.gate)
    let_all_go(settings.gate)
    run(job(replace(settings, parallelism=1)), resume="newest")
    records = committed(settings.output)
    words = Counter({w: n for w, n in expected(settings).items() if w.startswith("word")})
    counts = [record for record in records if record[0].startswith("word")]
    assert lost_and_doubled(counts, words) == (0, 0)
    seen: dict[str, list[int]] = {}
    for name, number in records:
        if name.startswith("rules"):
            seen.setdefault(name, []).append(number)
    rules = len(range(0, settings.count, 10))
    # The first subtask has seen every broadcast record once; the others as long as they ran.
    assert sorted(seen["rules of 0"]) == list(range(1, rules + 1))
    assert seen.keys() >= {"rules of 0", "rules of 1"}
    for numbers in seen.values():
        assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1))
