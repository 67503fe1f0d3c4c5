"""Each row of the tables of docs/guides/change-a-job.md is run: what a resumed job does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from penstock import (
    AggregateFunction,
    CountTrigger,
    Duration,
    EventTimeSessionWindows,
    GraphError,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from penstock.connectors import FileSink, FileSource, GeneratorSource
from penstock.dataflow.config import CheckpointingMode, JobConfig, RuntimeExecutionMode
from penstock.dataflow.errors import PenstockError, StoreError
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.testing import OperatorHarness
from penstock.testing.simulation.machine import Machine
from tests.simulation.run_program import program, run_program

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "change-a-job.md"

#: The words of the second column.
ACCEPTED, REFUSED, DROPPABLE = "accepted", "refused", "`--allow-dropped`"
#: Runs a row, and returns one of these words.
Row = Callable[[Path], str]
ROWS: dict[str, Row] = {}


def row(change: str) -> Callable[[Row], Row]:
    """Register the function that runs the row for a change."""

    def register(function: Row) -> Row:
        assert change not in ROWS, change
        ROWS[change] = function
        return function

    return register


def rows_of_page() -> dict[str, str]:
    """Return the second column of all tables of changes, keyed by the first."""
    found: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| ") or line.startswith("| change |"):
            continue
        change, outcome, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        assert change not in found, change
        found[change] = outcome
    return found


def test_each_row_of_the_page_is_run_and_each_run_has_its_row() -> None:
    assert list(rows_of_page()) == list(ROWS)


@pytest.mark.parametrize("change", ROWS)
def test_a_change_has_the_outcome_of_its_row(change: str, tmp_path: Path) -> None:
    assert ROWS[change](tmp_path) == rows_of_page().get(change, "no row")


# ---- how programs are run


class Keep(KeyedProcessFunction):
    """Appends the records of a key to a text in its state, and emits the text.

    Arguments:
        descriptors: the descriptors of its states.
    """

    def __init__(self, *descriptors: Any) -> None:
        self.descriptors = descriptors or (ValueStateDescriptor("kept"),)

    def open(self, runtime_context: Any) -> None:
        self.states = [self.state(runtime_context, one) for one in self.descriptors]

    def state(self, context: Any, descriptor: Any) -> Any:
        if isinstance(descriptor, ListStateDescriptor):
            return context.get_list_state(descriptor)
        if isinstance(descriptor, ReducingStateDescriptor):
            return context.get_reducing_state(descriptor)
        return context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        found = []
        for state in self.states:
            if hasattr(state, "add"):
                state.add(value)
                got = state.get()
                found.append("".join(got) if isinstance(got, list) else got)
            else:
                state.update((state.value() or "") + value)
                found.append(state.value())
        yield found[0] if len(found) == 1 else tuple(found)


def keyed(function: Any, uid: str = "keep", key: Any = lambda value: "k") -> Any:
    """Return a piece with one operator behind `key_by`."""
    return lambda stream: stream.key_by(key).process(function).uid(uid)


Records = list[tuple[Any, int | None]]


def resumed(
    before: Any,
    after: Any,
    *,
    records: Records = [("a", 0)],  # noqa: B006 - it is not changed
    more: Records = [("b", 0)],  # noqa: B006
    watermark: int | None = None,
    clock: int | None = None,
    expected: Any = None,
    dropped: Any = None,
    left: int | None = None,
    **options: Any,
) -> str:
    """Run a piece, and resume another one from its snapshot.

    Arguments:
        before, after: the pieces.
        records, more: their records, with event times.
        watermark: the watermark behind the further records.
        clock: the processing time behind them.
        expected: what the resumed piece emits; not asserted if it is None.
        dropped: the same if state was dropped.
        left: the number of entries of keyed state that are left; not asserted if it is None.
        options: further arguments of the second harness.
    """
    types = options.pop("types", {})
    with OperatorHarness(before, types=types.get("before", ())) as harness:
        harness.process_elements(records)
        snapshot = harness.snapshot()
    outcome, wanted = ACCEPTED, expected
    options |= {"snapshot": snapshot, "types": types.get("after", ())}
    try:
        harness = OperatorHarness(after, **options)
    except PenstockError as error:
        assert "snapshot" in str(error) or "state" in str(error)
        outcome = REFUSED if "--allow-dropped" not in str(error) else DROPPABLE
        try:
            harness = OperatorHarness(after, **options, allow_dropped=True)
        except PenstockError:
            return REFUSED
        wanted = dropped
    with harness:
        harness.process_elements(more)
        if watermark is not None:
            harness.process_watermark(watermark)
        if clock is not None:
            harness.set_processing_time(clock)
        emitted = harness.extract_output_values()
        assert left is None or harness.num_keyed_state_entries() == left
    assert wanted is None or emitted == wanted, emitted
    return outcome


# ---- operators


@row("an operator without state is added, removed or changed; stateful ones behind it have a `uid`")
def _(_: Path) -> str:
    def mapped(stream: Any) -> Any:
        return keyed(Keep())(stream.map(str.upper))

    assert resumed(mapped, keyed(Keep()), expected=["Ab"]) == ACCEPTED
    return resumed(keyed(Keep()), mapped, expected=["aB"])


@row("the same, and a stateful operator behind it has no `uid`")
def _(_: Path) -> str:
    def plain(stream: Any) -> Any:
        return stream.key_by(lambda value: "k").process(Keep())

    return resumed(plain, lambda stream: plain(stream.map(str)), dropped=["b"])


@row("an operator with state is added")
def _(_: Path) -> str:
    def two(stream: Any) -> Any:
        return keyed(Keep(), "new")(keyed(Keep())(stream))

    return resumed(keyed(Keep()), two, expected=["ab"])


@row("an operator with state is removed")
def _(_: Path) -> str:
    def two(stream: Any) -> Any:
        return keyed(Keep(), "old")(keyed(Keep())(stream))

    return resumed(two, keyed(Keep()), dropped=["ab"])


@row('`uid("old")` becomes `uid("new")`')
def _(_: Path) -> str:
    return resumed(keyed(Keep(), "old"), keyed(Keep(), "new"), dropped=["b"])


@row('`uid("old")` becomes `uid("new", formerly="old")`')
def _(_: Path) -> str:
    def renamed(stream: Any) -> Any:
        return stream.key_by(lambda value: "k").process(Keep()).uid("new", formerly="old")

    return resumed(keyed(Keep(), "old"), renamed, expected=["ab"])


@row("the code or the class of a function changes, and its operator has a `uid`")
def _(_: Path) -> str:
    class Other(Keep):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield from (text.title() for text in super().process_element(value, ctx))

    return resumed(keyed(Keep()), keyed(Other()), expected=["Ab"])


@row("an operator becomes another one: `reduce` a process function, a join a window")
def _(_: Path) -> str:
    def reduced(stream: Any) -> Any:
        return stream.key_by(lambda value: "k").reduce(lambda a, b: a + b).uid("keep")

    return resumed(reduced, keyed(Keep()))


# ---- states


@row("a state is added")
def _(_: Path) -> str:
    both = Keep(ValueStateDescriptor("kept"), ValueStateDescriptor("new"))
    return resumed(keyed(Keep()), keyed(both), expected=[("ab", "b")])


@row("a state is removed")
def _(_: Path) -> str:
    both = Keep(ValueStateDescriptor("kept"), ValueStateDescriptor("old"))
    return resumed(keyed(both), keyed(Keep()), dropped=["ab"])


@row("a state is renamed")
def _(_: Path) -> str:
    return resumed(keyed(Keep()), keyed(Keep(ValueStateDescriptor("held"))), dropped=["b"])


@row('a state is renamed, with `aliases=["old"]`')
def _(_: Path) -> str:
    renamed = Keep(ValueStateDescriptor("held", aliases=["kept"]))
    return resumed(keyed(Keep()), keyed(renamed), expected=["ab"])


@row("a state gets another kind, such as `ListState` for `ValueState`")
def _(_: Path) -> str:
    return resumed(keyed(Keep()), keyed(Keep(ListStateDescriptor("kept"))))


@row("a time to live is added, changed or removed")
def _(_: Path) -> str:
    def kept(seconds: int) -> Any:
        descriptor = ValueStateDescriptor("kept")
        if seconds:
            config = StateTtlConfig.new_builder(Time.seconds(seconds)).build()
            descriptor.enable_time_to_live(config)
        return keyed(Keep(descriptor))

    pairs = [(0, 10), (10, 20), (10, 0)]
    assert {resumed(kept(a), kept(b), expected=["ab"]) for a, b in pairs} == {ACCEPTED}
    return ACCEPTED


def versioned(version: int, migrate: Any = None) -> Any:
    return keyed(Keep(ValueStateDescriptor("kept", version=version, migrate=migrate)))


@row("its `version` is raised, and it has a `migrate`")
def _(_: Path) -> str:
    def migrate(value: str, version: int) -> str:
        return f"{value}{version}-"

    return resumed(keyed(Keep()), versioned(2, migrate), expected=["a1-b"])


@row("its `version` is raised, without `migrate`; or is lowered")
def _(_: Path) -> str:
    assert resumed(versioned(2), keyed(Keep())) == REFUSED
    return resumed(keyed(Keep()), versioned(2))


@row("the function of a reducing or aggregating state changes")
def _(_: Path) -> str:
    def reducing(function: Any) -> Any:
        return keyed(Keep(ReducingStateDescriptor("kept", function)))

    return resumed(reducing(max), reducing(lambda a, b: f"{a}+{b}"), expected=["a+b"])


# ---- records


def order(*fields: Any, name: str = "Order") -> Any:
    kind = make_dataclass(name, fields)
    kind.__module__ = "shop"
    return kind


class KeepRecord(KeyedProcessFunction):
    """Emits the record before, and keeps the new one."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield self.last.value()
        self.last.update(value)


