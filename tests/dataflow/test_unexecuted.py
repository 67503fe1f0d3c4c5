"""A program that builds a job and never executes it says so when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.operators import specs
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.unexecuted import Executions

BEGIN = """
from penstock import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1]).print()
"""


def ended(folder: Path, *lines: str) -> str:
    """Run a program as a script, and return what it prints on standard error."""
    path = folder / "job.py"
    path.write_text("\n".join([BEGIN, *lines]))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    return done.stderr


def test_a_script_says_when_it_ends_that_its_job_was_never_executed(tmp_path: Path) -> None:
    said = ended(tmp_path)
    assert said.splitlines() == [
        "penstock: the program has ended, and 'Print to Std. Out' was never executed: the program "
        "must call env.execute(), or execute_and_collect() on a stream"
    ]
    assert ended(tmp_path, "del env") == said


def test_a_script_that_fails_says_nothing_of_it(tmp_path: Path) -> None:
    said = ended(tmp_path, "1 / 0")
    assert "ZeroDivisionError" in said
    assert "never executed" not in said


def graph(*kinds: OperatorSpec) -> tuple[JobGraph, Executions]:
    made = JobGraph()
    for kind in kinds:
        made.add(kind, kind.name, len)
    return made, Executions(made)


@pytest.mark.parametrize(
    ("executed", "compiled", "reported"),
    [
        (set(), set(), "'sink' was never executed"),
        (set(), {0, 1}, None),
        ({0}, {0}, "'sink' was never executed"),
        ({0, 1}, set(), None),
    ],
)
def test_a_report_names_the_sinks_that_no_execution_had(
    executed: set[int], compiled: set[int], reported: str | None
) -> None:
    _, executions = graph(specs.SOURCE, specs.SINK)
    executions.executed |= executed
    executions.compiled |= compiled
    report = executions.report()
    assert (report is None) if reported is None else (reported in str(report))


def test_streams_without_a_sink_are_reported_only_if_nothing_was_executed() -> None:
    _, executions = graph(specs.SOURCE, specs.MAP)
    assert "'map' was never executed" in str(executions.report())
    executions.executed |= {0}
    assert executions.report() is None
    assert Executions(JobGraph()).report() is None


def test_a_drawn_plan_counts_as_a_use_of_the_program() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    assert env._executions.report() is not None
    env.get_execution_plan("text")
    assert env._executions.report() is None
