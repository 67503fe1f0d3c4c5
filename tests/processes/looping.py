"""A job with two loops that is killed, and what must come out of it.

Every number visits `hops` keys, going round a keyed loop (a hash back-edge) once per visit; each
key counts its visits. Then it takes `turns` turns in a loop without state (a forward back-edge).
Each visit and each turn is a line of output, and when all is over each key tells its count. So the
complete history of every number, and of every key, is in the output: each visit once, each turn
once, each count of a key from 1 to its last, each last count once.

The hop function pauses now and then, so that records pile up in the loop however fast the machine.
Until the kills to come have come, however slow the machine, it pauses often, and three of four
numbers are kept from their last visit: they go on round the loop, from key to key, and that is not
counted. So the loop is never empty then, and does not end.
"""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import (
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from tests.processes.aims import Aims, strikes
from tests.processes.harness import Settings, compared
from tests.processes.parts import has_let_all_go

#: So many different keys.
KEYS = 53
#: Of the hop function, as long as something is to come.
SLOW_PACE = 2
#: One of so many numbers is not kept from its last visit.
FREE = 4
#: The size of files on a full disk.
FULL_BYTES = 512 * 1024


@dataclass(frozen=True)
class LoopSettings(Settings):
    """How a looping job is run.

    Arguments:
        hops, turns: of each number, in the keyed and in the forward loop.
        pace: the hop function of each subtask processes so many records a millisecond at most.
        padding: characters that each record carries about.
        memory: of each worker, in bytes.
        unbounded: the numbers never end.
        full_disk: once output was published, no file of a worker may grow beyond `FULL_BYTES`.
        gated: other kills are to come; that they have, a `Killer` says with the gate.
        rounds: so often a number goes round all keys at most while it is kept from its last visit;
            here that takes a minute and more.
    """

    count: int = 1_500
    rate: float | None = 4_000
    interval_ms: float = 50
    hops: int = 20
    turns: int = 3
    pace: int = 25
    padding: int = 0
    memory: int = 512 * 1024 * 1024
    unbounded: bool = False
    full_disk: bool = False
    gated: bool = False
    rounds: int = 6

    @property
    def last(self) -> int:
        """The last hop of a number that is not kept from it."""
        return self.hops - 1

    @property
    def home(self) -> int:
        """The last hop of a number that was: it comes to the same key."""
        return self.last + self.rounds * KEYS

    def over(self) -> bool:
        """Whether all that is to happen has happened, as far as files tell."""
        if self.full_disk:
            return any(self.output.glob("part-*"))
        if self.gated:
            return has_let_all_go(self.gate)
        return len(strikes(self.folder)) >= len(self.aims)


def key_of(number: int, hop: int) -> int:
    """The key that a number visits with a hop."""
    return (number * 31 + hop * 17) % KEYS


class Hop(KeyedProcessFunction):
    """Counts the visits of each key, and tells each with its count; tells the counts at the end."""

    def __init__(self, settings: LoopSettings, aims: Aims | None) -> None:
        self.settings, self.aims = settings, aims

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.processed, self.pace, self.going = 0, SLOW_PACE, False
        if self.settings.over():
            self.go()

    def go(self):
        self.pace, self.going = self.settings.pace, True
        if self.settings.full_disk:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, hard))

    def process_element(self, value, ctx):
        self.processed += 1
        if self.processed % self.pace == 0:
            threading.Event().wait(0.001)
            if not self.going and self.settings.over():
                self.go()
        number, hop, padding = value
        last, home = self.settings.last, self.settings.home
        if last <= hop < home and number % FREE and not self.going:
            yield (number, hop, 0, padding)
        elif last < hop < home:
            yield (number, home - 1, 0, padding)
        else:
            nth = (self.count.value() or 0) + 1
            self.count.update(nth)
            yield (number, min(hop, last), nth, padding)

    def end_input(self, ctx):
        yield (-1, ctx.get_current_key(), self.count.value(), "")


def looping_job(settings: LoopSettings) -> StreamExecutionEnvironment:
    """Numbers that go round two loops, into files."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    env.set_memory(settings.memory)
    aims = Aims(settings.folder, list(settings.aims)) if settings.aims else None
    count = None if settings.unbounded else settings.count
    padding = "." * settings.padding
    numbers = env.from_generator(lambda i: (i, 0, padding), count, settings.rate).uid("numbers")

    again = env.create_feedback("hops")
    keyed = numbers.union(again).key_by(lambda v: key_of(v[0], v[1]))
    hopped = keyed.process(Hop(settings, aims)).uid("hop")
    last = settings.last
    # What is no visit has 0 for the count of its key.
    staying = hopped.filter(lambda v: v[0] >= 0 and (v[1] < last or not v[2]))
    again.close_with(staying.map(lambda v: (v[0], v[1] + 1, v[3])))

    turns = settings.turns
    leaving = hopped.filter(lambda v: v[0] >= 0 and v[1] == last and v[2])
    turning = leaving.map(lambda v: (v[0], 0)).iterate()
    turned = turning.map(lambda v: (v[0], v[1] + 1))
    turning.close_with(turned.filter(lambda v: v[1] < turns))

    visits = hopped.filter(lambda v: v[2]).map(lambda v: v[:3])
    visits.union(turned).sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def _facts(record: list[int]) -> Iterable[tuple[Any, ...]]:
    if len(record) == 2:
        yield "turn", *record
    elif record[0] < 0:
        yield "in all", *record[1:]
    else:
        number, hop, nth = record
        yield "visit", number, hop
        yield "nth", key_of(number, hop), nth


def history(settings: LoopSettings, records: Iterable[Any]) -> tuple[int, int]:
    """How much of what the job must put out is missing, and how much is there more than once."""
    seen = Counter(fact for record in records for fact in _facts(record))
    numbers, hops = range(settings.count), range(settings.hops)
    visits = Counter(key_of(number, hop) for number in numbers for hop in hops)
    wanted: set[tuple[Any, ...]] = {("visit", number, hop) for number in numbers for hop in hops}
    wanted |= {("turn", number, turn + 1) for number in numbers for turn in range(settings.turns)}
    wanted |= {("nth", key, nth + 1) for key, count in visits.items() for nth in range(count)}
    wanted |= {("in all", *item) for item in visits.items()}
    return compared(seen, wanted)


def restored_logs(events: Iterable[dict[str, Any]]) -> list[int]:
    """The records in the logs of each snapshot that was restored, by a restart or a resume."""
    return [e["log_records"] for e in events if e["event"] in ("restarted", "resumed")]