def changed_class(old: Any, new: Any, first: Any, second: Any, **expected: Any) -> str:
    types = {"before": [old], "after": [new]}
    records: Any = {"records": [(first, 0)], "more": [(second, 0)]}
    return resumed(keyed(KeepRecord()), keyed(KeepRecord()), types=types, **records, **expected)


PRICE = order(("price", int))


@row("a field with a default is added")
def _(_: Path) -> str:
    new = order(("price", int), ("note", str, "-"))
    return changed_class(PRICE, new, PRICE(3), new(4), expected=[new(3, "-")])


@row("a field without a default is added")
def _(_: Path) -> str:
    new = order(("price", int), ("note", str))
    return changed_class(PRICE, new, PRICE(3), new(4, ""))


@row("a field is removed")
def _(_: Path) -> str:
    old = order(("price", int), ("note", str))
    return changed_class(old, PRICE, old(3, "x"), PRICE(4), dropped=[PRICE(3)])


@row("a field is renamed")
def _(_: Path) -> str:
    new = order(("cents", int, 0))
    return changed_class(PRICE, new, PRICE(3), new(4), dropped=[new(0)])


@row('a field is renamed, with `field(metadata={"aliases": ["old"]})`')
def _(_: Path) -> str:
    new = order(("cents", int, field(metadata={"aliases": ["price"]})))
    return changed_class(PRICE, new, PRICE(3), new(4), expected=[new(3)])


