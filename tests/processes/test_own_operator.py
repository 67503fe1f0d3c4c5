"""An operator of another package: exactly once while processes are killed, and in batch mode."""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    FileSink,
    GraphError,
    JobError,
    JsonLines,
    RestartStrategies,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from tests.processes import own_operator
from tests.processes.harness import Killer, Settings, committed, compared, run_to_the_end
from tests.processes.own_operator import MEDIAN, running_median
from tests.processes.parts import PartedSource

KEYS = 41


def _value(number: int) -> int:
    return number * 7919 % 1009


def _results(count: int) -> dict[int, list[tuple[int, int, int]]]:
    """Return the results of each key, with a second implementation."""
    results = {}
    for key in range(KEYS):
        values = [_value(number) for number in range(key, count, KEYS)]
        firsts = accumulate(([value] for value in values), lambda all, one: all + one)
        results[key] = [(key, len(some), sorted(some)[len(some) // 2]) for some in firsts]
    return results


def _job(settings: Settings) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.get_checkpoint_config().set_inline_threshold(settings.inline_threshold)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    source = PartedSource(settings.gate, settings.parts, lambda i: i, settings.count, settings.rate)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    medians = running_median(numbers.key_by(lambda i, keys=KEYS: i % keys), _value)
    medians.uid("medians").sink_to(FileSink(settings.output, JsonLines())).uid("files")
    return env


def test_an_operator_of_another_package_is_exactly_once_whoever_is_killed(tmp_path: Path) -> None:
    settings = Settings(tmp_path, count=4_000, rate=2_000, inline_threshold=1024, parts=4)
    targets = ("worker", "jobmanager", "both")
    killer = Killer(random.Random(5), kills=3, targets=targets, gate=settings.gate)
    run_to_the_end(settings, killer, job=_job)
    assert len(killer.killed) >= 3
    records = committed(settings.output)
    results = _results(settings.count)
    # Two readers share the records of a key, so only its last median is the same in every run.
    wanted = {(key, n + 1) for key in results for n in range(len(results[key]))}
    assert compared(Counter((key, n) for key, n, _ in records), wanted) == (0, 0)
    last = {key: (key, n, median) for key, n, median in sorted(records, key=lambda one: one[1])}
    assert last == {key: results[key][-1] for key in results}


def test_it_emits_its_last_results_in_batch_mode() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH).set_parallelism(2)
    keyed = env.from_collection(list(range(1_000))).key_by(lambda i, keys=KEYS: i % keys)
    found = list(running_median(keyed, _value).execute_and_collect(in_process=True))
    assert sorted(found) == [results[-1] for results in _results(1_000).values()]


def test_an_error_in_it_names_the_record() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([4, 0]).key_by(lambda i: 0)
    running_median(keyed, lambda i: 8 // i).print()
    with pytest.raises(JobError, match=r"in operator 'Running Median'\n.*\n  record:   0"):
        env.execute(in_process=True)


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda stream: stream.transform("Median", MEDIAN), "call key_by"),
        (lambda stream: stream.transform("Median", "median"), "takes an OperatorSpec"),
        (lambda stream: stream.transform("Median", OperatorSpec("median")), "has no builder"),
        (lambda stream: stream.transform("Median", specs.SINK), "is not one"),
    ],
)
def test_a_specification_that_does_not_fit_is_refused(add: Any, message: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(GraphError, match=message):
        add(env.from_collection([1]))


def test_its_module_is_short() -> None:
    assert len(Path(own_operator.__file__).read_text().splitlines()) < 60
