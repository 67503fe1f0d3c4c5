"""Values of older versions are converted when a program resumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import (
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CheckpointedFunction,
    GraphError,
    JobError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)
from penstock.connectors import GeneratorSource
from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.state import StateDescriptor
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from penstock.runtime.operators.state import StateStore
from penstock.testing import OperatorHarness
from tests.runtime.operators.state.states import Clock, context_of, with_key
from tests.runtime.operators.state.test_states import Mean
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import crash_at_commit, program, run_program


def to_text(value: Any, version: int) -> str:
    return f"{value}, was {version}"


def resumed(make: Any, before: Any, after: Any, fill: Any) -> Any:
    """Fill a state of key "a", and return it as a program with another descriptor finds it."""
    clock = Clock()
    context = with_key(context_of(make(), clock), "a")
    fill(context.states.of_descriptor(before))
    backend = make.restored(make.snapshot(context.backend, 1))
    again = with_key(context_of(backend, clock), "a")
    state = again.states.of_descriptor(after)
    backend.end_opening()
    return state


def both(kind: type[StateDescriptor], *arguments: Any) -> tuple[Any, Any]:
    return kind("s", *arguments), kind("s", *arguments, version=3, migrate=to_text)


def test_values_elements_and_accumulators_are_converted(make: Any) -> None:
    state = resumed(make, *both(ValueStateDescriptor), lambda state: state.update(5))
    assert state.value() == "5, was 1"
    state = resumed(make, *both(ListStateDescriptor), lambda state: state.add_all([1, 2]))
    assert list(state.get()) == ["1, was 1", "2, was 1"]
    state.add("x")
    assert list(state.get()) == ["1, was 1", "2, was 1", "x"]
    state = resumed(make, *both(MapStateDescriptor), lambda state: state.put_all({"x": 1, 2: None}))
    assert dict(state.items()) == {"x": "1, was 1", 2: "None, was 1"}
    state = resumed(make, *both(ReducingStateDescriptor, max), lambda state: state.add(7))
    assert state.get() == "7, was 1"
    descriptor = AggregatingStateDescriptor("s", Mean())
    newer = AggregatingStateDescriptor(
        "s", Mean(), version=2, migrate=lambda acc, version: (acc[0] * 10, acc[1])
    )
    state = resumed(make, descriptor, newer, lambda state: [state.add(n) for n in (1, 2, 3)])
    assert state.get() == 20


def test_a_value_that_is_converted_to_none_is_gone(make: Any) -> None:
    newer = ValueStateDescriptor("s", version=2, migrate=lambda value, version: None)
    state = resumed(make, ValueStateDescriptor("s"), newer, lambda state: state.update(5))
    assert state.value() is None
    newer = MapStateDescriptor("s", version=2, migrate=lambda value, version: None)
    state = resumed(make, MapStateDescriptor("s"), newer, lambda state: state.put("x", 5))
    assert state.contains("x") and state.get("x") is None


@pytest.mark.parametrize(("old", "new"), [(10, 10), (10, 0), (0, 10)])
def test_a_time_to_live_and_a_version_change_together(make: Any, old: int, new: int) -> None:
    for kind in (ValueStateDescriptor, ListStateDescriptor):
        before, after = both(kind)
        for descriptor, seconds in ((before, old), (after, new)):
            if seconds:
                config = StateTtlConfig.new_builder(Time.seconds(seconds)).build()
                descriptor.enable_time_to_live(config)
        fill = (lambda s: s.update(5)) if kind is ValueStateDescriptor else (lambda s: s.add(5))
        state = resumed(make, before, after, fill)
        found = state.value() if kind is ValueStateDescriptor else next(iter(state.get()))
        assert found == "5, was 1"


def test_a_renamed_state_is_converted(make: Any) -> None:
    newer = ValueStateDescriptor("new", aliases=["s"], version=2, migrate=to_text)
    state = resumed(make, ValueStateDescriptor("s"), newer, lambda state: state.update(5))
    assert state.value() == "5, was 1"


def test_a_late_state_cannot_be_converted_but_may_have_a_version(make: Any) -> None:
    def request(after: ValueStateDescriptor) -> Any:
        context = with_key(context_of(make(), Clock()), "a")
        context.backend.end_opening()
        context.get_state(ValueStateDescriptor("s")).update(5)
        backend = make.restored(make.snapshot(context.backend, 1))
        states: StateStore = with_key(context_of(backend, Clock()), "a").states
        backend.end_opening()
        return states.get_state(after)

    assert request(ValueStateDescriptor("s")).value() == 5
    with pytest.raises(GraphError, match="request the state in open"):
        request(ValueStateDescriptor("s", version=2, migrate=to_text))


def test_wrong_versions_are_refused(make: Any) -> None:
    def fill(state: Any) -> None:
        state.update(5)

    older, newer = ValueStateDescriptor("s"), ValueStateDescriptor("s", version=2)
    with pytest.raises(GraphError, match=r"have version 1 in the snapshot, and 2 .*migrate="):
        resumed(make, older, newer, fill)
    with pytest.raises(GraphError, match=r"have version 2 in the snapshot, and 1 .*newer program"):
        resumed(make, newer, older, fill)
    for wrong in (0, -1, True, "2", 1.5):
        with pytest.raises(GraphError, match="is 1 or higher"):
            ValueStateDescriptor("s", version=wrong)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"migrate\(value, version\)"):
        ValueStateDescriptor("s", version=2, migrate=lambda value: value)  # type: ignore[misc, arg-type]


class Remember(KeyedProcessFunction):
    def __init__(self, descriptor: ValueStateDescriptor) -> None:
        self.descriptor = descriptor

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(self.descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield self.last.value()
        self.last.update(value)


def test_an_error_of_a_migration_has_its_traceback_and_the_value() -> None:
    def piece(descriptor: ValueStateDescriptor) -> Any:
        return lambda stream: stream.key_by(lambda _: 0).process(Remember(descriptor)).uid("keep")

    def broken(value: Any, version: int) -> Any:
        return value["price"]

    with OperatorHarness(piece(ValueStateDescriptor("s"))) as harness:
        harness.process_elements([(17, 0)])
        snapshot = harness.snapshot()
    newer = piece(ValueStateDescriptor("s", version=2, migrate=broken))
    with pytest.raises(TypeError, match="not subscriptable") as caught:
        OperatorHarness(newer, snapshot=snapshot)
    assert caught.traceback[-1].name == "broken", "the user's own line is the last"
    notes = caught.value.__notes__
    assert "state 's': a value of version 1 was converted: 17" in notes
    # The snapshot is as it was.
    with OperatorHarness(piece(ValueStateDescriptor("s")), snapshot=snapshot) as harness:
        harness.process_elements([(18, 0)])
        assert harness.extract_output_values() == [17]


class Gather(ProcessFunction, CheckpointedFunction):
    def __init__(self, descriptor: ListStateDescriptor) -> None:
        self.descriptor = descriptor

    def initialize_state(self, context: Any) -> None:
        self.saved = context.get_operator_state_store().get_list_state(self.descriptor)

    def snapshot_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield list(self.saved.get())
        self.saved.add(value)


def test_operator_lists_are_converted() -> None:
    def piece(descriptor: ListStateDescriptor) -> Any:
        return lambda stream: stream.process(Gather(descriptor)).uid("gather")

    with OperatorHarness(piece(ListStateDescriptor("s"))) as harness:
        harness.process_elements([(1, 0), (2, 0)])
        snapshot = harness.snapshot()
    newer = piece(ListStateDescriptor("s", version=2, migrate=to_text))
    with OperatorHarness(newer, snapshot=snapshot) as harness:
        harness.process_elements([("x", 0)])
        assert harness.extract_output_values() == [["1, was 1", "2, was 1"]]
        snapshot = harness.snapshot()
    with OperatorHarness(newer, snapshot=snapshot) as harness:
        harness.process_elements([("y", 0)])
        assert harness.extract_output_values() == [["1, was 1", "2, was 1", "x"]]
    with pytest.raises(JobError, match="have version 2 in the snapshot, and 1"):
        OperatorHarness(piece(ListStateDescriptor("s")), snapshot=snapshot)


class Rules(BroadcastProcessFunction):
    def __init__(self, descriptor: MapStateDescriptor) -> None:
        self.descriptor = descriptor

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield dict(ctx.get_broadcast_state(self.descriptor).items())

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(self.descriptor).put(*value)
        yield from ()


def test_broadcast_states_are_converted() -> None:
    older = MapStateDescriptor("s")
    newer = MapStateDescriptor("s", version=2, migrate=to_text)

    def harness(descriptor: MapStateDescriptor, **options: Any) -> OperatorHarness:
        return OperatorHarness(Rules(descriptor), broadcast_states=[descriptor], **options)

    with harness(older) as first:
        first.process_broadcast_element(("limit", 5))
        snapshot = first.snapshot()
    for _ in range(2):
        with harness(newer, snapshot=snapshot) as again:
            again.process_element(1, 0)
            assert again.extract_output_values() == [{"limit": "5, was 1"}]
            snapshot = again.snapshot()


# ---- whole jobs

NUMBER, RECORDS = 4017, 400


class Number(KeyedProcessFunction):
    """Numbers the records of a key. Version 2 of its state is a pair."""

    def __init__(self, version: int) -> None:
        self.version = version

    def open(self, runtime_context: Any) -> None:
        migrate = None if self.version == 1 else lambda value, version: ("count", value)
        descriptor = ValueStateDescriptor("n", version=self.version, migrate=migrate)
        self.count = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.version == 1:
            count = (self.count.value() or 0) + 1
            self.count.update(count)
        else:
            count = (self.count.value() or ("count", 0))[1] + 1
            self.count.update(("count", count))
        yield value % 10, count


def build(version: int) -> Any:
    def of(env: StreamExecutionEnvironment) -> None:
        source = GeneratorSource(lambda i: i, RECORDS, 400.0, clock=trio.current_time)
        stream = env.from_source(source, None, "gen").uid("source")
        numbered = stream.key_by(lambda i: i % 10).process(Number(version)).uid("numbers")
        numbered.sink_to(LedgerSink(NUMBER)).uid("sink")

    return of


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.UNALIGNED])
def test_a_migrated_job_goes_on_exactly_once(
    tmp_path: Path, mode: CheckpointingMode, parallelism: int
) -> None:
    ledger = LEDGERS[NUMBER] = Ledger()
    try:
        config = JobConfig(
            name="j",
            parallelism=2,
            checkpoint_dir=str(tmp_path / "job"),
            checkpoint_interval_seconds=0.1,
            checkpointing_mode=mode,
        )
        ran = run_program(program(build(1), config), script=crash_at_commit(NUMBER, 3))
        assert ran.outcome is None and ledger.staged, "the crash left output unpublished"
        newer = program(build(2), replace(config, parallelism=parallelism))
        # It is killed once more, and then restores values of the new version.
        newest = JobSettings(resume="newest")
        ran = run_program(newer, options=newest, script=crash_at_commit(NUMBER, 3))
        assert ran.outcome is None
        ran = run_program(newer, options=newest)
        assert isinstance(ran.outcome, JobOutcome), (ran.outcome, ran.crashes)
        expected = {(key, count): 1 for key in range(10) for count in range(1, RECORDS // 10 + 1)}
        assert dict(ledger.output()) == expected
    finally:
        del LEDGERS[NUMBER]
