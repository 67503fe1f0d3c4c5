"""A job with sessions, timers, expiring state and late records, and what must come out of it.

Record *i* follows from *i* and a seed; so do the watermarks, which are emitted after certain
records. With one reader all tasks see records and watermarks in that order, whoever is killed. So
it is defined which records are late, and which watermark each record meets; one of eleven records
is delayed. With two readers the order is not defined, so no record is delayed, and nothing that
comes out depends on the order.

* Sessions are emitted again for late records; records that are too late come to a side output.
* Each record registers a timer by event time and one by the clock. The first kind fires in order.
* Each record is counted in a state that does not expire while the job runs. Another state expires
  soon: it must be there before its time is over, and not afterwards.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock import (
    AggregateFunction,
    CheckpointingMode,
    EventTimeSessionWindows,
    FileSink,
    JsonLines,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    RestartStrategies,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TimeDomain,
    ValueStateDescriptor,
    Watermark,
    WatermarkGenerator,
    WatermarkStrategy,
)
from penstock.dataflow.time import MAX_WATERMARK, MIN_WATERMARK
from tests.processes.aims import Aims
from tests.processes.harness import Settings, committed
from tests.processes.parts import PartedSource
from tests.soak.killing import Verdict

__all__ = ["FUNCTION_PHASES", "TimedSettings", "verdict", "timed_job"]

#: Aims at the functions of the job.
FUNCTION_PHASES = ("timer fires", "clock timer fires", "session ends", "late record")
KEYS = 37
LATE = OutputTag("late")
#: All times are milliseconds.
GAP, ALLOWED_LATENESS, DISORDER, DELAY = 120, 500, 400, 3000
#: With one reader the watermark is ahead of some records by so much.
HASTE = 100
#: How long the state lives that expires while the job runs.
TIME_TO_LIVE = 150
#: One of so many chances to strike is taken, or the first of a phase would always be.
CHANCE = 0.03


@dataclass(frozen=True)
class TimedSettings(Settings):
    """How the job is run.

    Arguments:
        seed: decides about times and keys of the records.
        readers: subtasks of the source; with one of them there are late records.
        mode: of the snapshots.
        at_source: watermarks come from the source, else from an operator after it.
    """

    count: int = 15_000
    rate: float | None = 5_000
    seed: int = 0
    readers: int = 1
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    at_source: bool = True

    @property
    def late_output(self) -> Any:
        """The folder of the committed late records."""
        return self.folder / "late"


@dataclass(frozen=True)
class Plan:
    """Which records there are, and which watermarks."""

    seed: int
    late: bool

    def record(self, number: int) -> tuple[int, int, int]:
        """Return a record: its number, its key and its time."""
        mixed = (number * 2654435761 + self.seed * 40503 + 12345) & 0xFFFFFFFF
        mixed ^= mixed >> 15
        mixed = mixed * 2246822519 & 0xFFFFFFFF
        mixed ^= mixed >> 13
        time = number * 3 + mixed % DISORDER
        if self.late and mixed // DISORDER % 11 == 0:
            time -= mixed // 4400 % DELAY
        return number, mixed // 7 % KEYS, time

    def watermark(self, number: int) -> int | None:
        """Return the watermark after a record; two readers emit some each."""
        if number % 32 not in (13, 30):
            return None
        return number * 3 + HASTE * self.late


def due(number: int, time: int) -> int:
    """When the timer of a record fires, by event time."""
    return time + 1 + number * 7919 % 900


class Punctuated(WatermarkGenerator):
    """Emits a watermark after certain records."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        watermark = self.plan.watermark(event[0])
        if watermark is not None:
            output.emit_watermark(Watermark(watermark))

    def on_periodic_emit(self, output: Any) -> None:
        pass


class Aiming:
    """What the functions have in common: they say which phase they are in."""

    def __init__(self, aims: Aims | None) -> None:
        self.aims = aims

    def reached(self, phase: str) -> None:
        if self.aims is not None and random.random() < CHANCE:
            self.aims.reached(phase)