@row("a class gets another name or module")
def _(_: Path) -> str:
    new = order(("price", int), name="Purchase")
    records: Any = {"records": [(PRICE(3), 0)], "more": [(new(4), 0)]}
    types = {"before": [PRICE], "after": [new]}
    return resumed(keyed(KeepRecord()), keyed(KeepRecord()), types=types, **records)


@row("fields of a dataclass are put into another order")
def _(_: Path) -> str:
    old, new = order(("price", int), ("n", int)), order(("n", int), ("price", int))
    return changed_class(old, new, old(3, 4), new(5, 6), expected=[new(4, 3)])


@row("the type of a field gets wider: `int` → `float`, `int` → `int \\| None`")
def _(_: Path) -> str:
    new = order(("price", float))
    return changed_class(PRICE, new, PRICE(3), new(4.5), expected=[new(3)])


@row("the type of a field changes in another way: `int` → `str`")
def _(_: Path) -> str:
    new = order(("price", str))
    return changed_class(PRICE, new, PRICE(3), new("4"))


@row("the fields of a named tuple change")
def _(_: Path) -> str:
    class Pair(NamedTuple):
        a: int

    old = Pair

    class Pair(NamedTuple):  # type: ignore[no-redef]
        a: int
        b: int = 0

    return changed_class(old, Pair, old(1), Pair(1, 2))


