"""A program is compared with a snapshot before it goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CheckpointedFunction,
    Duration,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessFunction,
    SnapshotWriter,
    StreamExecutionEnvironment,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    open_snapshot,
)
from penstock.dataflow.config import JobConfig
from penstock.runtime.client.program_check import (
    CheckedOperator,
    ProgramCheck,
    StateOutcome,
    check_program,
)
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.control.record_class_search import record_classes

Build = Callable[[Any], Any]


class Keep(KeyedProcessFunction):
    """Keeps the last record in the state of a descriptor."""

    def __init__(self, *descriptors: ValueStateDescriptor) -> None:
        self.descriptors = descriptors

    def open(self, runtime_context: Any) -> None:
        self.states = [runtime_context.get_state(one) for one in self.descriptors]

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        for state in self.states:
            state.update(value)
        yield value


class Gather(ProcessFunction, CheckpointedFunction):
    def __init__(self, descriptor: ListStateDescriptor) -> None:
        self.descriptor = descriptor

    def initialize_state(self, context: Any) -> None:
        self.saved = context.get_operator_state_store().get_list_state(self.descriptor)

    def snapshot_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.saved.add(value)
        yield value


def keyed(*descriptors: ValueStateDescriptor, uid: str = "keep", **former: str) -> Build:
    function = Keep(*descriptors)
    return lambda stream: stream.key_by(lambda value: 0).process(function).uid(uid, **former)


def environment(build: Build, records: list[Any], parallelism: int = 1) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    build(env.from_collection(records).uid("records")).print().uid("print")
    return env


def snapshot_of(folder: Path, build: Build, records: list[Any]) -> Path:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True).enable_checkpointing(1_000_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder))
    list(build(env.from_collection(records).uid("records")).execute_and_collect())
    return folder


def check(folder: Path, build: Build, parallelism: int = 1, types: Any = ()) -> ProgramCheck:
    env = environment(build, [1], parallelism)
    config = JobConfig(name="j", parallelism=parallelism)
    code = JobCode(env._graph, config, types=record_classes(env._graph, types))
    with open_snapshot(folder) as snapshot:
        return check_program(code, snapshot.manifest, snapshot.path, snapshot.holds, lambda _: ())


def result(found: ProgramCheck, uid: str = "keep") -> CheckedOperator:
    [one] = [one for one in found.operators if one.uid == uid]
    return one


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers") / "job"
    return snapshot_of(folder, keyed(ValueStateDescriptor("n")), [1, 2])


def test_the_same_program_keeps_its_state(numbers: Path) -> None:
    found = check(numbers, keyed(ValueStateDescriptor("n")))
    assert found.fits() and found.operators == (
        CheckedOperator("keep", "Keyed Process", StateOutcome.KEPT),
        CheckedOperator("records", "Source: Collection", StateOutcome.KEPT),
    )


def test_states_that_are_converted_renamed_new_or_divided_are_named(numbers: Path) -> None:
    newer = ValueStateDescriptor("m", aliases=["n"], version=2, migrate=lambda value, version: 0)
    build = keyed(newer, ValueStateDescriptor("more"), uid="held", formerly="keep")
    found = check(numbers, build, parallelism=3)
    assert found.fits()
    assert result(found, "held") == CheckedOperator(
        "held",
        "Keyed Process",
        StateOutcome.MIGRATED,
        (
            "parallelism was 1 and is 3",
            "its uid was 'keep'",
            "state 'n' is 'm' now",
            "state 'm' goes from version 1 to 2",
            "state 'more' is new",
        ),
    )


def test_what_would_be_lost_is_dropped_or_refused(numbers: Path) -> None:
    found = check(numbers, keyed(ValueStateDescriptor("m")))
    assert not found.fits() and found.fits(allow_dropped=True)
    assert result(found).outcome is StateOutcome.DROPPED and "renamed?" in result(found).reasons[-1]
    found = check(numbers, keyed(ValueStateDescriptor("n"), uid="other"))
    assert not found.fits() and found.fits(allow_dropped=True)
    assert result(found).outcome is StateOutcome.DROPPED
    assert result(found, "other").outcome is StateOutcome.NEW
    found = check(numbers, lambda s: s.key_by(lambda _: 0).reduce(max).uid("keep"))
    assert not found.fits(allow_dropped=True)
    assert result(found).outcome is StateOutcome.REFUSED
    found = check(numbers, keyed(ValueStateDescriptor("n", version=2)))
    assert not found.fits(allow_dropped=True)
    assert "have version 1 in the snapshot, and 2 in" in result(found).reasons[0]


def test_an_operator_that_cannot_be_opened_is_not_checked(numbers: Path) -> None:
    class Broken(Keep):
        def open(self, runtime_context: Any) -> None:
            raise ConnectionError("no database here")

    found = check(numbers, lambda s: s.key_by(lambda _: 0).process(Broken()).uid("keep"))
    assert found.fits() and result(found).outcome is StateOutcome.UNCHECKED
    assert "no database here" in result(found).reasons[0]


def test_states_without_values_may_go(tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path / "job", "j") as writer:
        keep = writer.operator("keep")
        keep.put("n", 0, 5)
        keep.put("old", 0, 5)
        keep.delete("old", 0)
    assert check(tmp_path / "job", keyed(ValueStateDescriptor("n"))).fits()
    assert not check(tmp_path / "job", keyed(ValueStateDescriptor("old"))).fits()


def test_operator_state_is_checked(tmp_path: Path) -> None:
    def gather(*arguments: Any, **options: Any) -> Build:
        descriptor = ListStateDescriptor(*arguments, **options)
        return lambda stream: stream.process(Gather(descriptor)).uid("keep")

    job = snapshot_of(tmp_path / "job", gather("list"), [1, 2])
    assert result(check(job, gather("list"))).outcome is StateOutcome.KEPT
    found = check(job, gather("other"))
    assert not found.fits() and found.fits(allow_dropped=True)
    assert "state 'list' is gone" in result(found).reasons[-1]
    assert not check(job, gather("list", version=2)).fits(allow_dropped=True)
    newer = gather("list", version=2, migrate=lambda value, version: value["price"])
    found = check(job, newer)
    assert "converted: 1" in result(found).reasons[0], "operator state is converted for the check"


def test_open_windows_of_another_kind_are_dropped(tmp_path: Path) -> None:
    def counted(stream: Any) -> Any:
        return stream.key_by(lambda _: 0).count_window(2).reduce(max).uid("keep")

    def timed(stream: Any) -> Any:
        size = TumblingProcessingTimeWindows.of(Duration.of_seconds(5))
        return stream.key_by(lambda _: 0).window(size).reduce(max).uid("keep")

    half = snapshot_of(tmp_path / "half", counted, [1, 2, 3])
    assert result(check(half, counted)).outcome is StateOutcome.KEPT
    found = check(half, timed)
    assert result(found).outcome is StateOutcome.DROPPED and found.fits(allow_dropped=True)
    full = snapshot_of(tmp_path / "full", counted, [1, 2])
    assert check(full, timed).fits(), "no window is open"


def test_classes_of_records_are_checked(tmp_path: Path) -> None:
    def order(*fields: Any) -> Any:
        kind = make_dataclass("Order", fields)
        kind.__module__ = "shop"
        return kind

    old = order(("price", int))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True).enable_checkpointing(1_000_000).register_type(old)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "job"))
    build = keyed(ValueStateDescriptor("n"))
    list(build(env.from_collection([old(3)]).uid("records")).execute_and_collect())
    found = check(tmp_path / "job", build, types=[order(("cents", int))])
    assert not found.fits()
    assert {one.outcome for one in found.operators if one.uid == "shop:Order"} == {
        StateOutcome.REFUSED
    }


@pytest.mark.parametrize("build", [keyed(ValueStateDescriptor("n")), lambda stream: stream])
def test_a_program_without_or_with_state_fits_an_empty_snapshot(
    tmp_path: Path, build: Build
) -> None:
    with SnapshotWriter(tmp_path / "job", "j"):
        pass
    found = check(tmp_path / "job", build)
    assert found.fits() and {one.outcome for one in found.operators} == {StateOutcome.NEW}
