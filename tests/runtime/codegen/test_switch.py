"""With code generation on and off, jobs have the same results and the same errors."""

from __future__ import annotations

import contextvars
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.dataflow.config.job_config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.errors import JobError
from penstock.runtime import codegen
from penstock.runtime.codegen.recompilation import GENERATED_FILE
from penstock.runtime.codegen.switch import VARIABLE
from penstock.runtime.jobmanager.jobmanager import JobOutcome
from penstock.runtime.operators.record_loops import map_records
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import Ran, program, run_program

LEDGER = 71
Stream = Any


class Line(str):
    """A line whose length is known only with the file of the code that asks."""

    @property
    def caller(self) -> str:
        return sys._getframe(1).f_code.co_filename


def count_words(env: StreamExecutionEnvironment) -> Stream:
    return (
        env.from_collection(["to be or", "not to be", ""] * 20)
        .flat_map(lambda line: [(word, 1) for word in line.split() if word])
        .key_by(lambda pair: pair[0])
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
        .filter(lambda pair: pair[1] % 2 == 0)
        .map(lambda pair: (pair[1], pair[0].upper()))
    )


def by_remainder(env: StreamExecutionEnvironment) -> Stream:
    numbers = env.from_collection(list(range(60))).map(lambda n: (n % 7, n * n))
    return numbers.key_by(lambda pair: pair[0]).count()


def fails_in_a_map(env: StreamExecutionEnvironment) -> Stream:
    return env.from_collection([4, 2, 0, 1]).map(lambda n: 8 // n)


def fails_in_a_comprehension(env: StreamExecutionEnvironment) -> Stream:
    lines = env.from_collection([[1, 2], [4, 0], [3]])
    return lines.flat_map(lambda ns: [(8 // n, 1) for n in ns]).key_by(lambda p: p[0]).count()


def fails_in_a_key(env: StreamExecutionEnvironment) -> Stream:
    pairs = env.from_collection([1, 2, 0]).map(lambda n: (n, [n]))
    return pairs.key_by(lambda pair: pair[1]).count()


def fails_in_a_reduce(env: StreamExecutionEnvironment) -> Stream:
    pairs = env.from_collection([("a", 1), ("b", 1), ("a", "x")])
    return pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))


def ran(build: Callable[[StreamExecutionEnvironment], Stream], enabled: bool) -> Ran:
    LEDGERS[LEDGER] = Ledger()

    def whole(env: StreamExecutionEnvironment) -> None:
        build(env.set_codegen(enabled)).sink_to(LedgerSink(LEDGER))

    config = JobConfig(name="job", parallelism=2, codegen=enabled)
    return run_program(program(whole, config))


@pytest.mark.parametrize("build", [count_words, by_remainder])
def test_a_job_has_the_same_results(build: Any) -> None:
    outputs: list[Counter[Any]] = []
    for enabled in (True, False):
        assert isinstance(ran(build, enabled).outcome, JobOutcome)
        outputs.append(LEDGERS[LEDGER].output())
    assert outputs[0] == outputs[1] and outputs[0]


@pytest.mark.parametrize(
    "build", [fails_in_a_map, fails_in_a_comprehension, fails_in_a_key, fails_in_a_reduce]
)
def test_a_job_has_the_same_errors(build: Any) -> None:
    found = []
    for enabled in (True, False):
        error = ran(build, enabled).outcome
        assert isinstance(error, JobError)
        found.append((str(error), error.operator, error.record, error.user_traceback))
    assert found[0] == found[1]


def asks_who_calls(env: StreamExecutionEnvironment) -> Stream:
    # The first batch of a function is checked for mutable records, in a loop that is not generated.
    return env.from_sequence(1, 8).map(Line).map(lambda line: line.caller)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_setting_reaches_the_workers(enabled: bool) -> None:
    assert isinstance(ran(asks_who_calls, enabled).outcome, JobOutcome)
    assert (GENERATED_FILE in LEDGERS[LEDGER].output()) == enabled


def test_the_environment_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"function": lambda n: n + 1}
    assert codegen.specialize(map_records, functions) is not None
    monkeypatch.setenv(VARIABLE, "off")
    assert codegen.specialize(map_records, functions) is None
    key_of = lambda pair: pair[0]  # noqa: E731
    assert codegen.specialize_routing(lambda n: (n, 1), key_of, False, 8) is None
    monkeypatch.setenv(VARIABLE, "on")
    assert codegen.specialize(map_records, functions) is not None


def test_it_is_switched_off_in_one_context_only() -> None:
    def off() -> bool:
        codegen.set_enabled(False)
        return codegen.is_enabled()

    assert contextvars.copy_context().run(off) is False
    assert codegen.is_enabled()