@row("a member of an enum is added")
def _(_: Path) -> str:
    old, new = Enum("Colour", "RED", module="shop"), Enum("Colour", "RED BLUE", module="shop")
    return changed_class(old, new, old["RED"], new["BLUE"], expected=[new["RED"]])


@row("a member of an enum is removed or renamed")
def _(_: Path) -> str:
    old, new = Enum("Colour", "RED BLUE", module="shop"), Enum("Colour", "RED", module="shop")
    return changed_class(old, new, old["RED"], new["RED"])


# ---- keys


@row("the key selector returns other keys")
def _(_: Path) -> str:
    return resumed(
        keyed(Keep(), key=lambda value: "k"), keyed(Keep(), key=lambda value: 1), expected=["b"]
    )


@row("the maximal parallelism changes")
def _(_: Path) -> str:
    return resumed(keyed(Keep()), keyed(Keep()), max_parallelism=64)


@row("the parallelism changes")
def _(_: Path) -> str:
    return resumed(keyed(Keep()), keyed(Keep()), parallelism=3, expected=["ab"])


# ---- windows and timers


def seconds(number: int) -> Any:
    return TumblingEventTimeWindows.of(Time.seconds(number))


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class Size(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield len(list(elements))


def windows(
    assigner: Any, function: Any = max, *, lateness: int = 0, trigger: Any = None
) -> Callable[[Any], Any]:
    def build(stream: Any) -> Any:
        windowed = stream.key_by(lambda _: 0).window(assigner).allowed_lateness(lateness)
        windowed = windowed if trigger is None else windowed.trigger(trigger)
        if isinstance(function, AggregateFunction):
            return windowed.aggregate(function).uid("windows")
        if isinstance(function, ProcessWindowFunction):
            return windowed.process(function).uid("windows")
        return windowed.reduce(function).uid("windows")

    return build


def windowed(before: Any, after: Any, **expected: Any) -> str:
    """Resume windows with a record that was in the window before the resumption."""
    records: Any = {"records": [(5, 1000)], "more": [(3, 2000)]}
    return resumed(before, after, **records, watermark=100_000, **expected)


SESSION = EventTimeSessionWindows.with_gap(Time.seconds(10))


@row("the size, slide or offset of tumbling or sliding windows changes")
def _(_: Path) -> str:
    own = CountTrigger.of(9)
    before, after = (windows(seconds(n), trigger=own) for n in (10, 20))
    assert windowed(before, after, left=0) == ACCEPTED
    return windowed(windows(seconds(10)), windows(seconds(20)), dropped=[3])


@row("the gap of sessions changes")
def _(_: Path) -> str:
    shorter = EventTimeSessionWindows.with_gap(Time.seconds(2))
    return windowed(windows(SESSION), windows(shorter), expected=[5])


@row("windows of another kind: sessions for tumbling windows, processing time for event time")
def _(_: Path) -> str:
    processing = TumblingProcessingTimeWindows.of(Time.seconds(10))
    assert windowed(windows(seconds(10)), windows(processing)) == DROPPABLE
    return windowed(windows(seconds(10)), windows(SESSION), dropped=[3])


@row("a trigger is set where there was none, or taken away")
def _(_: Path) -> str:
    counting = windows(seconds(10), trigger=CountTrigger.of(2))
    assert windowed(counting, windows(seconds(10)), dropped=[3]) == DROPPABLE
    return windowed(windows(seconds(10)), counting)


@row("a trigger is replaced by another one")
def _(_: Path) -> str:
    before, after = (windows(seconds(10), trigger=CountTrigger.of(n)) for n in (9, 2))
    return windowed(before, after, expected=[5])


@row("the allowed lateness changes")
def _(_: Path) -> str:
    before, after = (windows(seconds(10), lateness=n) for n in (0, 5000))
    pairs = (after, before), (before, after)
    assert {windowed(*pair, expected=[5], left=0) for pair in pairs} == {ACCEPTED}
    return ACCEPTED


@row("the allowed lateness of sessions with `reduce` or `aggregate` becomes 0, or was 0")
def _(_: Path) -> str:
    before, after = (windows(SESSION, lateness=n) for n in (0, 5000))
    assert windowed(after, before) == DROPPABLE
    return windowed(before, after, dropped=[3])


@row("the function of a window changes its kind: `reduce`, `aggregate`, `process`")
def _(_: Path) -> str:
    assert windowed(windows(seconds(10)), windows(seconds(10), Size()), dropped=[1]) == DROPPABLE
    return windowed(windows(seconds(10)), windows(seconds(10), Count()), dropped=[1])


@row("the function of a window is replaced by another one of its kind")
def _(_: Path) -> str:
    return windowed(windows(seconds(10), max), windows(seconds(10), min), expected=[3])


class Alarm(KeyedProcessFunction):
    """Emits the time of a timer, which is set some time after each record."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + self.delay)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield timestamp


class Deaf(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


@row("a function sets its timers for other times")
def _(_: Path) -> str:
    return windowed(keyed(Alarm(10)), keyed(Alarm(30)), expected=[1010, 2030])


@row("a function with pending timers loses its `on_timer`")
def _(_: Path) -> str:
    return windowed(keyed(Alarm(10)), keyed(Deaf()), dropped=[])


@row("a watermark strategy changes")
def _(_: Path) -> str:
    def stamped(bound: int) -> Any:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(
            Duration.of_millis(bound)
        ).with_timestamp_assigner(lambda value, _: value)

        def build(stream: Any) -> Any:
            stream = stream.assign_timestamps_and_watermarks(strategy)
            return windows(seconds(10))(stream)

        return build

    records: Any = {"records": [(5_000, None)], "more": [(6_000, None), (12_000, None)]}
    assert resumed(stamped(0), stamped(5_000), **records, clock=1000, expected=[]) == ACCEPTED
    return resumed(stamped(5_000), stamped(0), **records, clock=1000, expected=[6_000])


# ---- whole jobs, on the simulated cluster


@dataclass
class Job:
    """A job with a source, a keyed operator and a sink of files, and its settings."""

    name: str = "job"
    source: str = "source"
    sink: str = "sink"
    make: Callable[[StreamExecutionEnvironment], Any] | None = None
    out: str = "out"
    root: str = "job"
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    interval: float = 0.1
    batch: bool = False
    sources: int = 1
    sinks: int = 1

    def build(self, env: StreamExecutionEnvironment, folder: Path) -> None:
        for number in range(self.sources):
            stream = generated(env) if self.make is None else self.make(env)
            stream = stream.uid(f"{self.source} {number}")
            for other in range(self.sinks):
                sink = FileSink(folder / self.out)
                stream.sink_to(sink).uid(f"{self.sink} {number} {other}")


def generated(env: StreamExecutionEnvironment, rate: float = 200.0, factor: int = 1) -> Any:
    source = GeneratorSource(lambda i: i * factor, None, rate, clock=trio.current_time)
    return env.from_source(source)


def started(job: Job, folder: Path, **settings: Any) -> None:
    """Run a job for a while, and stop it with a snapshot."""
    folder.mkdir(exist_ok=True)
    config = JobConfig(
        name=job.name,
        checkpoint_dir=str(folder / job.root),
        checkpoint_interval_seconds=job.interval,
        checkpointing_mode=job.mode,
        runtime_mode=RuntimeExecutionMode.BATCH if job.batch else RuntimeExecutionMode.STREAMING,
    )

    async def stop(running: JobManager, machine: Machine, events: Any) -> None:
        await trio.sleep(0.7)
        running.stop()

    def build(env: StreamExecutionEnvironment) -> None:
        job.build(env, folder)

    ran = run_program(program(build, config), options=JobSettings(**settings), script=stop)
    if isinstance(ran.outcome, PenstockError):
        raise ran.outcome
    assert isinstance(ran.outcome, JobOutcome), ran.crashes


def lines(folder: Path, out: str = "out") -> list[str]:
    files = (folder / out).glob("part-*")
    return sorted(line for path in files for line in path.read_text().split())


def changed(folder: Path, before: Job, after: Job, between: Any = lambda: None) -> str:
    """Run a job, change it, resume it, and return the outcome."""
    started(before, folder)
    assert lines(folder)
    between()
    try:
        started(after, folder, resume="newest")
        return ACCEPTED
    except (GraphError, StoreError) as error:
        if "--allow-dropped" not in str(error):
            return REFUSED
    started(after, folder, resume="newest", allow_dropped=True)
    return DROPPABLE


def require_numbers(folder: Path) -> None:
    """Check that the files have each number once."""
    found = sorted(map(int, lines(folder)))
    assert found == list(range(len(found))) and len(found) > 200


@row("a source is added")
def _(folder: Path) -> str:
    outcome = changed(folder, Job(), Job(sources=2))
    assert lines(folder).count("0") == 2
    return outcome


@row("a source is removed")
def _(folder: Path) -> str:
    return changed(folder, Job(sources=2), Job())


@row("a source gets another `uid`")
def _(folder: Path) -> str:
    outcome = changed(folder, Job(), Job(source="other"))
    assert lines(folder).count("0") == 2, "it is read from its beginning"
    return outcome


@row("a source reads at another rate, or makes other records")
def _(folder: Path) -> str:
    def faster(env: StreamExecutionEnvironment) -> Any:
        return generated(env, 400.0, -1)

    outcome = changed(folder, Job(), Job(make=faster))
    found = sorted(abs(int(line)) for line in lines(folder))
    assert found == list(range(len(found))) and any(line.startswith("-") for line in lines(folder))
    return outcome


def with_files(folder: Path, **options: Any) -> str:
    """Add a file to the folder of a source, and return the outcome."""
    files = folder / "in"
    files.mkdir()
    (files / "1.txt").write_text("one\n")

    def make(env: StreamExecutionEnvironment) -> Any:
        source = FileSource(files, clock=trio.current_time, **options)
        generated(env).uid("endless").sink_to(FileSink(folder / "rest")).uid("rest")
        return env.from_source(source)

    return changed(
        folder, Job(make=make), Job(make=make), lambda: (files / "2.txt").write_text("two\n")
    )


@row("files are added to the folder of a `FileSource` that lists it once")
def _(folder: Path) -> str:
    outcome = with_files(folder)
    assert lines(folder) == ["one"]
    return outcome


@row("files are added to the folder of a `FileSource` that watches it")
def _(folder: Path) -> str:
    outcome = with_files(folder, discovery_seconds=0.1, quiet_seconds=0)
    assert lines(folder) == ["one", "two"]
    return outcome


@row("a sink is added")
def _(folder: Path) -> str:
    return changed(folder, Job(), Job(sinks=2))


@row("a sink is removed or gets another `uid`, and all its output was published")
def _(folder: Path) -> str:
    assert changed(folder / "a", Job(sinks=2), Job()) == ACCEPTED
    outcome = changed(folder / "b", Job(), Job(sink="other"))
    require_numbers(folder / "b")
    return outcome


@row("the same, and the job was killed before all was published")
def _(folder: Path) -> str:
    def unpublish() -> None:
        (folder / "job" / "commits").unlink()

    return changed(folder, Job(), Job(sink="other"), unpublish)


@row("a sink writes to another place")
def _(folder: Path) -> str:
    outcome = changed(folder, Job(), Job(out="other"))
    assert not set(lines(folder)) & set(lines(folder, "other"))
    return outcome


@row("the checkpointing mode or interval changes")
def _(folder: Path) -> str:
    after = Job(mode=CheckpointingMode.UNALIGNED, interval=0.2)
    assert changed(folder, Job(), after) == ACCEPTED
    require_numbers(folder)
    return changed(folder / "b", after, Job())


@row("the job gets another name")
def _(folder: Path) -> str:
    return changed(folder, Job(), Job(name="other"))


@row("streaming mode becomes batch mode")
def _(folder: Path) -> str:
    def bounded(env: StreamExecutionEnvironment) -> Any:
        return env.from_source(GeneratorSource(lambda i: i, 10, clock=trio.current_time))

    return changed(folder, Job(), Job(make=bounded, batch=True))


def test_an_upgrade_is_rehearsed_on_a_fork_in_another_folder(tmp_path: Path) -> None:
    started(Job(), tmp_path)
    before = lines(tmp_path)
    rehearsal = Job(out="rehearsal", root="rehearsal job")
    with pytest.raises(GraphError, match="say --fork"):
        started(rehearsal, tmp_path, resume=str(tmp_path / "job"))
    started(rehearsal, tmp_path, resume=str(tmp_path / "job"), fork=True)
    assert lines(tmp_path) == before
    assert min(map(int, lines(tmp_path, "rehearsal"))) == len(before)
    started(Job(), tmp_path, resume="newest")
    require_numbers(tmp_path)
