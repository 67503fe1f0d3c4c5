"""What a program that was written for PyFlink is told about what Penstock does not have."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import penstock
from penstock import (
    DataStream,
    GraphError,
    JobExecutionResult,
    KeyedStream,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from penstock.connectors import SequenceSource
from penstock.dataflow.arguments.pyflink_names import (
    ENVIRONMENT,
    KEYED_STREAM,
    STREAM,
    MissingFeatureError,
)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture
def stream(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([1])


def test_a_missing_method_names_its_replacement(env: Any, stream: Any) -> None:
    keyed = stream.key_by(str)
    for target, names in ((env, ENVIRONMENT), (stream, STREAM), (keyed, KEYED_STREAM)):
        for name, reason in names.items():
            assert not hasattr(target, name)
            assert not hasattr(type(target), name)
            with pytest.raises(MissingFeatureError) as caught:
                getattr(target, name)
            assert str(caught.value) == f"{type(target).__name__} has no {name!r}: {reason}"
            assert isinstance(caught.value, GraphError)
            assert isinstance(caught.value, AttributeError)
    with pytest.raises(MissingFeatureError, match="call key_by first, or window_all"):
        stream.window(None)


def test_other_attributes_are_missing_as_ever(env: Any, stream: Any) -> None:
    for target in (env, stream):
        with pytest.raises(AttributeError, match="object has no attribute 'nonsense'") as caught:
            _ = target.nonsense
        assert type(caught.value) is AttributeError
    assert copy.copy(stream).get_name() == stream.get_name()
    assert isinstance(stream.key_by(str), KeyedStream)
    assert isinstance(pickle.loads(pickle.dumps(stream)), DataStream)


def test_a_source_takes_a_strategy_or_none(env: StreamExecutionEnvironment) -> None:
    for strategy in (None, WatermarkStrategy.for_monotonous_timestamps()):
        env.from_source(SequenceSource(1, 2), strategy, "numbers")


def test_another_object_in_the_place_of_the_strategy_is_refused(env: Any) -> None:
    with pytest.raises(GraphError, match="from_source takes a WatermarkStrategy, not <object"):
        env.from_source(SequenceSource(1, 2), object(), "numbers")


def test_a_name_in_the_place_of_the_strategy_is_refused(env: Any) -> None:
    with pytest.raises(GraphError, match=r"write from_source\(source, None, 'numbers'\)"):
        env.from_source(SequenceSource(1, 2), "numbers")


def test_a_result_is_one_line() -> None:
    result = JobExecutionResult("words", 12.345, [{}], [{}, {}], [{"uid": "a"}], "0123")
    assert repr(result) == (
        "<JobExecutionResult of 'words': finished after 12.3 s, 1 restart, 2 snapshots>"
    )


def test_the_errors_of_types_and_keys_can_be_imported() -> None:
    assert issubclass(penstock.UnsupportedTypeError, penstock.JobError)
    assert issubclass(penstock.KeyRefusedError, penstock.JobError)


def test_fields_are_projected(stream: Any) -> None:
    env = stream.get_execution_environment()
    records = env.from_collection([(1, "a", True), (2, "b", False)])
    for fields, expected in (((2, 0), [(True, 1), (False, 2)]), ((1,), [("a",), ("b",)])):
        with records.project(*fields).execute_and_collect(in_process=True) as found:
            assert list(found) == expected
    for wrong in ((), (-1,), ("a",)):
        with pytest.raises(GraphError):
            records.project(*wrong)


def test_an_operator_can_be_kept_from_running_in_parallel(env: Any) -> None:
    mapped = env.set_parallelism(4).from_collection([1]).map(str).force_non_parallel()
    with pytest.raises(GraphError, match=r"force_non_parallel\(\) was called"):
        mapped.set_parallelism(2)


def test_settings_can_be_read(env: Any) -> None:
    assert env.get_buffer_timeout() == 5
    assert env.get_checkpoint_interval() == -1
    env.enable_checkpointing(500)
    assert env.get_checkpoint_interval() == 500
    assert env.get_checkpointing_mode() is penstock.CheckpointingMode.EXACTLY_ONCE
    env.close()