class CountAndSum(AggregateFunction):
    """Counts records, and adds their numbers up."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value[0]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Session(Aiming, ProcessWindowFunction):
    """Emits a session."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        self.reached("session ends")
        window = context.window()
        for number, total in elements:
            yield "session", key, window.start, window.end, number, total


class PassLate(Aiming, MapFunction):
    """Leaves late records as they are."""

    def map(self, value: Any) -> Any:
        self.reached("late record")
        return value


class Timers(Aiming, KeyedProcessFunction):
    """Registers timers for each record, counts it, and looks at a state that expires."""

    def open(self, runtime_context: Any) -> None:
        def living(descriptor: Any, time: Time) -> Any:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(time).build())
            return descriptor

        hour, soon = Time.hours(1), Time.milliseconds(TIME_TO_LIVE)
        context = runtime_context
        self.count = context.get_state(living(ValueStateDescriptor("count"), hour))
        self.recent = context.get_map_state(living(MapStateDescriptor("recent"), soon))
        self.updated = context.get_state(ValueStateDescriptor("updated"))
        self.fired = context.get_state(ValueStateDescriptor("fired"))
        self.waiting = context.get_map_state(MapStateDescriptor("waiting"))
        self.by_clock = context.get_map_state(MapStateDescriptor("by clock"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number, key, _ = value
        service = ctx.timer_service()
        nth = (self.count.value() or 0) + 1
        self.count.update(nth)
        yield "seen", number, key, nth, service.current_watermark(), self.expiry(number, service)
        at = due(number, ctx.timestamp())
        self.waiting.put(at, [*(self.waiting.get(at) or ()), number])
        service.register_event_time_timer(at)
        at = service.current_processing_time() + 1 + number % 90
        self.by_clock.put(at, [*(self.by_clock.get(at) or ()), number])
        service.register_processing_time_timer(at)

    def expiry(self, number: int, service: Any) -> str:
        """Say whether a value expired at its time; write the next one."""
        before = service.current_processing_time()
        found = self.recent.get("last")
        after = service.current_processing_time()
        verdict = "right"
        if self.updated.value() is not None:
            last, earliest, latest = self.updated.value()
            if found is None and after < earliest + TIME_TO_LIVE:
                verdict = "expired early"
            elif found is not None and before > latest + TIME_TO_LIVE:
                verdict = "expired late"
            elif found not in (None, last):
                verdict = f"{found} instead of {last}"
        before = service.current_processing_time()
        self.recent.put("last", number)
        self.updated.update((number, before, service.current_processing_time()))
        return verdict

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            self.reached("timer fires")
            for number in sorted(self.waiting.get(timestamp)):
                nth = (self.fired.value() or 0) + 1
                self.fired.update(nth)
                yield "timer", number, ctx.get_current_key(), timestamp, nth
            self.waiting.remove(timestamp)
        else:
            self.reached("clock timer fires")
            for number in self.by_clock.get(timestamp):
                yield "clock timer", number
            self.by_clock.remove(timestamp)

    def end_input(self, ctx: Any) -> Iterator[Any]:
        """Emit those whose timers by the clock have not fired; the end of the input drops them."""
        for numbers in self.by_clock.values():
            for number in numbers:
                yield "clock timer", number
        self.by_clock.clear()


def timed_job(settings: TimedSettings) -> StreamExecutionEnvironment:
    """Sessions and timers of the same records, into files."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpointing_mode(settings.mode)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    aims = Aims(settings.folder, list(settings.aims), logs=False) if settings.aims else None
    plan = Plan(settings.seed, settings.readers == 1)
    source = PartedSource(settings.gate, settings.parts, plan.record, settings.count, settings.rate)
    strategy = WatermarkStrategy.for_generator(lambda: Punctuated(plan))
    strategy = strategy.with_timestamp_assigner(lambda record, _: record[2])
    records = env.from_source(source, strategy if settings.at_source else None, "records")
    records.uid("records").set_parallelism(settings.readers)
    if not settings.at_source:
        records = records.assign_timestamps_and_watermarks(strategy).uid("timed")
        records.set_parallelism(settings.readers)
    keyed = records.key_by(lambda record: record[1])
    sessions = (
        keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(GAP)))
        .allowed_lateness(ALLOWED_LATENESS)
        .side_output_late_data(LATE)
        .aggregate(CountAndSum(), Session(aims))
        .uid("sessions")
    )
    timers = keyed.process(Timers(aims)).uid("timers")
    sessions.union(timers).sink_to(FileSink(settings.output, JsonLines())).uid("files")
    late = sessions.get_side_output(LATE).map(PassLate(aims)).uid("late")
    late.sink_to(FileSink(settings.late_output, JsonLines())).uid("late files")
    return env


def seen(settings: TimedSettings) -> Counter[Any]:
    """What came out, as facts."""
    facts: Counter[Any] = Counter()
    for kind, *rest in committed(settings.output):
        if kind == "seen":
            number, key, nth, watermark, expiry = rest
            facts["seen", number, expiry] += 1
            facts["count", key, nth] += 1
            if settings.readers == 1:
                facts["place", number, nth, watermark] += 1
        else:
            facts[kind, *rest] += 1
    facts.update(("late", *record) for record in committed(settings.late_output))
    return facts


def expected(settings: TimedSettings) -> set[Any]:
    """The facts that must come out, computed record by record."""
    plan = Plan(settings.seed, settings.readers == 1)
    naive = Naive()
    for number in range(settings.count):
        naive.process(*plan.record(number), settings.readers == 1)
        watermark = plan.watermark(number)
        if watermark is not None:
            naive.advance(watermark)
    naive.advance(MAX_WATERMARK)
    assert len(set(naive.facts)) == len(naive.facts)
    return set(naive.facts)


@dataclass(frozen=True)
class Span:
    """A session: from the start to before the end, with a number of records and their sum."""

    start: int
    end: int
    number: int
    total: int

    def touches(self, other: Span) -> bool:
        return self.start <= other.end and other.start <= self.end

    def merged(self, other: Span) -> Span:
        return Span(
            min(self.start, other.start),
            max(self.end, other.end),
            self.number + other.number,
            self.total + other.total,
        )


class Naive:
    """What the job does, in one place, one record after the other."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self.watermark = MIN_WATERMARK
        self.counts: Counter[int] = Counter()
        self.fired: Counter[int] = Counter()
        self.sessions: dict[int, list[Span]] = defaultdict(list)
        self.timers: list[tuple[int, int, int]] = []

    def process(self, number: int, key: int, time: int, placed: bool) -> None:
        self.counts[key] += 1
        nth = self.counts[key]
        self.facts += [("seen", number, "right"), ("count", key, nth), ("clock timer", number)]
        if placed:
            self.facts.append(("place", number, nth, self.watermark))
        self.timers.append((due(number, time), number, key))
        session = Span(time, time + GAP, 1, number)
        for other in [span for span in self.sessions[key] if span.touches(session)]:
            self.sessions[key].remove(other)
            session = session.merged(other)
        if session.end - 1 + ALLOWED_LATENESS <= self.watermark:
            self.facts.append(("late", number, key, time))
            return
        self.sessions[key].append(session)
        if session.end - 1 <= self.watermark:
            self.emit(key, session)

    def emit(self, key: int, session: Span) -> None:
        start, end, number, total = session.start, session.end, session.number, session.total
        self.facts.append(("session", key, start, end, number, total))

    def advance(self, watermark: int) -> None:
        for at, number, key in sorted(timer for timer in self.timers if timer[0] <= watermark):
            self.fired[key] += 1
            self.facts.append(("timer", number, key, at, self.fired[key]))
        self.timers = [timer for timer in self.timers if timer[0] > watermark]
        for key, sessions in self.sessions.items():
            for session in sessions:
                if self.watermark < session.end - 1 <= watermark:
                    self.emit(key, session)
            self.sessions[key] = [
                session for session in sessions if session.end - 1 + ALLOWED_LATENESS > watermark
            ]
        self.watermark = watermark


def verdict(settings: TimedSettings) -> Verdict:
    """Compare what came out of a job with what must come out of it, and count it by kind."""
    facts = seen(settings)
    kinds: Counter[str] = Counter()
    for fact, times in facts.items():
        kinds[fact[0]] += times
    return Verdict.of_facts(facts, expected(settings), kinds)
